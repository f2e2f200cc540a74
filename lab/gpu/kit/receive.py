"""
Put the pieces of one parcel in their places: receive.py PARCEL ROOT.

A piece is a file NAME@OFFSET. `manifest.json` says how long each file is; when all of its bytes are
there, ROOT/in/NAME gets a file NAME.ready beside it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def receive(parcel: Path, root: Path) -> list[str]:
    """Write the pieces of *parcel*; return the names of the files that are now complete."""
    sizes: dict[str, int] = json.loads((root / "kit" / "manifest.json").read_text())
    folder = root / "in"
    folder.mkdir(parents=True, exist_ok=True)
    names: set[str] = set()
    for piece in sorted(parcel.glob("*@*")):
        name, _, offset = piece.name.partition("@")
        names.add(name)
        with (folder / name).open("r+b" if (folder / name).exists() else "wb") as file:
            file.seek(int(offset))
            file.write(piece.read_bytes())
        with (folder / f"{name}.pieces").open("a") as log:
            log.write(f"{offset} {piece.stat().st_size}\n")
    return [name for name in sorted(names) if _complete(folder, name, sizes[name])]


def _complete(folder: Path, name: str, size: int) -> bool:
    lines = (folder / f"{name}.pieces").read_text().splitlines()
    # a piece may arrive twice
    pieces = {offset: int(length) for offset, length in map(str.split, lines)}
    if sum(pieces.values()) < size:
        return False
    (folder / f"{name}.ready").touch()
    return True


if __name__ == "__main__":
    print("complete:", *receive(Path(sys.argv[1]), Path(sys.argv[2])))
