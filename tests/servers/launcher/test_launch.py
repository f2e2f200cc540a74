"""
Servers as child processes: ready, failed, cancelled, killed; and what their logs say about a
failure.
"""

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
from typing import Any

import aiohttp
import pytest

from stepspec.orchestrator.errors import (
    ConfigurationError,
    ServerDied,
    ServerError,
    ServerNotReady,
    install_command,
)
from stepspec.servers.launcher import Served, ServerCommand, launch
from stepspec.servers.launcher.launch import ENTRY, vllm_program
from stepspec.servers.launcher.process import failure_lines

from .running import SCRIPT, die, gone, members, parent, scripted
from .scripted_server import TRACEBACK

PROGRAM = """
import asyncio, sys
from pathlib import Path
from stepspec.servers.launcher import ServerCommand, launch

async def main():
    program = (sys.executable, sys.argv[1])
    servers = [
        ServerCommand(name, "family", served_name=name, program=program)
        for name in ("large", "small")
    ]
    async with launch(servers, log_dir=Path(sys.argv[2]), grace=0.2) as running:
        print(*(served.pid for served in running.values()), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_ready_servers_are_yielded_by_name_and_leave_no_process(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}"):
            async with launch([scripted(port=port)], log_dir=tmp_path):
                pytest.fail("somebody else has this port")
    async with launch([scripted(port=port), scripted(name="small")], log_dir=tmp_path) as running:
        groups = [served.pid for served in running.values()]
        async with aiohttp.ClientSession() as http:
            for name, served in running.items():
                async with http.get(f"{served.base_url}/models") as reply:
                    assert (await reply.json())["data"] == [{"id": f"toy-{name}"}]
        assert running["large"].base_url == f"http://127.0.0.1:{port}/v1"
        assert running["small"].log == tmp_path / "small.log"
    assert not any(members(group) for group in groups)


async def test_a_server_is_ready_once_it_is_prepared(tmp_path: Path) -> None:
    steps: list[str] = []

    async def prepare(served: Served) -> None:
        assert (served.name, served.served_name) == ("large", "toy-large")
        await asyncio.sleep(0)
        steps.append("prepared")

    def on_ready(name: str) -> None:
        steps.append(f"{name} is ready")

    async with launch([scripted()], log_dir=tmp_path, on_ready=on_ready, prepare=prepare):
        assert steps == ["prepared", "large is ready"]


async def die_early(served: Served) -> None:
    await die(served)
    await asyncio.Event().wait()


async def fail(served: Served) -> None:
    raise RuntimeError(f"a mistake with {served.pid}")


@pytest.mark.parametrize(
    ("server", "options", "error", "words"),
    [
        (
            *(scripted("crash"), {}, ServerDied),
            r"the large server ended before it answered, with exit code 3:\n *ValueError: the"
            r" weights are rotten\n"
            r" *RuntimeError: Engine core initialization failed\. .*\n  its log: .*/large\.log",
        ),
        (
            scripted("mute"),
            {"ready_timeout": 0.3},
            ServerNotReady,
            r"the large server did not answer within 0\.3 s",
        ),
        # Another program at the port is not mistaken for the server.
        (
            scripted(args=("--served-model-name", "another")),
            {"ready_timeout": 0.7},
            ServerNotReady,
            "did not answer",
        ),
        (
            replace(scripted(), program=("/nowhere/python",)),
            {},
            ServerDied,
            r"(?s)exit code 127.*No such file",
        ),
        (
            scripted(),
            {"prepare": die_early},
            ServerDied,
            "the large server ended before it answered, with exit code 7",
        ),
        (scripted(), {"prepare": fail}, RuntimeError, "a mistake with"),
    ],
    ids=[
        "crash",
        "slow",
        "impostor",
        "no program",
        "dies while it is prepared",
        "preparation fails",
    ],
)
async def test_a_server_that_does_not_start_is_an_error_that_stops_it(
    server: ServerCommand,
    options: dict[str, Any],
    error: type[Exception],
    words: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=words) as failure:
        async with launch([server], log_dir=tmp_path, **options):
            pytest.fail("it is not ready")
    if error is RuntimeError:
        assert not members(int(str(failure.value).rpartition(" ")[2]))


@pytest.mark.parametrize("ready", [True, False])
async def test_cancelling_ends_children_of_children_and_a_start(
    ready: bool, tmp_path: Path
) -> None:
    groups: list[int] = []
    begun = asyncio.Event()

    async def prepare(served: Served) -> None:
        groups.append(served.pid)
        if not ready:
            begun.set()
            await asyncio.Event().wait()

    async def run() -> None:
        server = scripted("family")
        async with launch([server], log_dir=tmp_path, grace=0.2, prepare=prepare):
            assert ready, "it is never prepared"
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await begun.wait()
    assert [len(members(group)) for group in groups] == [2]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all([await gone(group) for group in groups])


async def test_a_killed_parent_leaves_no_orphans(tmp_path: Path) -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, str(SCRIPT), str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert program.stdout is not None
    groups = [int(pid) for pid in (await program.stdout.readline()).split()]
    assert [len(members(group)) for group in groups] == [2, 2]
    program.kill()
    await program.wait()
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

    with pytest.raises(
        ServerDied, match="the small server ended while it was in use, with exit code 7, silently"
    ):
        await run()
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


async def test_logs_without_a_folder_of_their_own_are_kept_only_after_a_failure() -> None:
    logs: list[Path] = []

    async def run() -> None:
        async with launch([scripted()]) as running:
            logs.append(running["large"].log)
            assert logs[0].exists()
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await run()
    assert not logs[0].parent.exists()
    with pytest.raises(ServerError) as failure:
        async with launch([scripted("crash")]):
            pytest.fail("it is not running")
    logs.append(Path(str(failure.value).rpartition("its log: ")[2]))
    assert "rotten" in logs[1].read_text()
    logs[1].unlink()
    logs[1].parent.rmdir()


async def test_what_cannot_be_started_is_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as keyed:
        keyed.setenv("VLLM_API_KEY", "secret")
        with pytest.raises(ConfigurationError, match="VLLM_API_KEY is set: unset it, or"):
            async with launch([scripted()]):
                pytest.fail("nobody knows the key")
    monkeypatch.setattr(importlib.util, "find_spec", dict[str, str]().get)
    with pytest.raises(
        ConfigurationError, match=re.escape(f"{install_command('vllm')}; without a GPU")
    ):
        async with launch([ServerCommand("large", "anything", served_name="toy")]):
            pytest.fail("there is no vLLM")


def test_a_model_is_served_by_the_command_where_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    command = tmp_path / "vllm"
    module = (str(python), "-m", ENTRY)
    installed = ["vllm"]

    def distributions(name: str) -> list[str]:
        return [one for one in installed if one == name]

    monkeypatch.setattr(importlib.metadata, "distributions", distributions)
    assert vllm_program(str(python)) == module  # There is no command.
    command.touch()
    assert vllm_program(str(python)) == (str(command), "serve")
    server = ServerCommand("large", "org/big", "big", program=vllm_program(str(python)))
    assert server.command(8000)[:6] == (
        str(command),
        "serve",
        "org/big",
        "--served-model-name",
        "big",
        "--host",
    )
    installed.clear()  # As vLLM's CPU build is installed, whose command fails for that reason.
    assert vllm_program(str(python)) == module
    assert replace(server, program=module).command(8000)[3:5] == ("--model", "org/big")


VALIDATION = """\
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "runpy.py", line 198, in _run_module_as_main
(APIServer pid=7) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
(APIServer pid=7)   Value error, Invalid repository ID or local directory specified: '/nowhere'.
(APIServer pid=7) Please verify the following requirements:
"""
ROOT_CAUSE = ["ValueError: the weights are rotten"]
ENGINE = ["RuntimeError: Engine core initialization failed. See root cause above."]


@pytest.mark.parametrize(
    ("log", "lines"),
    [
        (TRACEBACK, ROOT_CAUSE + ENGINE),
        (TRACEBACK * 2, ROOT_CAUSE + ENGINE),
        (
            VALIDATION,
            [
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
                "  Value error, Invalid repository ID or local directory specified: '/nowhere'.",
            ],
        ),
        (
            "usage: api_server.py [-h] [--headless]\n\n"
            "api_server.py: error: argument --port: invalid int value: 'x'\n",
            ["api_server.py: error: argument --port: invalid int value: 'x'"],
        ),
        (
            "".join(f"(Worker pid=1) INFO 11-21 13:05:07 [a.py:1] {n}\n\n" for n in range(20)),
            ["17", "18", "19"],
        ),
        ("", []),
        ("ValueError: " + "x" * 10_000, ["ValueError: " + "x" * 285 + "..."]),
    ],
)
def test_the_reason_of_a_failure_is_found_in_the_log(log: str, lines: list[str]) -> None:
    assert failure_lines(log, limit=3) == lines
