# pyright: basic, reportMissingImports=false
"""
The weights of a GGUF file in bfloat16, for a folder that has all but these: convert.py FILE.gguf
FOLDER SHA256.
"""

from __future__ import annotations

import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import torch
from gguf.quants import dequantize
from safetensors.torch import save_file

from .gguf_names import tensor_name

AT_ONCE = 4


def convert(path: Path, folder: Path, digest: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        sys.exit(f"{path}: its SHA-256 is {found}, not {digest}: send its parcels again")

    def plain(tensor: gguf.ReaderTensor) -> tuple[str, torch.Tensor]:
        name = tensor_name(tensor.name)
        assert name is not None, tensor.name
        shape = tuple(int(size) for size in reversed(tensor.shape))
        weights = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).reshape(
            shape
        )
        return name, weights.to(torch.bfloat16).contiguous()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        state = dict(pool.map(plain, gguf.GGUFReader(path).tensors))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    torch.set_num_threads(AT_ONCE)
    convert(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
