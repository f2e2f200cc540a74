"""The command ``up`` over scripted servers of the testbed."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import tomllib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rich.console import Console

from stepspec.evals.testbed.servers import PAIR, solver_settings
from stepspec.servers.launcher import Served, launch
from stepspec.servers.launcher.up import STOP_SIGNALS, show_progress, up
from stepspec.settings import load

from ...servers.launcher.running import members, scripted

ROLES = [model.name for model in PAIR]


class Stand:
    """Scripted servers in the place of vLLM's."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.served = dict[str, Served]()

    async def up(self, *roles: str, json_output: bool = False) -> None:
        console = Console(stderr=True)
        await up(self.running(roles), solver_settings, console, json_output=json_output)

    @asynccontextmanager
    async def running(self, roles: Sequence[str]) -> AsyncGenerator[Mapping[str, Served]]:
        async with launch([scripted(name=role) for role in roles or ROLES]) as served:
            self.served |= served
            asyncio.get_running_loop().call_soon(self.ready.set)
            yield served

    async def signal(self, number: int) -> None:
        await self.ready.wait()
        os.kill(os.getpid(), number)

    @property
    def gone(self) -> bool:
        return bool(self.served) and not any(members(one.pid) for one in self.served.values())


@pytest.fixture
def stand() -> Stand:
    return Stand()


@pytest.mark.parametrize("number", STOP_SIGNALS)
async def test_a_signal_stops_the_servers_and_is_no_error(
    stand: Stand, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    await asyncio.gather(stand.up(), stand.signal(number))
    assert stand.gone
    large, small = (stand.served[name].base_url for name in ("large", "small"))
    assert tomllib.loads(capsys.readouterr().out) == {
        "large": {"url": large, "suffix_scoring": True},
        "small": {"url": small, "suffix_scoring": False},
    }


async def test_what_is_printed_is_a_settings_file(
    stand: Stand, nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await asyncio.gather(stand.up(), stand.signal(signal.SIGTERM))
    (nowhere / "stepspec.toml").write_text(capsys.readouterr().out)
    settings = load()
    assert settings.large is not None
    assert settings.small is not None
    assert settings.large.v1 == stand.served["large"].base_url
    assert settings.small.v1 == stand.served["small"].base_url
    assert (settings.large.suffix_scoring, settings.small.suffix_scoring) == (True, False)


async def test_prints_one_line_of_json_with_every_server(
    stand: Stand, capsys: pytest.CaptureFixture[str]
) -> None:
    await asyncio.gather(
        stand.up("small-other", json_output=True),
        stand.signal(signal.SIGTERM),
    )
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    one = stand.served["small-other"]
    assert json.loads(out) == {
        "small-other": {
            "base_url": one.base_url,
            "model": "toy-small-other",
            "pid": one.pid,
            "log": str(one.log),
        }
    }


async def test_cancelled_from_outside_it_stops_the_servers_and_stays_cancelled(
    stand: Stand,
) -> None:
    task = asyncio.create_task(stand.up())
    await stand.ready.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stand.gone


def test_without_a_terminal_only_ready_servers_are_reported() -> None:
    output = io.StringIO()
    with show_progress(Console(file=output)) as tell:
        tell("small")
    assert output.getvalue().split("\n", 1) == ["small is ready", "\n"]
