"""
The flags that several commands have: each is declared once here, with one spelling, one meaning and one type.

`with_settings` gives a command the flags that set settings; whatever the command loads then comes from them first.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast, get_type_hints

import orjson
import typer
from pydantic import TypeAdapter

from stepspec import policies
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.run_options import option_types, run_options
from stepspec.setting_sources import CommandLine, Place, with_command_line

from .benchmarks import BENCHMARKS
from .command_line import finite

NUMBERS: Mapping[str, type] = {"integer": int, "number": float}


def complete_policies(incomplete: str) -> list[str]:
    """The policies whose names begin with *incomplete*, for the completion of a shell."""
    return [name for name in policies.METHODS if name.startswith(incomplete)]


def complete_benchmarks(incomplete: str) -> list[str]:
    """The benchmarks whose names begin with *incomplete*, for the completion of a shell."""
    return [name for name in BENCHMARKS if name.startswith(incomplete)]


REPLICAS = "; several replicas are separated by commas."
SmallUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--small", help=f"Base URL of the small model's server{REPLICAS}", metavar="URL"),
]
LargeUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--large", help=f"Base URL of the large model's server{REPLICAS}", metavar="URL"),
]
CriticUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--critic", help="Base URL of the reward model's server, for methods that need one.", metavar="URL"),
]
ARMS_METAVAR = "NAME[:OPTION=VALUE,...]"
BenchmarkName: TypeAlias = Annotated[
    str,
    typer.Argument(help="A benchmark, or a JSONL or Parquet file of problems.", autocompletion=complete_benchmarks),
]
Policies: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        "-p",
        help="A method with its options, or a policy file; may be repeated.",
        metavar=ARMS_METAVAR,
        autocompletion=complete_policies,
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
    int | None, typer.Option("--limit", "-n", min=1, help="Only this number of problems, the first ones.")
]
Concurrency: TypeAlias = Annotated[int, typer.Option(min=1, help="Number of problems solved at the same time.")]
DataFile: TypeAlias = Annotated[
    Path | None, typer.Option(help="A file with the benchmark's columns, JSONL or Parquet, instead of the hub.")
]
ProblemColumn: TypeAlias = Annotated[
    str | None,
    typer.Option("--problem-column", help="Column of the problems in a file of your own.", metavar="NAME"),
]
AnswerColumn: TypeAlias = Annotated[
    str | None, typer.Option("--answer-column", help="Column of the answers in a file of your own.", metavar="NAME")
]
MetricName: TypeAlias = Annotated[
    str | None,
    typer.Option("--metric", help="How answers of a file of your own are graded: math, number, choice or exact."),
]
PromptName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        help="Template of the problems of a file of your own: eval.boxed, eval.choice, a file with {problem}, or none.",
        metavar="NAME",
    ),
]
ProblemsFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--problems", help="A file of problems, one a line: a text, or JSON with its problem.", metavar="FILE"
    ),
]
Output: TypeAlias = Annotated[Path | None, typer.Option("--output", "-o", help="The file to write.", metavar="FILE")]
Testbed: TypeAlias = Annotated[
    bool, typer.Option("--testbed", help="Start the miniature pair on this CPU, and use that.")
]
Pace: TypeAlias = Annotated[str, typer.Option("--profile", help="The simulated speed of the miniature models.")]
Fresh: TypeAlias = Annotated[bool, typer.Option("--fresh", help="Discard what an earlier run left, and begin anew.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


@dataclass(frozen=True, slots=True)
class Flag:
    """
    A flag that sets the setting at *place*.

    *annotation* declares it for typer. *parse* turns what typer made of the words into the value of the setting.
    """

    place: Place
    annotation: Any
    parse: Callable[[Any], Any] = lambda value: value

    @property
    def name(self) -> str:
        """The flag as a user writes it."""
        option = self.annotation.__metadata__[0]
        declared = (option.default, *(option.param_decls or ()))  # typer takes the first name for a default
        return next(str(name).partition("/")[0] for name in declared if str(name).startswith("--"))


def _key(role: str, model: str) -> Flag:
    words = (
        f"API key of the {model} model's server. Other users of this machine can see it; "
        f"STEPSPEC_{role.upper()}__API_KEY is safer."
    )
    option = typer.Option(f"--{role}-api-key", help=words, metavar="KEY", show_envvar=False)
    return Flag((role, "api_key"), Annotated[str | None, option])


SERVERS: Mapping[str, Flag] = {
    "small": Flag(("small", "url"), SmallUrl),
    "large": Flag(("large", "url"), LargeUrl),
    "critic": Flag(("critic", "url"), CriticUrl),
    "small_api_key": _key("small", "small"),
    "large_api_key": _key("large", "large"),
    "critic_api_key": _key("critic", "reward"),
}
PAIR: Mapping[str, Flag] = {name: flag for name, flag in SERVERS.items() if not name.startswith("critic")}
KEYS: Mapping[str, Flag] = {name: flag for name, flag in PAIR.items() if name.endswith("key")}
SAMPLING: Mapping[str, Flag] = {
    "temperature": Flag(
        ("sampling", "temperature"),
        Annotated[float | None, typer.Option("--temperature", help="Sampling temperature; 0 is greedy.")],
    ),
    "top_p": Flag(
        ("sampling", "top_p"),
        Annotated[float | None, typer.Option("--top-p", help="Sample from the likeliest tokens of this total.")],
    ),
    "top_k": Flag(
        ("sampling", "top_k"),
        Annotated[int | None, typer.Option("--top-k", help="Sample from this number of likeliest tokens; 0: all.")],
    ),
}
SEED: Mapping[str, Flag] = {
    "seed": Flag(
        ("sampling", "seed"),
        Annotated[
            int | None, typer.Option("--seed", help="Seed of the sampling; the same seed writes the same chain.")
        ],
    ),
}
BUDGET: Mapping[str, Flag] = {
    "max_tokens": Flag(
        ("budget", "tokens"),
        Annotated[
            int | None,
            typer.Option("--max-tokens", help="Budget of a run in tokens, for thinking and answer together."),
        ],
    ),
    "max_steps": Flag(
        ("budget", "steps"),
        Annotated[int | None, typer.Option("--max-steps", help="Budget of a run in thinking steps.")],
    ),
    "max_seconds": Flag(
        ("budget", "seconds"),
        Annotated[float | None, typer.Option("--max-seconds", help="Budget of a run in seconds of wall time.")],
    ),
}
CONFIG = "config"
CONFIG_FLAG = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Settings file; it comes before the one that STEPSPEC_CONFIG names, and before stepspec.toml.",
        metavar="FILE",
    ),
]


def with_settings(
    command: str,
    *groups: Mapping[str, Flag],
    before: str | None = None,
    help: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """
    Give the function of a *command* ``--config`` and flags for settings.

    These are the flags of the *groups*, and those of the run options that name the command; see `RunOption`. They stand
    *before* the parameter of that name in ``--help``, or at the end. *help* replaces the help of some run options. The
    function loads its settings as usual: while it runs, they come from the flags first.
    """
    runs = {
        name: _run_flag(name, (help or {}).get(name)) for name, it in run_options().items() if command in it.commands
    }
    flags: dict[str, Flag] = {name: flag for group in (*groups[:1], runs, *groups[1:]) for name, flag in group.items()}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        signature, hints = inspect.signature(function), get_type_hints(function, include_extras=True)
        added = [_parameter(name, flag.annotation) for name, flag in flags.items()]
        added.append(_parameter(CONFIG, CONFIG_FLAG))
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.name == before:
                parameters += added
            parameters.append(parameter.replace(annotation=hints[parameter.name], kind=parameter.KEYWORD_ONLY))
        if before is None:
            parameters += added

        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            config = arguments.pop(CONFIG, None)
            words = {name: arguments.pop(name, None) for name in flags}
            with with_command_line(read_flags(flags, words, config)):
                function(**arguments)

        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": None}
        return run

    return decorate


def read_flags(flags: Mapping[str, Flag], words: Mapping[str, Any], config: Path | None = None) -> CommandLine:
    """Put the *words* of the *flags* in the places of their settings; those that are None, or no words, set nothing."""
    values: dict[str, Any] = {}
    names: dict[Place, str] = {}
    for name, flag in flags.items():
        if words.get(name) in (None, []):
            continue
        value = flag.parse(words[name])
        finite(flag.name, value)
        *tables, last = flag.place
        table = values
        for key in tables:
            table = table.setdefault(key, {})
        table[last] = value
        names[flag.place] = flag.name
        if isinstance(value, dict):
            names |= {(*flag.place, key): f"{flag.name} {key}" for key in cast("dict[str, Any]", value)}
    return CommandLine(values, names, config)


def parse_options(words: Sequence[str] | None) -> dict[str, Any]:
    """Parse the values of ``--option``."""
    return dict(map(_parse_option, words or ()))


def _parse_option(word: str) -> tuple[str, Any]:
    """Parse ``name=value``; a value that is not JSON is a string."""
    name, equals, value = word.partition("=")
    if not equals:
        raise ConfigurationError(f"--option {word!r}: write it as NAME=VALUE")
    try:
        return name.strip(), orjson.loads(value)
    except orjson.JSONDecodeError:
        return name.strip(), value


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _run_flag(name: str, help: str | None) -> Flag:
    """Derive the flag of the run option *name* from its declaration."""
    option, schema = run_options()[name], TypeAdapter(option_types()[name]).json_schema()
    declared, words = option.flags or (f"--{name.replace('_', '-')}",), help or option.help
    kinds = {kind.get("type"): kind for kind in schema.get("anyOf", [schema])}
    if "object" in kinds:
        return Flag(
            (name,),
            Annotated[list[str] | None, typer.Option(*declared, help=words, metavar="NAME=VALUE")],
            parse_options,
        )
    if "array" in kinds:
        return Flag((name,), Annotated[list[str] | None, typer.Option(*declared, help=words)], _unescape_all)
    if "boolean" in kinds:
        both = (*declared[:-1], f"{declared[-1]}/--no-{declared[-1].removeprefix('--')}")
        return Flag((name,), Annotated[bool | None, typer.Option(*both, help=words)])
    for kind, number in NUMBERS.items():
        if (limits := kinds.get(kind)) is not None:
            most = limits.get("maximum", limits.get("exclusiveMaximum"))
            least = limits.get("minimum")
            return Flag((name,), Annotated[number | None, typer.Option(*declared, help=words, min=least, max=most)])
    complete = complete_policies if name == "policy" else None
    return Flag((name,), Annotated[str | None, typer.Option(*declared, help=words, autocompletion=complete)])


def _unescape_all(texts: Sequence[str]) -> list[str]:
    return [_unescape(text) for text in texts]


def _unescape(text: str) -> str:
    r"""Replace ``\n`` and ``\t`` as typed on a command line."""
    return text.replace("\\n", "\n").replace("\\t", "\t")
