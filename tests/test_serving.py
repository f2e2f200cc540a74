"""The command `serve`: the sources of its settings, and its errors at the start."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepspec import Solver, service_factory
from stepspec import settings as configuration
from stepspec.orchestrator.errors import ConfigurationError, install_command
from stepspec.orchestrator.service.http.app import listen
from stepspec.orchestrator.service.settings import ServiceSettings

from .stand_in import FakeVllm
from .test_cli import call

pytestmark = pytest.mark.usefixtures("nowhere")


def test_flags_override_variables_and_variables_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("stepspec.toml").write_text("[service]\nport = 1\nmax_running = 1\nkeep_alive = 1.5\nkeys = ['file']\n")
    monkeypatch.setenv("STEPSPEC_SERVICE__PORT", "2")
    monkeypatch.setenv("STEPSPEC_SERVICE__MAX_RUNNING", "2")
    monkeypatch.setenv("STEPSPEC_SERVICE__KEYS", "first, second")
    settings = configuration.load(service={"port": 3}).service
    assert (settings.port, settings.max_running, settings.keep_alive, settings.host) == (3, 2, 1.5, "127.0.0.1")
    assert [key.get_secret_value() for key in settings.keys] == ["first", "second"]
    assert "first" not in repr(settings)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"prot": 1}, r"unknown setting 'service\.prot' \(did you mean 'port'"),
        ({"port": 70000}, r"service\.port"),
        ({"host": "0.0.0.0"}, "set STEPSPEC_SERVICE__KEYS"),
        ({"thinking": "loud"}, r"service\.thinking"),
        ({"max_running": 0}, r"service\.max_running"),
        ({"root_path": "api"}, "write it like /api"),
    ],
)
def test_wrong_settings_are_named(overrides: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        configuration.load(service=overrides)


def test_a_public_address_without_a_key_is_one_line_and_exit_code_2(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("serve", "--host", "0.0.0.0", "--small", "http://a", "--large", "http://b") == 2
    printed = capfd.readouterr().err
    assert "--insecure" in printed
    assert "Traceback" not in printed


def test_a_port_that_is_taken_is_named() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(ConfigurationError, match="choose another with --port"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_without_the_extra_the_error_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec

    def without(name: str) -> object:
        return None if name == "uvicorn" else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert call("serve") == 2
    assert f"needs uvicorn: {install_command('serve')}" in capfd.readouterr().err


def test_the_command_does_without_the_extra_and_the_service_without_ray() -> None:
    code = """
import sys, stepspec.cli
print([name for name in ('fastapi', 'uvicorn', 'structlog') if name in sys.modules])
import stepspec.orchestrator.service.http.app
print('ray' in sys.modules)"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["[]", "False"]


@pytest.mark.parametrize(("name", "warns"), [("big", False), ("large", True), ("auto", True), ("bild", True)])
async def test_a_model_served_under_the_name_of_a_method_causes_a_log_line(
    name: str, warns: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    async with (
        FakeVllm(("So", "\n\n"), names=("tiny",)).serve("small") as small,
        FakeVllm(("So", "\n\n"), names=(name,)).serve("large") as large,
        service_factory.built(Solver(small, large), ServiceSettings(log_format="json")),
    ):
        printed = capfd.readouterr()
    assert ("served_as_a_method" in printed.out + printed.err) == warns


def test_it_has_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("serve", "--help") == 0
    printed = capfd.readouterr().out
    assert all(flag in printed for flag in ("--small", "--max-running", "--key", "--insecure", "--drain-seconds"))
