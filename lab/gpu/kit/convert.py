# pyright: basic, reportMissingImports=false
"""The weights of a GGUF file in bfloat16, for a folder that has all but these: convert.py FILE.gguf FOLDER SHA256."""

from __future__ import annotations

import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import torch
from gguf.quants import dequantize
from safetensors.torch import save_file

NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
AT_ONCE = 4


def name_of(tensor: str) -> str:
    """The name of a Qwen2 model's *tensor* in Hugging Face's format."""
    stem, _, kind = tensor.rpartition(".")
    if not stem.startswith("blk."):
        return f"{NAMES[stem]}.{kind}"
    _, number, part = stem.split(".", 2)
    return f"model.layers.{number}.{LAYER[part]}.{kind}"


def convert(path: Path, folder: Path, digest: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != digest:
        sys.exit(f"{path}: its SHA-256 is {found}, not {digest}: send its parcels again")

    def plain(tensor: gguf.ReaderTensor) -> tuple[str, torch.Tensor]:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        weights = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).reshape(shape)
        return name_of(tensor.name), weights.to(torch.bfloat16).contiguous()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        state = dict(pool.map(plain, gguf.GGUFReader(path).tensors))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    torch.set_num_threads(AT_ONCE)
    convert(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
