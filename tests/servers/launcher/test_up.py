"""A pair is started, reported and stopped."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import tomllib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.errors import ConfigurationError, ServerDied
from stepspec.servers.launcher import ServerCommand
from stepspec.servers.launcher import up as module
from stepspec.servers.launcher.commands import solver_settings
from stepspec.servers.launcher.pair import Pair
from stepspec.servers.launcher.up import command_lines, load_checked, running, up

from .running import members, scripted

CONSOLE = Console(quiet=True)
PAIR = Pair.model_validate(
    {"large": {"model": "big", "speculation": {"method": "ngram"}}, "small": {"model": "tiny"}}
)
MODEL = {"model": "any"}
ON_ONE_CARD = Pair.model_validate({"large": MODEL, "small": MODEL})


@pytest.fixture
def waves(monkeypatch: pytest.MonkeyPatch) -> list[list[ServerCommand]]:
    """Scripted servers in the place of vLLM's, in waves that the test chooses."""
    chosen = [[scripted()], [scripted(name="small")]]

    def waves(*_: object) -> list[list[ServerCommand]]:
        return chosen

    monkeypatch.setattr(module, "waves", waves)
    return chosen


async def test_waves_start_in_order_are_warmed_up_and_reported(
    waves: list[list[ServerCommand]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready: list[tuple[str, bool]] = []
    warmed: list[Endpoint] = []

    async def warm_up(settings: Endpoint) -> None:
        warmed.append(settings)

    def on_ready(name: str) -> None:
        small_has_begun = (tmp_path / "small.log").exists()
        ready.append((name, small_has_begun))

    @contextmanager
    def show_progress(console: Console) -> Generator[Callable[[str], None]]:
        assert console is CONSOLE
        yield on_ready

    monkeypatch.setattr(module, "warm_up", warm_up)
    monkeypatch.setattr(module, "show_progress", show_progress)
    async with running(PAIR, CONSOLE, log_dir=tmp_path) as standing:
        large = standing["large"]
        small = standing["small"]
        assert (large.served_name, small.served_name) == ("toy-large", "toy-small")
        assert large.log == tmp_path / "large.log"
        pids = [large.pid, small.pid]
        assert all(members(pid) for pid in pids)
    assert ready == [("large", False), ("small", True)]
    assert [(one.role, one.model, one.v1) for one in warmed] == [
        ("large", "toy-large", large.base_url),
        ("small", "toy-small", small.base_url),
    ]
    assert not any(members(pid) for pid in pids)


async def test_a_second_wave_that_fails_takes_the_first_along(
    waves: list[list[ServerCommand]], tmp_path: Path
) -> None:
    waves[1] = [scripted("crash", "small")]
    with pytest.raises(ServerDied, match="the small server ended before it answered"):
        async with running(PAIR, CONSOLE, log_dir=tmp_path):
            pytest.fail("one of them is not running")


async def test_a_pair_is_reported_and_stopped_by_a_signal(
    waves: list[list[ServerCommand]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outputs = list[str]()
    asyncio.get_running_loop().call_later(0, _collect_output, capsys, outputs)
    await started(CONSOLE, tmp_path, json_output=True)
    models = json.loads(outputs[0])
    assert {role: one["model"] for role, one in models.items()} == {
        "large": "toy-large",
        "small": "toy-small",
    }
    assert not any(members(one["pid"]) for one in models.values())
    assert sorted(os.listdir(tmp_path)) == ["large.log", "small.log"]


async def test_notes_are_separate_from_the_settings_of_a_solver(
    waves: list[list[ServerCommand]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = list[str]()
    asyncio.get_running_loop().call_later(0, _collect_output, capsys, outputs)
    console = Console(file=io.StringIO(), width=200)
    await started(console, tmp_path)
    shown = cast("io.StringIO", console.file).getvalue()
    settings = tomllib.loads(outputs[0])
    assert settings.keys() == {"large", "small"}
    assert all(url.startswith("http://127.0.0.1:") for url in settings.values())
    assert "name it with --config" in shown
    assert "Ctrl-C stops the servers." in shown


async def started(console: Console, logs: Path, *, json_output: bool = False) -> None:
    """Start the servers of a pair, and return when a signal has stopped them."""
    starting = running(ON_ONE_CARD, console, log_dir=logs)
    await up(starting, partial(solver_settings, ON_ONE_CARD), console, json_output=json_output)


def _collect_output(capsys: pytest.CaptureFixture[str], outputs: list[str]) -> None:
    """Signal ourselves once something was printed; look again until then."""
    if printed := capsys.readouterr().out:
        outputs.append(printed)
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        asyncio.get_running_loop().call_later(0.02, _collect_output, capsys, outputs)


def test_a_file_is_checked_and_its_commands_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    file = tmp_path / "pair.toml"
    file.write_text(
        '[large]\nmodel = "org/big"\nmemory = 0.5\n[small]\nmodel = "org/tiny"\ngpus = []\n'
    )
    pair = load_checked(file)
    command, small, then = command_lines(pair).splitlines()
    assert command.startswith("CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0 ")
    assert "--model org/big" in command
    urls = [
        f"http://127.0.0.1:{line.split('--port ')[1].split()[0]}/v1" for line in (command, small)
    ]
    assert then == f'# then: stepspec solve "..." --large {urls[0]} --small {urls[1]}'
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,4")
    load_checked(file)
    assert "CUDA_VISIBLE_DEVICES=5 " in command_lines(pair)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigurationError, match="large: there is no GPU 0: 0 may be used"):
        load_checked(file)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    comments = [line for line in command_lines(ON_ONE_CARD).splitlines() if line.startswith("#")]
    assert comments[0] == "# when large can be used, on the same cards:"
    assert comments[1].startswith("# then: stepspec solve")
    assert len(comments) == 2
    file.write_text('[large]\nmodel = "./gone"\n[small]\nmodel = "org/tiny"\ngpus = [1]\n')
    with pytest.raises(ConfigurationError, match=f"large.model: no model at {tmp_path}/gone"):
        load_checked(file)
