"""
An environment for each foreign client and for the notebook of the examples, with what its
requirements.txt pins.

What linked.txt lists is linked from the environment of the tests: PyPI's torch brings several GB
for GPUs. It is left out of the pins by overrides.txt.

``python -m tests.integration.clients.environments`` pins the newest versions of what each
requirements.in asks for; with ``install`` behind it, it installs all environments at once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

import pytest
from uv import find_uv_bin

FOLDER = Path(__file__).parent
EXAMPLES = FOLDER.parents[1] / "examples"
BUILT = FOLDER.parents[2] / "build" / "clients"
PATIENCE = 300.0  # seconds for a slow network to bring the largest of them, some 150 MB


def environment(name: str, *, folder: Path = FOLDER, built: Path = BUILT) -> Path:
    """
    Return where the programs of the client called *name* are installed, which is done once for the
    same pins.

    Raise `RuntimeError` if that fails.
    """
    pins = folder / name / "requirements.txt"
    place = built / name
    stamp = place / ".installed"
    wanted = blake2b(pins.read_bytes() + sys.version.encode()).hexdigest()
    built.mkdir(parents=True, exist_ok=True)
    with (built / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be installing it
        if not stamp.is_file() or stamp.read_text() != wanted:
            shutil.rmtree(place, ignore_errors=True)
            _uv("venv", "--python", sys.executable, str(place))
            _uv("pip", "install", "--no-deps", "--python", str(place), "--requirements", str(pins))
            _link(folder / name / "linked.txt", place)
            stamp.write_text(wanted)
    return place / "bin"


def installed(name: str, *, folder: Path = FOLDER) -> Path:
    """Return `environment`; without a network the test is skipped, which is an error in CI."""
    try:
        return environment(name, folder=folder)
    except RuntimeError as exc:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(exc))


def _link(listed: Path, place: Path) -> None:
    """
    Link into the environment at *place* the packages that the patterns in the file *listed* match.
    """
    ours = Path(sysconfig.get_path("purelib"))
    for pattern in listed.read_text().split() if listed.is_file() else ():
        found = list(ours.glob(pattern))
        if not found:
            raise RuntimeError(
                f"{ours} has no {pattern}, which {listed} asks for: install the extra 'testbed'"
            )
        for path in found:
            (place / path.relative_to(ours.parents[2])).symlink_to(path)


def _uv(*arguments: str) -> None:
    try:
        subprocess.run(
            [find_uv_bin(), "--quiet", "--system-certs", *arguments],
            check=True,
            capture_output=True,
            timeout=PATIENCE,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as exc:
        reason = exc.stderr.decode().strip() if exc.stderr else str(exc)
        raise RuntimeError(
            f"uv {' '.join(arguments)} failed: {reason}\nIt needs PyPI; for a mirror of it set"
            " UV_DEFAULT_INDEX."
        ) from exc


def pin() -> None:
    """
    Resolve every requirements.in today and write the result to requirements.txt in the same folder.
    """
    for requirements in sorted(
        [*FOLDER.glob("*/requirements.in"), *EXAMPLES.glob("*/requirements.in")]
    ):
        plain = ("--no-header", "--no-annotate", "--python-version", "3.11", "--upgrade")
        overrides = requirements.with_name("overrides.txt")
        more = ("--overrides", str(overrides)) if overrides.is_file() else ()
        _uv(
            "pip",
            "compile",
            *plain,
            *more,
            str(requirements),
            "--output-file",
            str(requirements.with_suffix(".txt")),
        )


def install() -> None:
    """Install all environments, all at once."""
    folders = [
        pins.parent for place in (FOLDER, EXAMPLES) for pins in place.glob("*/requirements.txt")
    ]
    find_uv_bin()  # Python 3.11 fails where several threads ask for its paths for the first time.
    with ThreadPoolExecutor(len(folders)) as pool:
        installing = [pool.submit(environment, each.name, folder=each.parent) for each in folders]
    failures = [str(error) for future in installing if (error := future.exception())]
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    install() if sys.argv[1:] == ["install"] else pin()
