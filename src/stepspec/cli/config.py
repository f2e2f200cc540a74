"""The commands about settings: ``config show``, ``path`` and ``init``, and ``profile``, which derives some of runs."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import urlsplit, urlunsplit

import typer
from pydantic import BaseModel, SecretStr
from rich.text import Text

from stepspec.evals.calibration import cue_profile as profiling
from stepspec.evals.command_line import add_command, new_app, only_without_testbed, progress_bars, writable
from stepspec.evals.flags import BUDGET, PAIR, SAMPLING, SEED, SERVERS, Json, with_settings
from stepspec.evals.testbed.solving_pair import pair_solver
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.toml import one_line

from .. import settings as configuration
from ..api import Solver
from ..setting_sources import DEFAULT_FILE, Layer, Place, config_file, layers, origin
from ..settings import Settings
from .terminal import print_json, stderr, stdout, wait

SHOW_EXAMPLES = """
Examples:

  stepspec config show

  stepspec config show --config policy.toml --json | jq '."options.threshold"'

  STEPSPEC_AHEAD=4 stepspec config show --temperature 0
"""

PATH_EXAMPLES = """
Examples:

  stepspec config path

  $EDITOR "$(stepspec config path)"
"""

INIT_EXAMPLES = """
Examples:

  stepspec config init http://localhost:8001/v1 http://localhost:8002/v1

  stepspec config init http://a:8000/v1 http://b:8000/v1 --output pair.toml
"""

TEMPLATE = """\
# Settings of stepspec: `stepspec config show` prints all of them, with where each comes from.
# Flags and STEPSPEC_* variables, such as STEPSPEC_LARGE__API_KEY, come before this file.

policy = "specreason"     # `stepspec policies` lists the methods
# ahead = 2               # drafts beyond the next one to be committed

[small]
url = {small}
# api_key = "..."         # if the server was started with --api-key

[large]
url = {large}
# api_key = "..."
# suffix_scoring = true   # for a server with --enable-scale-out --enable-prompt-tokens-details

# [options]               # of the policy: `stepspec policies specreason`
# threshold = 7

# [sampling]
# temperature = 0.6       # 0 is greedy
# seed = 7                # reproduces the chain

# [budget]
# tokens = 8192           # of a run, thinking and answer together
"""

app = new_app(help="Show where the settings come from, or begin a settings file.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class Shown:
    """One setting: its *value*, without secrets, and where it comes from: the *source*, and its *name* there."""

    value: Any
    source: str
    name: str = ""


@with_settings("serve", SERVERS, SAMPLING, SEED, BUDGET)
def show(json: Json = False) -> None:
    """
    Print every setting with its value and where it comes from: a flag, a variable, a key of a file, or the default.

    API keys are hidden. The flags are those of `solve` and `serve`: with them, show what such a command would use.
    """
    shown = effective(configuration.load(), layers(Settings, {}))
    if json:
        print_json(
            {name: {"value": each.value, "source": each.source, "name": each.name} for name, each in shown.items()}
        )
        return
    rows = [("setting", "value", "from")]
    rows += [
        (name, "none" if each.value is None else one_line(each.value), each.name or each.source)
        for name, each in shown.items()
    ]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, value, source in rows:
        style = "bold" if source == "from" else "dim" if source == "default" else ""
        line = f"{name:<{first}}  {value:<{second}}  {source}"
        stdout.print(Text(line, style), soft_wrap=True)  # a setting is one line, also for grep


def path() -> None:
    """Print the path of the settings file; the exit code is 1 if there is none."""
    found = config_file()
    if found is None:
        stderr.print(f"no settings file: there is no {DEFAULT_FILE} here, and STEPSPEC_CONFIG is not set")
        raise typer.Exit(1)
    stdout.print(str(found.resolve()), markup=False, highlight=False, soft_wrap=True)


def init(
    small: Annotated[str, typer.Argument(help="Base URL of the small model's server.", metavar="SMALL")],
    large: Annotated[str, typer.Argument(help="Base URL of the large model's server.", metavar="LARGE")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write; it must not exist.", metavar="FILE")
    ] = Path(DEFAULT_FILE),
) -> None:
    """Write a settings file for two servers, with the most common other settings as comments."""
    configuration.load(small=small, large=large)  # raises for what is no URL
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE.format(small=one_line(small), large=one_line(large)))
    except FileExistsError as exc:
        raise ConfigurationError(f"{output} exists: edit it, or name another file with --output") from exc
    except OSError as exc:
        raise ConfigurationError(f"--output {output}: {exc.strerror}") from exc
    stderr.print(f"wrote {output}", highlight=False, soft_wrap=True)


def effective(settings: Settings, found: tuple[Layer, ...]) -> Mapping[str, Shown]:
    """All of the *settings* by their dotted names, with the layer of those that were *found*."""
    return {".".join(place): _shown(place, value, found) for place, value in _leaves(settings)}


def _leaves(model: BaseModel) -> Iterator[tuple[Place, object]]:
    for name, value in model:
        if name == "role":  # it follows from the place
            continue
        if isinstance(value, BaseModel):
            yield from (((name, *place), leaf) for place, leaf in _leaves(value))
        elif isinstance(value, dict) and value:
            yield from (((name, str(key)), leaf) for key, leaf in cast("dict[Any, object]", value).items())
        else:
            yield (name,), value


def _shown(place: Place, value: object, found: tuple[Layer, ...]) -> Shown:
    layer = origin(found, place)
    if layer is None or layer.depth(place) < len(place):
        return Shown(_public(value), "default")
    return Shown(_public(value), layer.source, layer.name(place))


def _public(value: object) -> Any:
    """*value* as JSON, without API keys and without passwords in URLs."""
    if isinstance(value, SecretStr):
        return str(value)
    if isinstance(value, BaseModel):
        return _public(value.model_dump())
    if isinstance(value, tuple | list):
        return [_public(each) for each in cast("tuple[object, ...]", value)]
    if isinstance(value, dict):
        return {key: _public(each) for key, each in cast("dict[str, object]", value).items()}
    return _without_password(value) if isinstance(value, str) and "://" in value else value


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    hidden = f"{user.partition(':')[0]}:***" if ":" in user else user
    return urlunsplit(parts._replace(netloc=f"{hidden}{at}{host}"))


add_command(app, show, SHOW_EXAMPLES)
add_command(app, path, PATH_EXAMPLES)
add_command(app, init, INIT_EXAMPLES)


PROFILE_EXAMPLES = """
Examples:

  stepspec profile problems.txt --small http://localhost:8001/v1 \\
      --large http://localhost:8002/v1

  stepspec profile --testbed --limit 200 --output relay.toml

  stepspec solve "What is 6 x 7?" --config relay.toml --small ... --large ...
"""


@with_settings("profile", PAIR, SAMPLING, BUDGET)
def profile_pair(
    problems: Annotated[
        Path | None, typer.Argument(help="A file of problems, one a line: a text, or JSON with its problem.")
    ] = None,
    testbed: Annotated[
        bool, typer.Option("--testbed", help="Use the miniature pair, on problems of its training half.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of problems.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed that selects the testbed's problems.")] = 0,
    least: Annotated[
        int, typer.Option(min=2, help="Minimum number of sentences in which a cue must occur.")
    ] = profiling.LEAST,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the settings for `solve`.", metavar="FILE")
    ] = Path("relay.toml"),
    json: Json = False,
) -> None:
    """
    Find the cues of a pair for the method relay: words after which the small model may finish the sentence.

    The large model solves the problems alone, and the small one scores its text. Use other problems than those of your
    evaluation.
    """
    if testbed == (problems is not None):
        raise ConfigurationError("name a file of problems, or pass --testbed")
    writable("--output", output)
    texts = profiling.load_problems(problems, limit) if problems else profiling.training_problems(limit, seed)
    if testbed:
        only_without_testbed()
    pair = pair_solver("off", stderr, (), seed, problems=0) if testbed else Solver()
    result, origin = wait(_profile(pair, texts, least))
    if json:
        print_json(dataclasses.asdict(result))
    else:
        stdout.print(profiling.table(result))
        stdout.print(profiling.caption(result), style="dim", highlight=False)
    if not result.cues:
        raise typer.Exit(1)
    _write_settings(output, profiling.snippet(result, origin))


async def _profile(
    pair: AbstractAsyncContextManager[Solver], problems: list[str], least: int
) -> tuple[profiling.PairProfile, str]:
    async with pair as solver:
        solver.require_both()
        with progress_bars(stderr) as progress:
            bar = progress.add_task("solving and reading", total=len(problems))
            result = await profiling.profile(solver, problems, least=least, on_problem=lambda: progress.advance(bar))
        names = f"{solver.large.name} with {solver.small.name}"
        return result, f"Found by `stepspec profile` on {datetime.date.today()} for {names}."


def _write_settings(output: Path, settings: str) -> None:
    output.write_text(settings, encoding="utf-8")
    stderr.print(f"wrote {output}: name it with --config, or make it stepspec.toml", highlight=False)
