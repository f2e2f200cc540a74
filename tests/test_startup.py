"""What a command does before its own work: what it imports, and how Ctrl-C ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stepspec.cli import COMMANDS, app
from stepspec.servers.doctor.report import Diagnosis

from .test_cli import call

DEADLINE = 120.0  # seconds, after which a test has failed
HEAVY = ("aiohttp", "openai", "pydantic_settings", "stepspec.api", "stepspec.policies", "numpy")


def test_the_version_needs_no_command() -> None:
    code = (
        "import sys\n"
        "from stepspec.__main__ import main\n"
        "sys.argv = ['stepspec', '--version']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=DEADLINE
    )
    assert run.stdout.splitlines()[-1] == "[]"


def test_every_command_is_found_by_its_name() -> None:
    import typer

    commands = typer.main.get_group(app).commands
    assert list(commands) == list(COMMANDS)
    assert [command.name for command in commands.values()] == list(COMMANDS)


def test_ctrl_c_while_modules_are_imported_is_one_line_and_130() -> None:
    code = (
        "import os, signal, sys\n"
        "from stepspec.__main__ import main\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'stepspec.api':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.argv = ['stepspec', 'solve', '1 + 1']\n"
        "main()"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "interrupted\n")


@pytest.mark.usefixtures("nowhere")
def test_ctrl_c_in_a_command_without_requests_is_one_line_and_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> Diagnosis:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it went on")

    monkeypatch.setattr("stepspec.cli.inspect.Solver", interrupt)
    assert call("doctor") == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.usefixtures("nowhere")
def test_an_option_of_no_method_in_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEPSPEC_OPTIONS__THRESH", "8")
    assert call("config", "show") == 2
    assert "thresh" in capsys.readouterr().err.lower()


@pytest.mark.usefixtures("nowhere")
def test_no_folder_is_made_below_the_root(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("solve", "1 + 1", "--trace", "/no-such-folder/run.jsonl") == 2
    assert "there is no folder /no-such-folder" in capsys.readouterr().err
    assert not Path("/no-such-folder").exists()


@pytest.mark.usefixtures("nowhere")
def test_a_device_without_an_end_holds_no_problems(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("solve", "--problems", "/dev/zero") == 2
    assert "a device without an end" in capsys.readouterr().err
