"""An environment is made once, and again when its pins change. The real ones are for the integration tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from . import environments


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A client that needs nothing."""
    (tmp_path / "nobody").mkdir()
    (tmp_path / "nobody" / "requirements.txt").write_text("# nothing\n")
    return tmp_path


def test_an_environment_is_made_once_for_the_same_pins(folder: Path) -> None:
    first = environments.environment("nobody", folder=folder, built=folder / "built")
    run = subprocess.run([first / "python", "-c", "import pytest"], capture_output=True, text=True)
    assert "No module named 'pytest'" in run.stderr  # our packages are not importable there
    (first / "kept").touch()
    assert environments.environment("nobody", folder=folder, built=folder / "built") == first
    assert (first / "kept").is_file()
    (folder / "nobody" / "requirements.txt").write_text("# nothing else\n")
    environments.environment("nobody", folder=folder, built=folder / "built")
    assert not (first / "kept").exists()


def test_a_failed_installation_is_reported_and_repeated(folder: Path) -> None:
    (folder / "nobody" / "requirements.txt").write_text("./missing.whl\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"(?s)uv pip install .*missing\.whl.*UV_DEFAULT_INDEX"):
            environments.environment("nobody", folder=folder, built=folder / "built")


def test_what_is_linked_comes_from_the_environment_of_the_tests(folder: Path) -> None:
    (folder / "nobody" / "linked.txt").write_text("pytest\npytest-*.dist-info\n")
    programs = environments.environment("nobody", folder=folder, built=folder / "built")
    code = "from importlib.metadata import version; print(version('pytest'))"
    run = subprocess.run([programs / "python", "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == pytest.__version__
    (folder / "nobody" / "linked.txt").write_text("nothing-like-it\n")
    (folder / "nobody" / "requirements.txt").write_text("# another one\n")
    with pytest.raises(RuntimeError, match="has no nothing-like-it"):
        environments.environment("nobody", folder=folder, built=folder / "built")


def test_every_client_pins_all_its_requirements() -> None:
    asking = sorted(environments.FOLDER.glob("*/requirements.in"))
    clients = [
        *("anthropic", "guidellm", "inspect_ai", "langchain", "langgraph", "litellm", "lm_eval", "openai"),
        "openai_agents",
    ]
    assert [path.parent.name for path in asking] == clients
    for path in asking:
        pins = path.with_suffix(".txt").read_text().splitlines()
        assert all("==" in pin for pin in pins)
        names = {pin.partition("==")[0] for pin in pins}
        assert {line.partition("[")[0] for line in path.read_text().splitlines()} <= names


def test_the_document_has_the_pinned_versions() -> None:
    table = (environments.FOLDER.parents[2] / "docs" / "service.md").read_text()
    for path in environments.FOLDER.glob("*/requirements.in"):
        requirement = path.read_text().splitlines()[0].partition("[")[0]
        pins = dict(pin.split("==") for pin in path.with_suffix(".txt").read_text().splitlines())
        assert f"| {requirement} {pins[requirement]} |" in table
