"""A container's process becomes the server of one miniature model."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import pytest

from stepspec.evals.testbed import serve_one
from stepspec.evals.testbed.servers import miniature_servers
from stepspec.orchestrator.errors import ConfigurationError


class Became(Exception):
    """What the process became."""

    def __init__(self, program: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.program, self.command, self.environment = program, tuple(command), environment


def become(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> Became:
    def execvpe(program: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        raise Became(program, command, environment)

    monkeypatch.setattr(os, "execvpe", execvpe)
    monkeypatch.setattr(sys, "argv", ["serve_one", *arguments])
    monkeypatch.setenv("HTTP_PROXY", "http://proxy")
    with pytest.raises(Became) as found:
        serve_one.main()
    return found.value


@pytest.mark.parametrize("role", serve_one.ROLES)
def test_it_becomes_the_server_of_its_role_for_everybody(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = become(role, monkeypatch=monkeypatch)
    (server,) = miniature_servers("paced", (role,))
    assert found.program == sys.executable
    assert found.command == tuple("0.0.0.0" if word == "127.0.0.1" else word for word in server.command(8000))
    assert server.env.items() <= found.environment.items()
    assert found.environment["HTTP_PROXY"] == "http://proxy"


def test_it_listens_at_the_configured_address_with_the_configured_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("large", "--host", "127.0.0.1", "--port", "81", "--profile", "off")
    (server,) = miniature_servers("off", ("large",))
    assert become(*options, monkeypatch=monkeypatch).command == server.command(81)


def test_unknown_models_and_profiles_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["serve_one", "huge"])
    with pytest.raises(SystemExit):
        serve_one.main()
    assert "invalid choice: 'huge'" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["serve_one", "large", "--profile", "fast"])
    with pytest.raises(ConfigurationError, match="no pacing profile 'fast'"):
        serve_one.main()
