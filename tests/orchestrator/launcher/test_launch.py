from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import re
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest

from stepspec.orchestrator.errors import ConfigurationError, ServerDied, ServerNotReady, install_command
from stepspec.orchestrator.launcher import Progress, Served, Server, launch
from stepspec.orchestrator.launcher.launch import DEPRECATED_ENTRY, ENTRY, vllm_program
from stepspec.orchestrator.launcher.process import failure_lines

from .running import die, gone, members, parent, scripted
from .scripted_server import TRACEBACK

PROGRAM = """
import asyncio, sys
from pathlib import Path
from stepspec.orchestrator.launcher import Server, launch

async def main():
    program = (sys.executable, sys.argv[1])
    servers = [Server(name, "family", served_name=name, program=program) for name in ("large", "small")]
    async with launch(servers, log_dir=Path(sys.argv[2]), grace=0.2) as running:
        print(*(served.pid for served in running.values()), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_yields_ready_servers_by_name_and_leaves_no_process(tmp_path: Path) -> None:
    async with launch([scripted(), scripted(name="small")], log_dir=tmp_path) as running:
        groups = [served.pid for served in running.values()]
        async with aiohttp.ClientSession() as http:
            for name, served in running.items():
                async with http.get(f"{served.base_url}/models") as reply:
                    assert (await reply.json())["data"] == [{"id": f"toy-{name}"}]
        assert running["small"].log == tmp_path / "small.log"
    assert not any(members(group) for group in groups)


async def test_a_server_is_ready_once_it_is_prepared(tmp_path: Path) -> None:
    updates: list[Progress] = []
    ready = asyncio.Event()

    async def prepare(served: Served) -> None:
        assert (served.name, served.served_name) == ("large", "toy-large")
        await ready.wait()

    def on_progress(progress: Progress) -> None:
        updates.append(progress)
        if len(updates) == 3:  # at least one of them after the server has answered, or the test would hang
            ready.set()

    async with launch([scripted()], log_dir=tmp_path, on_progress=on_progress, prepare=prepare):
        assert ready.is_set()
    assert [progress.state for progress in updates] == ["starting"] * (len(updates) - 1) + ["ready"]
    assert [progress.seconds for progress in updates] == sorted(progress.seconds for progress in updates)


async def test_a_server_that_ends_while_it_is_prepared_has_died(tmp_path: Path) -> None:
    async def prepare(served: Served) -> None:
        await die(served)
        await asyncio.Event().wait()

    with pytest.raises(ServerDied, match="the large server ended before it answered, with exit code 7"):
        async with launch([scripted()], log_dir=tmp_path, prepare=prepare):
            pytest.fail("it is gone")


async def test_a_preparation_that_fails_stops_the_server(tmp_path: Path) -> None:
    groups: list[int] = []

    async def prepare(served: Served) -> None:
        groups.append(served.pid)
        raise RuntimeError("a mistake")

    with pytest.raises(RuntimeError, match="a mistake"):
        async with launch([scripted()], log_dir=tmp_path, prepare=prepare):
            pytest.fail("it is not ready")
    assert not members(groups[0])


async def test_a_failed_start_names_the_server_the_reason_and_the_log(tmp_path: Path) -> None:
    with pytest.raises(ServerDied) as failure:
        async with launch([scripted("crash"), scripted("mute", "small")], log_dir=tmp_path):
            pytest.fail("one of them is not running")
    message = str(failure.value)
    assert "the large server ended before it answered, with exit code 3" in message
    assert message.index("ValueError: the weights are rotten") < message.index("Engine core initialization failed")
    assert "entry.py" not in message
    assert str(tmp_path / "large.log") in message


async def test_a_slow_start_ends_at_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(ServerNotReady, match=r"the large server did not answer within 0\.3 s"):
        async with launch([scripted("mute")], log_dir=tmp_path, ready_timeout=0.3):
            pytest.fail("it is not ready")


async def test_another_program_at_the_port_is_not_mistaken_for_the_server(tmp_path: Path) -> None:
    impostor = replace(scripted(), args=("--served-model-name", "another"))
    with pytest.raises(ServerNotReady):
        async with launch([impostor], log_dir=tmp_path, ready_timeout=0.7):
            pytest.fail("this is not our model")


async def test_a_program_that_cannot_be_run_is_a_failed_start(tmp_path: Path) -> None:
    with pytest.raises(ServerDied, match=r"(?s)exit code 127.*No such file"):
        async with launch([replace(scripted(), program=("/nowhere/python",))], log_dir=tmp_path):
            pytest.fail("there is no such program")


async def test_cancelling_ends_children_of_children(tmp_path: Path) -> None:
    groups: list[int] = []
    inside = asyncio.Event()

    async def run() -> None:
        async with launch([scripted("family")], log_dir=tmp_path, grace=0.2) as running:
            groups.extend(served.pid for served in running.values())
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await inside.wait()
    assert len(members(groups[0])) == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await gone(groups[0])


async def test_cancelling_a_start_stops_it(tmp_path: Path) -> None:
    starting = asyncio.Event()

    async def run() -> None:
        async with launch([scripted("mute")], log_dir=tmp_path, on_progress=lambda progress: starting.set()):
            pytest.fail("it never answers")

    task = asyncio.create_task(run())
    await starting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
async def test_a_killed_parent_leaves_no_orphans(number: int, tmp_path: Path) -> None:
    script = Path(__file__).with_name("scripted_server.py")
    vllm_program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, str(script), str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert vllm_program.stdout is not None
    groups = [int(pid) for pid in (await vllm_program.stdout.readline()).split()]
    assert [len(members(group)) for group in groups] == [2, 2]
    vllm_program.send_signal(number)
    await vllm_program.wait()
    assert all([await gone(group) for group in groups])


async def test_a_killed_guard_takes_the_server_along(tmp_path: Path) -> None:
    groups: list[int] = []

    async def run() -> None:
        async with launch([scripted("family")], log_dir=tmp_path) as running:
            groups.append(running["large"].pid)
            os.kill(parent(running["large"].pid), signal.SIGKILL)
            await asyncio.Event().wait()

    with pytest.raises(ServerDied, match="signal SIGKILL"):
        await run()
    assert await gone(groups[0])


async def test_a_server_that_dies_in_the_block_cancels_it_with_an_error(tmp_path: Path) -> None:
    async def run() -> None:
        async with launch([scripted(), scripted(name="small")], log_dir=tmp_path) as running:
            running["small"].log.unlink()  # The death is reported all the same.
            await die(running["small"])
            await asyncio.Event().wait()

    with pytest.raises(ServerDied, match="the small server ended while it was in use, with exit code 7, silently"):
        await run()
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


async def test_the_blocks_own_error_is_raised(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with launch([scripted()], log_dir=tmp_path):
            raise LookupError("mine")


async def test_a_port_may_be_chosen_unless_it_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}"):
            async with launch([scripted(port=port)], log_dir=tmp_path):
                pytest.fail("somebody else has this port")
    async with launch([scripted(port=port)], log_dir=tmp_path) as running:
        assert running["large"].base_url == f"http://127.0.0.1:{port}/v1"


async def test_logs_without_a_folder_of_their_own_are_kept_only_after_a_failure() -> None:
    async with launch([scripted()]) as running:
        log = running["large"].log
        assert log.exists()
    assert not log.parent.exists()
    with pytest.raises(ServerDied) as failure:
        async with launch([scripted("crash")]):
            pytest.fail("it is not running")
    log = Path(str(failure.value).rpartition("its log: ")[2])
    assert "rotten" in log.read_text()
    log.unlink()
    log.parent.rmdir()


async def test_names_are_unique() -> None:
    with pytest.raises(ConfigurationError, match="share a name"):
        async with launch([scripted(), scripted()]):
            pytest.fail("which one is large?")


async def test_a_missing_vllm_is_an_error_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", nothing)
    with pytest.raises(ConfigurationError, match=re.escape(f"{install_command('vllm')}; without a GPU")):
        async with launch([Server("large", "anything", served_name="toy")]):
            pytest.fail("there is no vLLM")


def test_a_model_is_served_by_the_command_where_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, command = tmp_path / "python", tmp_path / "vllm"
    installed = {"vllm": "0.32.0"}

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert vllm_program(str(python))[:2] == (str(python), "-m")  # There is no command.
    command.touch()
    assert vllm_program(str(python)) == (str(command), "serve")
    server = Server("large", "org/big", "big", program=vllm_program(str(python)))
    assert server.command(8000)[:6] == (str(command), "serve", "org/big", "--served-model-name", "big", "--host")
    installed.clear()  # As vLLM's CPU build is installed, whose command fails for that reason.
    module = vllm_program(str(python))
    assert module[:2] == (str(python), "-m")
    assert Server("large", "org/big", "big", program=module).command(8000)[3:5] == ("--model", "org/big")


def test_the_module_that_is_no_longer_meant_is_for_a_vllm_that_has_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [str(tmp_path / "vllm")]
    found = SimpleNamespace(submodule_search_locations=places)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert vllm_program("/nowhere/python") == ("/nowhere/python", "-m", DEPRECATED_ENTRY)
    entry = tmp_path / Path(*ENTRY.split(".")).with_suffix(".py")
    entry.parent.mkdir(parents=True)
    entry.touch()
    assert vllm_program("/nowhere/python") == ("/nowhere/python", "-m", ENTRY)


VALIDATION = """\
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "runpy.py", line 198, in _run_module_as_main
(APIServer pid=7) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
(APIServer pid=7)   Value error, Invalid repository ID or local directory specified: '/nowhere'.
(APIServer pid=7) Please verify the following requirements:
"""


def test_root_cause_first_without_frames_and_prefixes() -> None:
    assert failure_lines(TRACEBACK) == [
        "ValueError: the weights are rotten",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]


def test_an_error_of_several_lines_keeps_them() -> None:
    assert failure_lines(VALIDATION) == [
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "  Value error, Invalid repository ID or local directory specified: '/nowhere'.",
    ]


def test_a_repeated_failure_is_reported_once() -> None:
    assert failure_lines(TRACEBACK * 2) == failure_lines(TRACEBACK)


def test_a_refused_argument_is_a_reason() -> None:
    log = "usage: api_server.py [-h] [--headless]\n\napi_server.py: error: argument --port: invalid int value: 'x'\n"
    assert failure_lines(log) == ["api_server.py: error: argument --port: invalid int value: 'x'"]


def test_without_an_error_the_last_lines_have_to_do() -> None:
    log = "".join(f"(Worker pid=1) INFO 11-21 13:05:07 [a.py:1] line {n}\n\n" for n in range(20))
    assert failure_lines(log, limit=2) == ["line 18", "line 19"]
    assert failure_lines("") == []


def test_a_long_line_is_cut() -> None:
    (line,) = failure_lines("ValueError: " + "x" * 10_000)
    assert line.startswith("ValueError: xxx")
    assert line.endswith("x...")
    assert len(line) == 300
