"""A pair is brought up, told of and taken down."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from rich.console import Console

from stepspec.orchestrator.errors import ConfigurationError, EndpointUnavailable, ServerDied
from stepspec.orchestrator.serving import Server, launch
from stepspec.orchestrator.serving import up as module
from stepspec.orchestrator.serving.pair import Pair
from stepspec.orchestrator.serving.standing import Standing
from stepspec.orchestrator.serving.up import checked, commands, running, up

from .running import members, scripted

CONSOLE = Console(quiet=True)
PAIR = Pair.model_validate({"large": {"model": "big", "speculation": "ngram"}, "small": {"model": "tiny"}})


@pytest.fixture
def waves(monkeypatch: pytest.MonkeyPatch) -> list[list[Server]]:
    """Scripted servers in the place of vLLM's, in waves that the test chooses."""
    chosen = [[scripted()], [scripted(name="small")]]
    monkeypatch.setattr(module, "waves", lambda pair: chosen)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    return chosen


async def test_waves_follow_each_other_and_all_are_told_of(waves: list[list[Server]], tmp_path: Path) -> None:
    ready: list[tuple[str, str]] = []
    async with running(PAIR, log_dir=tmp_path, on_progress=lambda one: ready.append((one.name, one.state))) as standing:
        large, small = standing["large"], standing["small"]
        assert (large.model, large.speculation, small.speculation) == ("toy-large", "ngram", "none")
        assert large.log == str(tmp_path / "large.log")
        pids = [one.pid or 0 for one in (large, small)]
        assert all(members(pid) for pid in pids)
    assert ready.index(("large", "ready")) < ready.index(("small", "starting"))
    assert not any(members(pid) for pid in pids)


async def test_a_second_wave_that_fails_takes_the_first_along(waves: list[list[Server]], tmp_path: Path) -> None:
    waves[1] = [scripted("crash", "small")]
    pids: list[int] = []
    with pytest.raises(ServerDied, match="the small server ended before it answered"):
        async with running(PAIR, log_dir=tmp_path, on_progress=lambda one: pids.append(0)):
            pytest.fail("one of them is not running")


async def test_servers_that_run_already_are_met_and_left_alone(tmp_path: Path) -> None:
    async with launch([scripted(), scripted(name="small")], log_dir=tmp_path) as served:
        roles = {name: {"url": one.base_url} for name, one in served.items()}
        async with running(Pair.model_validate(roles)) as standing:
            assert standing == {name: Standing(one.base_url, f"toy-{name}") for name, one in served.items()}
        assert all(members(one.pid) for one in served.values())


async def test_a_server_that_should_run_is_asked_before_any_is_started(
    waves: list[list[Server]], tmp_path: Path
) -> None:
    mixed = Pair.model_validate({"large": {"model": "big"}, "small": {"url": "http://127.0.0.1:9", "retries": 0}})
    with pytest.raises(EndpointUnavailable, match=r"small model at http://127\.0\.0\.1:9"):
        async with running(mixed, log_dir=tmp_path):
            pytest.fail("nobody is there")
    assert not (tmp_path / "large.log").exists()


@pytest.mark.parametrize("json_output", [False, True])
async def test_it_stays_up_until_a_signal(
    json_output: bool, waves: list[list[Server]], capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.get_running_loop().call_later(0, _when_told, capsys, told := list[str]())
    await up(PAIR, CONSOLE, json_output=json_output)
    if json_output:
        assert {role: one["speculation"] for role, one in json.loads(told[0]).items()} == {
            "large": "ngram",
            "small": "none",
        }
    else:
        assert [line.split()[0] for line in told[0].splitlines()] == ["large", "small"]


def _when_told(capsys: pytest.CaptureFixture[str], told: list[str]) -> None:
    """Signal ourselves once something was printed; look again until then."""
    if printed := capsys.readouterr().out:
        told.append(printed)
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        asyncio.get_running_loop().call_later(0.02, _when_told, capsys, told)


def test_a_file_is_checked_and_what_could_not_be_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pair.toml"
    file.write_text('card = 24\n[large]\nmodel = "org/big"\nmemory = 0.5\n[small]\nurl = "http://a:1,http://b:1"\n')
    pair = checked(file, Console(width=200))
    assert "not checked: large: the memory and the vocabulary of org/big" in capsys.readouterr().out
    comment, command = commands(pair).splitlines()
    assert comment == "# small runs at http://a:1, http://b:1"
    assert command.startswith("CUDA_VISIBLE_DEVICES=0 ")
    assert "--model org/big" in command
    file.write_text('[large]\nmodel = "./gone"\n[small]\nmodel = "org/tiny"\ngpus = [1]\n')
    with pytest.raises(ConfigurationError, match=f"large.model: no model at {tmp_path}/gone"):
        checked(file, CONSOLE)
