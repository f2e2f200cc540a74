"""
The flags that several commands have, each with one spelling, one meaning and one type.

`with_settings` gives a command the flags that set settings. The settings that the command loads
then come from its flags first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from stepspec.orchestrator.run_options import Place, RunOptions, models
from stepspec.setting_sources import CommandLine, put, with_command_line
from stepspec.settings import Settings

from .command_line import finite
from .program import with_parameters

BenchmarkName = Annotated[
    str,
    Argument(
        help="A benchmark, or a JSONL, CSV or Parquet file of problems.",
        autocompletion=lambda: BENCHMARKS,
    ),
]
Policies = Annotated[
    list[str] | None,
    Option(
        "--policy",
        "-p",
        help="A method with its options, or a policy file; may be repeated.",
        metavar="NAME[:OPTION=VALUE,...]",
        autocompletion=lambda: policies.METHODS,
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


NAMES: Mapping[str, Sequence[str]] = {
    "policy": ("--policy", "-p"),
    "options": ("--option", "-O"),
    "small.url": ("--small",),
    "large.url": ("--large",),
    "critic.url": ("--critic",),
    "small.api_key": ("--small-api-key",),
    "large.api_key": ("--large-api-key",),
    "critic.api_key": ("--critic-api-key",),
    "budget.tokens": ("--max-tokens",),
    "budget.steps": ("--max-steps",),
    "budget.seconds": ("--max-seconds",),
    "service.keys": ("--key",),
    "service.cors_origins": ("--cors-origin",),
}
"""The names of the flags that are not called as the key of their setting, the long one first."""
KEYS = ("small.api_key", "large.api_key")
SERVERS = ("small.url", "large.url", *KEYS, "critic.url", "critic.api_key")
COMMON = ("policy", "options", "ahead", "auto", "system")
"""The options of a run that a service has flags for too."""
RUN = tuple(name for name in RunOptions.model_fields if name not in ("sampling", "budget"))
SAMPLING = ("sampling.temperature", "sampling.top_p", "sampling.top_k")
SEED = ("sampling.seed",)
BUDGET = ("budget.tokens", "budget.steps", "budget.seconds")
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


def with_settings(*places: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """
    Give the function of a command ``--config`` and flags for settings.

    The flags are those of `SERVERS` and of *places*. They stand at the end of ``--help``. While the
    function runs, settings that it loads come from the flags first.
    """
    flags = {flag.variable: flag for flag in map(_flag, (*SERVERS, *places))}
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
        put(values, flag.place, value)
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
COMPLETIONS: Mapping[str, Any] = {"policy": lambda: policies.METHODS}
"""What completes the values of some flags in a shell, by the setting."""
MODELS = {"small": "the small model", "large": "the large model", "critic": "the reward model"}
"""What "the model" of a setting means in ``--help``, by the table of the setting."""
METAVARS = {"url": "URL", "api_key": "KEY", "options": "NAME=VALUE"}
"""The words for some values in ``--help``, by the key of the setting."""
PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "options": parse_options,
    "delimiter": _unescape_all,
}
"""What turns the values of some flags into those of their settings, by the setting."""


def _flag(name: str) -> Flag:
    """
    Derive a flag from the declaration of the setting *name*, such as "sampling.top_p".

    The help is the first paragraph of the setting's docstring.
    """
    *tables, key = place = tuple(name.split("."))
    model: Any = Settings
    for table in tables:
        model = models(model.__pydantic_fields__[table].annotation)[0]
    field = model.__pydantic_fields__[key]
    schema = TypeAdapter(field.rebuild_annotation()).json_schema()
    types = {kind.get("type") for kind in schema.get("anyOf", [schema])}
    kind = next((KINDS[type] for type in KINDS if type in types), str)
    word = key.replace("_", "-")
    names = NAMES.get(name, (f"--{word}/--no-{word}" if kind is bool else f"--{word}",))
    summary = (field.description or "").partition("\n\n")[0]
    if tables and tables[0] in MODELS:
        summary = summary.replace("the model", MODELS[tables[0]])
        summary = summary.replace("STEPSPEC_LARGE", f"STEPSPEC_{tables[0].upper()}")
    option = Option(
        *names,
        help=summary.replace("``", "`"),
        metavar=METAVARS.get(key),
        show_default=False,
        autocompletion=COMPLETIONS.get(name),
    )
    long = names[0].partition("/")[0]
    parse = PARSERS.get(name, lambda value: value)
    return Flag(place, long, Annotated[kind | None, option], parse)
