"""
Qwen3 with a minimum duration per pass: latency on a CPU gets the shape of a memory-bound GPU's. For
vLLM only.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from vllm.forward_context import get_forward_context
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.sequence import IntermediateTensors


BETWEEN_PASSES = 0.004  # seconds; after a longer pause, the model was idle


class PacedQwen3ForCausalLM(Qwen3ForCausalLM):
    """
    Qwen3 with passes of at least ``paced_seconds_per_pass``, plus ``paced_seconds_per_token`` for
    each token.

    Both are keys of the Hugging Face configuration. The computing time of the model is part of the
    duration, and so is vLLM's time between two passes: on a GPU, vLLM prepares the next pass during
    the current one, on a CPU it cannot. A draft model in the same process alternates with its
    target model, as on one GPU.
    """

    ended: ClassVar[float] = 0.0

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.seconds_per_pass: float = self.config.paced_seconds_per_pass
        self.seconds_per_token: float = self.config.paced_seconds_per_token

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor | IntermediateTensors:
        """
        Compute, then sleep until the end of the duration. vLLM's profiling passes are not delayed.
        """
        start = time.perf_counter()
        if start - PacedQwen3ForCausalLM.ended < BETWEEN_PASSES:
            start = PacedQwen3ForCausalLM.ended
        hidden = super().forward(
            input_ids,
            positions,
            intermediate_tensors,
            inputs_embeds,
        )
        if get_forward_context().attn_metadata:
            end = start + self.seconds_per_pass + self.seconds_per_token * positions.shape[-1]
            time.sleep(max(0.0, end - time.perf_counter()))
            PacedQwen3ForCausalLM.ended = time.perf_counter()
        return hidden
