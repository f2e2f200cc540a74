"""
The campaign on this CPU: ``python -m lab.gpu.dry_run FOLDER``, two minutes on two idle cores.

The same programs run in the same order as on the GPU, with the target "cpu": tiny models without
weights that write the script, then the miniature pair in the place of the real one. What it
measures says nothing; that it gets through does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from stepspec.evals.testbed.servers import miniature_servers

from .pack import HERE, TOKENIZER, write

SECONDS = 420
PROBLEMS = ["What is 6 x 7?", "What is 12 + 30?", "What is 50 - 8?"]


def prepare(root: Path, parcel: Path) -> None:
    """Put what would arrive in parcels into *root*, and the kit into *parcel*."""
    shutil.copytree(HERE / "kit", parcel / "kit", ignore=shutil.ignore_patterns("__pycache__"))
    (parcel / "kit" / "manifest.json").write_text(json.dumps({"note": 4}))
    (parcel / "note@0").write_text("text")
    for server in miniature_servers("off"):
        shutil.copytree(server.model, root / "pair" / server.name)
    (root / "tokenizer").mkdir()
    for file in TOKENIZER:
        shutil.copy(root / "pair" / "large" / file, root / "tokenizer")
    rows: list[dict[str, object]] = [
        {"bench": "arithmetic", "index": n, "prompt": p} for n, p in enumerate(PROBLEMS)
    ]
    write(root / "problems.jsonl", rows)
    write(root / "chains.jsonl", rows)


def main(folder: Path, python: str = sys.executable) -> None:
    """Run the campaign in *folder*, all its programs with the interpreter *python*."""
    root = folder / "k"
    parcel = folder / "01"
    out = folder / "out"
    out.mkdir(parents=True)
    prepare(root, parcel)
    env = {
        "KIT_TARGET": "cpu",
        **os.environ,
        "KIT_ROOT": str(root),
        "KIT_PYTHON": python,
        "OUT": str(out),
    }
    subprocess.run(
        ["bash", parcel / "kit" / "receive.sh", parcel, str(SECONDS)], env=env, check=True
    )
    subprocess.run(["bash", root / "kit" / "collect.sh", str(SECONDS)], env=env, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
