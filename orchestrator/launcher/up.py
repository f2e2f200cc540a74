"""Servers that stand ready for other programs: how they are told of, and how long they stay."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from ..endpoints.client import Connection
from ..endpoints.settings import Endpoint
from ..errors import EndpointError
from . import hybrids, vllm_flags
from .commands import as_toml, outline, servers, settings, shown, waves
from .launch import Progress, RunningPair, Served, launch
from .machine import allotted, look
from .pair import Pair, StartedServer, load
from .preflight import refuse, warnings
from .vllm_flags import ParsedFlags

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def as_json(standing: Mapping[str, RunningPair]) -> str:
    """Return one line: an object by role."""
    return json.dumps({role: asdict(one) for role, one in standing.items()})


def as_text(standing: Mapping[str, RunningPair]) -> str:
    """Return a line for each server: its role and its base URL."""
    width = max(map(len, standing))
    return "\n".join(f"{role:<{width}}  {one.base_url}" for role, one in standing.items())


async def until_signalled(work: Coroutine[None, None, None]) -> None:
    """Do *work*; a signal that asks us to stop cancels it, and that is no error."""
    task = asyncio.create_task(work)
    loop = asyncio.get_running_loop()
    for number in STOPPING:
        loop.add_signal_handler(number, task.cancel)
    try:
        await asyncio.wait({task})
    finally:
        for number in STOPPING:
            loop.remove_signal_handler(number)
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()


@contextmanager
def starting(console: Console) -> Generator[Callable[[Progress], None]]:
    """Draw a line that what we yield keeps up to date; where there is no terminal, say only who is ready."""
    seen: dict[str, Progress] = {}
    with console.status("starting vLLM") as status:

        def tell(progress: Progress) -> None:
            seen[progress.name] = progress
            if progress.state == "ready":
                console.print(f"{progress.name} is ready after {progress.seconds:.0f} s", style="dim")
            status.update(line(seen.values()))

        yield tell


def line(seen: Iterable[Progress]) -> str:
    """Say who is still starting, and since when."""
    waiting = [progress for progress in seen if progress.state == "starting"]
    return (
        f"starting {' and '.join(p.name for p in waiting)}: {max(p.seconds for p in waiting):.0f} s" if waiting else ""
    )


USE = "These are settings of a solver: write them to a file, and name it in STEPSPEC_CONFIG."


def checked(path: Path, console: Console, methods: Collection[str] = ()) -> Pair:
    """
    Read the pair at *path*; print what may hardly work well, and what could not be checked.

    Raise `ConfigurationError` if it cannot work, or a model is to be served under the name of one of the *methods*.
    Hybrids among the models are given the flags that their prefix cache needs, where the installed vLLM has them.
    """
    pair = load(path)
    facts = look(pair)
    unchecked = refuse(pair, facts, methods)
    cured = _with_known_flags(pair, hybrids.wanted(pair, facts), console)
    for warning in (*warnings(pair, facts), *hybrids.warnings(pair, facts)):
        _say(console, f"warning: {warning}", "yellow")
    for each in unchecked:
        _say(console, f"not checked: {each}")
    return cured


def _with_known_flags(pair: Pair, blocked: Mapping[str, StartedServer], console: Console) -> Pair:
    """Return *pair* with the flags for the hybrids *blocked*; refuse those of its own that vLLM refuses."""
    cured = hybrids.cured(pair, blocked)
    if not (asked := vllm_flags.lines(cured)):
        return pair
    with console.status("asking vLLM about its flags"):
        parsed = vllm_flags.ask(asked)
    if isinstance(parsed, str):
        _say(console, f"not checked: the flags of {' and '.join(asked)}: vLLM could not be asked ({parsed})")
        return pair
    spelled = " ".join(f"--{flag} {value}" for flag, value in hybrids.CURE.items())
    if blocked and not parsed.flags >= hybrids.CURE.keys():
        lacking = " and ".join(blocked)
        _say(
            console,
            f"warning: {lacking}: a hybrid, whose prefixes this vLLM caches in large blocks: no {spelled}",
            "yellow",
        )
        cured, asked = pair, vllm_flags.lines(pair)
        parsed = vllm_flags.ask(asked) if asked else ParsedFlags(parsed.flags, {})
        if isinstance(parsed, str):
            return pair
    vllm_flags.refuse(cured, parsed)
    for path in blocked if cured is not pair else ():
        _say(console, f"{path}: a hybrid: {spelled}, so that its prefix cache follows the chain")
    return cured


def _say(console: Console, line: str, style: str = "dim") -> None:
    console.print(line, style=style, highlight=False, soft_wrap=True)


def commands(pair: Pair) -> str:
    """Return every command line as a shell would take it, a line each; what is not started is a comment."""
    lines = [
        f"# {path} is a pair: {one.policy} over {path}.small and {path}.large, {one.ahead} ahead"
        for path, one in pair.nested.items()
    ]
    lines += [f"# {path} runs at {', '.join(one.urls)}" for path, one in pair.connected.items()]
    return "\n".join([*lines, *map(shown, servers(pair, allotted(os.environ)))])


async def up(pair: Pair, console: Console, *, json_output: bool = False, log_dir: Path | None = None) -> None:
    """
    Bring *pair* up, print where its models are, and return when a signal has stopped the servers.

    What is printed are the settings of a solver over them; with *json_output* it is one line, an object by role, and
    tells of the servers. Progress goes to *console*.
    """

    async def stay() -> None:
        async with AsyncExitStack() as stack:
            with starting(console) as tell:
                standing = await stack.enter_async_context(running(pair, log_dir=log_dir, on_progress=tell))
            told = outline(pair, lambda path: asdict(standing[path]))
            print(json.dumps(told) if json_output else as_toml(settings(pair, standing)), flush=True)
            for said in _said(pair, settings_printed=not json_output):
                console.print(said, style="dim", highlight=False, soft_wrap=True)
            await asyncio.Event().wait()

    await until_signalled(stay())


def _said(pair: Pair, *, settings_printed: bool) -> Iterator[str]:
    """What has to be known of what was printed, and how it ends."""
    if settings_printed:
        yield USE
        for path, one in pair.connected.items():
            if one.api_key:
                yield f"The key of {path} is not among them: set STEPSPEC_{path.upper().replace('.', '__')}__API_KEY."
    if pair.started:
        yield "Ctrl-C stops them."


@asynccontextmanager
async def running(
    pair: Pair,
    *,
    log_dir: Path | None = None,
    on_progress: Callable[[Progress], object] = lambda progress: None,
) -> AsyncGenerator[Mapping[str, RunningPair]]:
    """
    Yield every model by its path once all answer. Servers that share a card are started one after the other.

    Raise an `EndpointError` if one that should run does not, before anything is started, and `ServerError` as `launch`
    does.
    """
    met = dict(
        zip(
            pair.connected,
            await asyncio.gather(*(_meet(path, one) for path, one in pair.connected.items())),
            strict=True,
        )
    )
    async with AsyncExitStack() as stack:
        served: dict[str, Served] = {}
        for wave in waves(pair, allotted(os.environ)):
            launching = launch(wave, log_dir=log_dir, ready_timeout=pair.ready_seconds, on_progress=on_progress)
            served |= await stack.enter_async_context(launching)
        started = {path: _standing(one, served[path]) for path, one in pair.started.items()}
        yield {path: met[path] if path in met else started[path] for path in pair.models}


async def _meet(path: str, endpoint: Endpoint) -> RunningPair:
    """Ask every server of *endpoint* which model it serves."""
    try:
        models = [await _served_by(each) for each in endpoint.each]
    except EndpointError as exc:
        raise type(exc)(exc.cause, role=path, url=exc.url, verb=exc.verb) from exc
    return RunningPair(",".join(each.v1 for each in endpoint.each), models[0], endpoint.suffix_scoring)


async def _served_by(endpoint: Endpoint) -> str:
    connection = Connection(endpoint)
    try:
        return await connection.chosen()
    finally:
        await connection.close()


def _standing(one: StartedServer, served: Served) -> RunningPair:
    return RunningPair(
        base_url=served.base_url,
        model=served.served_name,
        suffix_scoring=one.suffix_scoring,
        speculation=one.speculation.method,
        pid=served.pid,
        log=str(served.log),
    )
