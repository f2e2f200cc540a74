"""
For the process of a vLLM server: let a miniature model open its thinking block by itself, as
SmolLM3 does.

vLLM imports this by ``--logits-processors``. The miniature models have only ever gone on behind an
open block.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

OPENING = ("<think>", "\n")


class Opens(AdapterLogitsProcessor):  # type: ignore[misc]  # vLLM has no types here
    """
    Behind a prompt that ends with the head of the assistant's turn, only the opening can be
    written.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        tokenizer = Tokenizer.from_file(
            str(Path(vllm_config.model_config.tokenizer) / "tokenizer.json")
        )
        self.opening: list[int] = [tokenizer.encode(text).ids[0] for text in OPENING]
        self.head: list[int] = tokenizer.encode("<|im_start|>assistant\n").ids

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: object) -> Any:
        return self.only

    def only(self, prompt: list[int], written: list[int], logits: torch.Tensor) -> torch.Tensor:
        if prompt[-len(self.head) :] == self.head and len(written) < len(self.opening):
            number = self.opening[len(written)]
            kept = logits[number].clone()
            logits.fill_(float("-inf"))
            logits[number] = kept
        return logits
