"""
The wheel and the sdist of this clone, built once for all tests, and fresh environments to install
them into.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from uv import find_uv_bin

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "lock.txt"
VERSIONS = ("3.11", "3.12", "3.13")
PATIENCE = 300.0  # seconds for a slow network


@dataclass(frozen=True, slots=True)
class Distributions:
    """The two built files, and the version in their names."""

    wheel: Path
    sdist: Path

    @property
    def version(self) -> str:
        return self.wheel.name.split("-")[1]


def build(source: Path, folder: Path, *targets: str, **variables: str) -> list[Path]:
    """
    Build what is in *source* with the packages of this environment; return the files in *folder*.
    """
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    chosen = [word for target in targets for word in ("--target", target)]
    subprocess.run(
        [*command, *chosen],
        cwd=source,
        env={**os.environ, **variables},
        check=True,
        capture_output=True,
    )
    return sorted(folder.iterdir())


def built_once(shared: Path) -> Distributions:
    """
    Return the distributions in *shared*, a folder of all processes of this run; the first of them
    builds.
    """
    with (shared / "distributions.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = shared / "distributions"
        wheel, sdist = sorted(folder.iterdir()) if folder.is_dir() else build(ROOT, folder)
        return Distributions(wheel, sdist)


def python(version: str) -> str:
    """
    Return an interpreter of *version*; skip the test if there is none. The version that runs the
    tests is there.
    """
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    command = [
        find_uv_bin(),
        "python",
        "find",
        "--no-python-downloads",
        "--no-project",
        "--system",
        version,
    ]
    found = subprocess.run(
        command, env={**os.environ, "PATH": search_path()}, capture_output=True, text=True
    )
    if found.returncode:
        pytest.skip(f"there is no Python {version} here")
    return found.stdout.strip()


def search_path() -> str:
    """
    Return PATH with the programs of pyenv's versions in place of its shims, which fail for versions
    not chosen.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders = [
        folder for folder in os.environ["PATH"].split(os.pathsep) if folder != str(pyenv / "shims")
    ]
    return os.pathsep.join([*folders, *map(str, sorted(pyenv.glob("versions/*/bin")))])


def fresh(place: Path, interpreter: str, *requirements: str) -> Path:
    """
    Make an environment at *place* with the locked versions of *requirements*, and return the folder
    of its programs.

    Without a network, skip the test, which is an error with CI=true. Raise `RuntimeError` for any
    other failure.
    """
    _uv("venv", "--no-project", "--python", interpreter, str(place))
    _uv("pip", "install", "--python", str(place), "--constraint", str(LOCK), *requirements)
    return place / "bin"


def _uv(*arguments: str) -> None:
    command = [find_uv_bin(), "--quiet", "--system-certs", *arguments]
    done = subprocess.run(
        command, cwd="/", env=outside(), capture_output=True, text=True, timeout=PATIENCE
    )
    if done.returncode:
        reason = f"uv {' '.join(arguments)} failed: {done.stderr.strip()}"
        if os.environ.get("CI") != "true" and _is_about_the_network(done.stderr):
            pytest.skip(f"{reason}\nIt needs PyPI; for a mirror of it set UV_DEFAULT_INDEX.")
        raise RuntimeError(reason)


def _is_about_the_network(message: str) -> bool:
    return any(
        sign in message
        for sign in ("Failed to fetch", "error sending request", "network connectivity")
    )


def outside() -> dict[str, str]:
    """
    Return the variables of this process without those that lead to this clone or set something of
    stepspec.
    """
    left_out = ("PYTHONPATH", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")
    return {
        key: value
        for key, value in os.environ.items()
        if key not in left_out and not key.startswith("STEPSPEC_")
    }
