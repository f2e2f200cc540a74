"""Qwen3 at a set pace, so that latency on a CPU has the shape it has on a memory-bound GPU. Imported by vLLM only."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from vllm.forward_context import get_forward_context
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.sequence import IntermediateTensors


BETWEEN_PASSES = 0.004  # seconds; after a longer pause the model had nothing to do


class PacedQwen3ForCausalLM(Qwen3ForCausalLM):
    """
    A pass takes at least ``paced_seconds_per_pass``, and ``paced_seconds_per_token`` more for each of its tokens.

    Both are keys of the Hugging Face configuration. The model's own computing counts; only the rest is slept. What
    vLLM does between two passes counts as well: on a GPU it prepares the next pass while one runs, on a CPU it cannot.
    A model that drafts for another one in the same process takes its turns with it, as on one GPU.
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
        """Compute, then sleep until the pass has taken its time; vLLM's own trial passes are not held up."""
        begun = time.perf_counter()
        if begun - PacedQwen3ForCausalLM.ended < BETWEEN_PASSES:
            begun = PacedQwen3ForCausalLM.ended
        hidden = super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)
        if get_forward_context().attn_metadata:
            end = begun + self.seconds_per_pass + self.seconds_per_token * positions.shape[-1]
            time.sleep(max(0.0, end - time.perf_counter()))
            PacedQwen3ForCausalLM.ended = time.perf_counter()
        return hidden
