"""
The flags that several commands have, each with one spelling, one meaning and one type.

`with_settings` gives a command the flags that set settings. The settings that the command loads
then come from its flags first.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import orjson
import typer
from pydantic import TypeAdapter

from stepspec import policies
from stepspec.evals.benchmarks import BENCHMARKS
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.run_options import option_types, run_options
from stepspec.setting_sources import CommandLine, Place, with_command_line

from .command_line import finite
from .program import parameters_of, with_parameters

NUMBERS: Mapping[str, type] = {"integer": int, "number": float}


def completion(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a completion of *names* for a shell."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


BenchmarkName: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="A benchmark, or a JSONL, CSV or Parquet file of problems.",
        autocompletion=completion(BENCHMARKS),
    ),
]
Policies: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        "-p",
        help="A method with its options, or a policy file; may be repeated.",
        metavar="NAME[:OPTION=VALUE,...]",
        autocompletion=completion(policies.METHODS),
    ),
]
SharedOptions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-O",
        help="An option of every --policy that is the name of a method; may be repeated.",
        metavar="NAME=VALUE",
    ),
]
Limit: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--limit",
        "-n",
        min=1,
        help="Only this number of problems, the first ones.",
    ),
]
Concurrency: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Number of problems solved at the same time.")
]
SampleSeed: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=0,
        help=(
            "Seed of the samples, the order of choices, and generated problems; default: the"
            " configured sampling.seed, or 0."
        ),
    ),
]
DataFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="A file with the benchmark's columns, JSONL, CSV or Parquet, instead of the hub."
    ),
]
ProblemColumn: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Column of the problems in a file of your own.",
        metavar="NAME",
    ),
]
AnswerColumn: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Column of the answers in a file of your own.",
        metavar="NAME",
    ),
]
MetricName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--metric",
        help="How answers of a file of your own are graded: math, number, choice or exact.",
    ),
]
PromptName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        help=(
            "Template of the problems of a file of your own: eval.boxed, eval.choice, a file with"
            " {problem}, or none."
        ),
        metavar="NAME",
    ),
]
SettingsOutput: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Where to write the settings to use, as TOML.",
    ),
]
Testbed: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--testbed",
        help="Start the miniature pair on this CPU, and use that.",
        is_eager=True,
    ),
]


def _of_testbed(context: typer.Context, pace: str) -> str:
    source = context.get_parameter_source("profile")
    # `demo` has no --testbed.
    if source and source.name == "COMMANDLINE" and context.params.get("testbed") is False:
        raise ConfigurationError(
            "--profile is the pace of the miniature pair: add --testbed, or leave it out"
        )
    return pace


Pace: TypeAlias = Annotated[
    str,
    typer.Option(
        "--profile",
        help="The pace of the miniature models: paced, slow, off.",
        callback=_of_testbed,
    ),
]
Fresh: TypeAlias = Annotated[
    bool, typer.Option("--fresh", help="Discard what an earlier run left, and begin anew.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that sets a setting."""

    place: Place
    """The place of the setting."""
    names: tuple[str, ...]
    """Its spellings, such as "--policy" and "-p"."""
    kind: Any
    """The type of its value for typer."""
    help: str
    """Its help."""
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments for typer."""
    parse: Callable[[Any], Any] = lambda value: value
    """Turns the value of typer into the value of the setting."""

    @property
    def name(self) -> str:
        """The flag as a user writes it."""
        return next(name.partition("/")[0] for name in self.names if name.startswith("--"))

    @property
    def variable(self) -> str:
        """The name of the flag's parameter."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def parameter(self) -> inspect.Parameter:
        """The parameter that declares the flag for typer, with None as its default."""
        kind = self.kind
        option = typer.Option(
            *self.names,
            help=self.help,
            show_default=False,
            **self.more,
        )
        return inspect.Parameter(
            self.variable,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[kind | None, option],
        )


def flag(place: str, kind: Any, help: str, name: str = "", **more: Any) -> Flag:
    """Declare the flag of a setting. The flag of ``sampling.top_p`` is ``--top-p`` by default."""
    keys = tuple(place.split("."))
    name = name or f"--{keys[-1].replace('_', '-')}"
    return Flag(keys, (name,), kind, help, more)


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
CONFIG = flag(
    "config",
    Path,
    "Settings file; it comes before the one that STEPSPEC_CONFIG names, and before stepspec.toml.",
)


def with_settings(
    command: str,
    *groups: Sequence[Flag],
    help: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """
    Give the function of a *command* ``--config`` and flags for settings.

    The flags are those of the *groups*, and those of the run options that name the command (see
    `RunOption`). They stand at the end of ``--help``. *help* replaces the help of some run options.
    While the function runs, settings that it loads come from the flags first.
    """
    run_flags = [
        _run_flag(name, help or {})
        for name, option in run_options().items()
        if command in option.commands
    ]
    ordered = (*groups[:1], run_flags, *groups[1:])
    flags = {flag.variable: flag for group in ordered for flag in group}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = parameters_of(function)
        parameters = [*own, *(flag.parameter for flag in flags.values()), CONFIG.parameter]

        @functools.wraps(function)
        def run(*, config: Path | None = None, **arguments: Any) -> None:
            words = {name: arguments.pop(name, None) for name in flags}
            with with_command_line(read_flags(flags, words, config)):
                function(**arguments)

        vars(run)["flags"] = flags
        return with_parameters(run, parameters)

    return decorate


def read_flags(
    flags: Mapping[str, Flag],
    words: Mapping[str, Any],
    config: Path | None = None,
) -> CommandLine:
    """Put the *words* of the *flags* in the places of their settings. None and [] set nothing."""
    values: dict[str, Any] = {}
    names: dict[Place, str] = {}
    for name, flag in flags.items():
        if words[name] in (None, []):
            continue
        value = flag.parse(words[name])
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


def _run_flag(name: str, helps: Mapping[str, str]) -> Flag:
    """Derive the flag of the run option *name* from its declaration."""
    option = run_options()[name]
    schema = TypeAdapter(option_types()[name]).json_schema()
    *others, last = option.flags or (f"--{name.replace('_', '-')}",)
    kinds = {kind.get("type"): kind for kind in schema.get("anyOf", [schema])}
    made = Flag((name,), (*others, last), str, helps.get(name, option.help))
    if name == "policy":
        return replace(made, more={"autocompletion": completion(policies.METHODS)})
    if "object" in kinds:
        more = {"metavar": "NAME=VALUE"}
        return replace(made, kind=list[str], more=more, parse=parse_options)
    if "array" in kinds:
        return replace(made, kind=list[str], parse=_unescape_all)
    if "boolean" in kinds:
        both = (*others, f"{last}/--no-{last.removeprefix('--')}")
        return replace(made, names=both, kind=bool)
    for kind in NUMBERS.keys() & kinds.keys():
        limits = kinds[kind]
        most = limits.get("maximum", limits.get("exclusiveMaximum"))
        more = {"min": limits.get("minimum"), "max": most}
        return replace(made, kind=NUMBERS[kind], more=more)
    return made


def _unescape_all(texts: Sequence[str]) -> list[str]:
    r"""Replace ``\n`` and ``\t`` as typed on a command line."""
    return [text.replace("\\n", "\n").replace("\\t", "\t") for text in texts]
