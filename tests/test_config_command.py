"""The commands `config show`, `config path` and `config init`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import orjson
import pytest

from stepspec import settings

from .test_cli import call


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    return tmp_path


FILE = """\
policy = "bild"
[options]
scale = "step"
[large]
url = "http://admin:hunter2@host:1/v1"
api_key = "SECRET-OF-THE-FILE"
[service]
keys = ["SECRET-OF-CLIENTS"]
"""


def test_every_setting_is_shown_with_its_source_and_no_secret(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (nowhere / "mine.toml").write_text(FILE)
    monkeypatch.setenv("STEPSPEC_AHEAD", "4")
    monkeypatch.setenv("STEPSPEC_SMALL", "http://small:1")
    monkeypatch.setenv("STEPSPEC_SMALL__API_KEY", "SECRET-OF-THE-VARIABLE")
    flags = "--config", "mine.toml", "--large-api-key", "SECRET-OF-THE-FLAG", "--top-p", "0.5", "-O", "rollback=3"
    assert call("config", "show", "--json", *flags) == 0
    printed = capfd.readouterr().out
    assert "SECRET" not in printed
    assert "hunter2" not in printed
    shown = orjson.loads(printed)
    assert shown["ahead"] == {"value": 4, "source": "variable", "name": "STEPSPEC_AHEAD"}
    assert shown["policy"] == {"value": "bild", "source": "file", "name": "mine.toml: policy"}
    assert shown["options.scale"] == {"value": "step", "source": "file", "name": "mine.toml: options.scale"}
    assert shown["options.rollback"] == {"value": 3, "source": "flag", "name": "--option rollback"}
    assert shown["large.url"]["value"] == "http://admin:***@host:1"
    assert shown["large.api_key"] == {"value": "**********", "source": "flag", "name": "--large-api-key"}
    assert shown["small.api_key"]["name"] == "STEPSPEC_SMALL__API_KEY"
    assert shown["small.url"]["name"] == "STEPSPEC_SMALL"
    assert shown["service.keys"] == {"value": ["**********"], "source": "file", "name": "mine.toml: service.keys"}
    assert shown["sampling.top_p"] == {"value": 0.5, "source": "flag", "name": "--top-p"}
    assert shown["sampling.top_k"] == {"value": 0, "source": "default", "name": ""}
    assert call("config", "show", *flags) == 0
    table = capfd.readouterr().out
    assert "SECRET" not in table
    for name, each in shown.items():
        row = next(line.split() for line in table.splitlines() if line.split()[0] == name)
        assert row[-1] == (each["name"] or each["source"]).split()[-1]


def test_the_file_that_is_read_is_printed(nowhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("config", "path") == 1
    assert "no settings file" in capfd.readouterr().err
    (nowhere / "stepspec.toml").write_text("")
    assert call("config", "path") == 0
    assert capfd.readouterr().out == f"{nowhere / 'stepspec.toml'}\n"


def test_a_new_file_has_both_servers_and_is_never_overwritten(nowhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    servers = "http://localhost:8001/v1", "http://localhost:8002/v1"
    assert call("config", "init", *servers) == 0
    text = (nowhere / "stepspec.toml").read_text()
    loaded = settings.load()
    assert loaded.large is not None
    assert (loaded.policy, loaded.large.url) == ("specreason", "http://localhost:8002")
    uncommented = "\n".join(
        line.removeprefix("# ") if " = " in line or "# [" in line else line for line in text.split("\n")[2:]
    )
    assert set(tomllib.loads(uncommented)) == {"policy", "ahead", "small", "large", "options", "sampling", "budget"}
    (nowhere / "stepspec.toml").write_text(uncommented)
    assert settings.load().options == {"threshold": 7}
    assert call("config", "init", *servers) == 2
    assert "stepspec.toml exists" in capfd.readouterr().err
    assert call("config", "init", "nonsense", servers[1], "-o", "x.toml") == 2
    assert "'nonsense' is not the URL of a server" in capfd.readouterr().err
    assert not (nowhere / "x.toml").exists()
