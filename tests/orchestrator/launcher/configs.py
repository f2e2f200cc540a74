"""The sizes that published models state in their ``config.json``, as far as the checks read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def decoder(
    width: int, layers: int, heads: int, kv_heads: int, inner: int, vocabulary: int, *, tied: bool = False, **more: Any
) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 40960,
        **more,
    }


CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen3-32B": decoder(5120, 64, 64, 8, 25600, 151936, head_dim=128),
    "Qwen/Qwen3-1.7B": decoder(2048, 28, 16, 8, 6144, 151936, tied=True, head_dim=128),
    "Qwen/Qwen3-0.6B": decoder(1024, 28, 16, 8, 3072, 151936, tied=True, head_dim=128),
    "Qwen/Qwen3-8B": decoder(4096, 36, 32, 8, 12288, 151936, head_dim=128),
    "Qwen/Qwen3-8B-AWQ": decoder(
        *(4096, 36, 32, 8, 12288, 151936), head_dim=128, quantization_config={"quant_method": "awq", "bits": 4}
    ),
    "Qwen/Qwen3-30B-A3B": decoder(
        *(2048, 48, 32, 4, 6144, 151936), head_dim=128, num_experts=128, moe_intermediate_size=768
    ),
    "Qwen/QwQ-32B": decoder(5120, 64, 40, 8, 27648, 152064),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": decoder(5120, 64, 40, 8, 27648, 152064),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": decoder(1536, 28, 12, 2, 8960, 151936),
}
