"""
The flags that several commands have, each with one spelling, one meaning and one type.

`with_settings` gives a command the flags that set settings. The settings that the command loads
then come from its flags first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from pydantic import TypeAdapter
from typer import Argument, Option

from stepspec import policies
from stepspec.evals.benchmarks import BENCHMARKS
from stepspec.evals.testbed import Profile
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.run_options import RunOption, option_types, run_options
from stepspec.setting_sources import CommandLine, Place, with_command_line

from .command_line import finite
from .program import with_parameters


def completion(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a completion of *names* for a shell."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


BenchmarkName = Annotated[
    str,
    Argument(
        help="A benchmark, or a JSONL, CSV or Parquet file of problems.",
        autocompletion=completion(BENCHMARKS),
    ),
]
Policies = Annotated[
    list[str] | None,
    Option(
        "--policy",
        "-p",
        help="A method with its options, or a policy file; may be repeated.",
        metavar="NAME[:OPTION=VALUE,...]",
        autocompletion=completion(policies.METHODS),
    ),
]
SharedOptions = Annotated[
    list[str] | None,
    Option(
        "--option",
        "-O",
        help="An option of every --policy that is the name of a method; may be repeated.",
        metavar="NAME=VALUE",
    ),
]
Limit = Annotated[
    int | None,
    Option(
        "--limit",
        "-n",
        min=1,
        help="Only this number of problems, the first ones.",
    ),
]
Concurrency = Annotated[int, Option(min=1, help="Number of problems solved at the same time.")]
SampleSeed = Annotated[
    int | None,
    Option(
        min=0,
        help=(
            "Seed of the samples, the order of choices, and generated problems; default: the"
            " configured sampling.seed, or 0."
        ),
    ),
]
DataFile = Annotated[
    Path | None,
    Option(help="A file with the benchmark's columns, JSONL, CSV or Parquet, instead of the hub."),
]
ProblemColumn = Annotated[
    str | None,
    Option(
        help="Column of the problems in a file of your own.",
        metavar="NAME",
    ),
]
AnswerColumn = Annotated[
    str | None,
    Option(
        help="Column of the answers in a file of your own.",
        metavar="NAME",
    ),
]
MetricName = Annotated[
    str | None,
    Option(
        "--metric",
        help="How answers of a file of your own are graded: math, number, choice or exact.",
    ),
]
PromptName = Annotated[
    str | None,
    Option(
        "--prompt",
        help=(
            "Template of the problems of a file of your own: eval.boxed, eval.choice, a file with"
            " {problem}, or none."
        ),
        metavar="NAME",
    ),
]
SettingsOutput = Annotated[
    Path | None,
    Option(
        "--output",
        "-o",
        help="Where to write the settings to use, as TOML.",
    ),
]
Testbed = Annotated[
    bool,
    Option(
        "--testbed",
        help="Start the miniature pair on this CPU, and use that.",
        is_eager=True,
    ),
]


def _of_testbed(context: typer.Context, pace: Profile) -> Profile:
    source = context.get_parameter_source("profile")
    # `demo` has no --testbed.
    if source and source.name == "COMMANDLINE" and context.params.get("testbed") is False:
        raise ConfigurationError(
            "--profile is the pace of the miniature pair: add --testbed, or leave it out"
        )
    return pace


Pace = Annotated[
    Profile,
    Option(
        "--profile",
        help="The pace of the miniature models: paced, slow, off.",
        metavar="PACE",
        callback=_of_testbed,
    ),
]
Fresh = Annotated[bool, Option("--fresh", help="Discard what an earlier run left, and begin anew.")]
Json = Annotated[bool, Option("--json", help="Print JSON instead.")]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that sets a setting."""

    place: Place
    """The place of the setting."""
    name: str
    """The flag as a user writes it."""
    annotation: Any
    """The annotation that declares the flag for typer."""
    parse: Callable[[Any], Any]
    """Turns the value of typer into the value of the setting."""

    @property
    def variable(self) -> str:
        """The name of the flag's parameter."""
        return self.name.removeprefix("--").replace("-", "_")


def flag(
    place: str,
    kind: Any,
    help: str,
    *names: str,
    parse: Callable[[Any], Any] = lambda value: value,
    **more: Any,
) -> Flag:
    """
    Declare the flag of a setting, of which typer gives a value of this *kind*.

    The first of the *names* is the long one. The flag of ``sampling.top_p`` is ``--top-p`` by
    default. *more* are further arguments for typer.
    """
    keys = tuple(place.split("."))
    names = names or (f"--{keys[-1].replace('_', '-')}",)
    option = Option(*names, help=help, show_default=False, **more)
    name = names[0].partition("/")[0]
    return Flag(keys, name, Annotated[kind | None, option], parse)


def _key(role: str, model: str) -> Flag:
    words = (
        f"API key of the {model} model's server. Other users of this machine can see it; "
        f"STEPSPEC_{role.upper()}__API_KEY is safer."
    )
    return flag(f"{role}.api_key", str, words, f"--{role}-api-key", metavar="KEY")


def _url(role: str, help: str) -> Flag:
    return flag(f"{role}.url", str, help, f"--{role}", metavar="URL")


REPLICAS = "; several replicas are separated by commas."
KEYS = (_key("small", "small"), _key("large", "large"))
SERVERS = (
    _url("small", f"Base URL of the small model's server{REPLICAS}"),
    _url("large", f"Base URL of the large model's server{REPLICAS}"),
    *KEYS,
    _url("critic", "Base URL of the reward model's server, for methods that need one."),
    _key("critic", "reward"),
)
SAMPLING = (
    flag("sampling.temperature", float, "Sampling temperature; 0 is greedy."),
    flag("sampling.top_p", float, "Sample from the likeliest tokens of this total."),
    flag("sampling.top_k", int, "Sample from this number of likeliest tokens; 0: all."),
)
SEED = (
    flag(
        "sampling.seed",
        int,
        "Seed of the sampling; the same seed writes the same chain.",
    ),
)
BUDGET = (
    flag(
        "budget.tokens",
        int,
        "Budget of a run in tokens, for thinking and answer together.",
        "--max-tokens",
    ),
    flag("budget.steps", int, "Budget of a run in thinking steps.", "--max-steps"),
    flag(
        "budget.seconds",
        float,
        "Budget of a run in seconds of wall time.",
        "--max-seconds",
    ),
)
Config = Annotated[
    Path | None,
    Option(
        help=(
            "Settings file; it comes before the one that STEPSPEC_CONFIG names, and before"
            " stepspec.toml."
        ),
        show_default=False,
    ),
]


def with_settings(
    command: str, *groups: Sequence[Flag]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """
    Give the function of a *command* ``--config`` and flags for settings.

    The flags are `SERVERS`, those of the run options that name the command (see `RunOption`), and
    those of the *groups*. They stand at the end of ``--help``. While the function runs, settings
    that it loads come from the flags first.
    """
    run_flags = [
        _run_flag(name, option)
        for name, option in run_options().items()
        if command in option.commands
    ]
    flags = {flag.variable: flag for flag in chain(SERVERS, run_flags, *groups)}
    annotations = {name: flag.annotation for name, flag in flags.items()}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*, config: Path | None, **arguments: Any) -> None:
            words = [(flag, arguments.pop(name)) for name, flag in flags.items()]
            with with_command_line(read_flags(words, config)):
                function(**arguments)

        vars(run)["flags"] = flags
        return with_parameters(run, function, {**annotations, "config": Config})

    return decorate


def read_flags(words: Iterable[tuple[Flag, Any]], config: Path | None) -> CommandLine:
    """Put the *words* of flags in the places of their settings. None and [] set nothing."""
    values: dict[str, Any] = {}
    names: dict[Place, str] = {}
    for flag, word in words:
        if word in (None, []):
            continue
        value = flag.parse(word)
        finite(flag.name, value)
        *tables, last = flag.place
        table = values
        for key in tables:
            table = table.setdefault(key, {})
        table[last] = value
        names[flag.place] = flag.name
    return CommandLine(values, names, config)


def parse_options(words: Sequence[str] | None, complaint: str = "") -> dict[str, Any]:
    """
    Parse options of a method, each ``name=value``, as ``--option`` has them.

    Raise `ConfigurationError` for other words, with the *complaint* if there is one.
    """
    values: dict[str, Any] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigurationError(complaint or f"--option {word!r}: write it as NAME=VALUE")
        values[name.strip()] = _json_or_text(value.strip())
    return values


def _json_or_text(text: str) -> Any:
    """Parse JSON; other text is a string."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _unescape_all(texts: Sequence[str]) -> list[str]:
    r"""Replace ``\n`` and ``\t`` as typed on a command line."""
    return [text.replace("\\n", "\n").replace("\\t", "\t") for text in texts]


KINDS: Mapping[str, Any] = {
    "object": list[str],
    "array": list[str],
    "boolean": bool,
    "integer": int,
    "number": float,
}
"""The type of a flag by the type of a value in a JSON schema; ``str`` for others."""
PECULIAR: Mapping[str, Mapping[str, Any]] = {
    "policy": {"autocompletion": completion(policies.METHODS)},
    "options": {"metavar": "NAME=VALUE", "parse": parse_options},
    "delimiter": {"parse": _unescape_all},
}
"""Further arguments for the flags of some run options."""


def _run_flag(name: str, option: RunOption) -> Flag:
    """Derive the flag of the run option *name* from its declaration."""
    schema = TypeAdapter(option_types()[name]).json_schema()
    types = {kind.get("type") for kind in schema.get("anyOf", [schema])}
    kind = next((KINDS[type] for type in KINDS if type in types), str)
    names = option.flags
    if kind is bool:
        word = name.replace("_", "-")
        names = (f"--{word}/--no-{word}",)
    return flag(name, kind, option.help, *names, **PECULIAR.get(name, {}))
