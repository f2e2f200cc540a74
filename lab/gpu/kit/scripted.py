# pyright: basic, reportMissingImports=false
"""
A logits processor with which a model without weights writes a set chain of steps, at its real cost.

For vLLM's ``--logits-processors kit.scripted:Scripted --load-format dummy --logprobs-mode
processed_logprobs``, on its V1 runner. The next token depends only on how far the text is behind
the last start of an assistant's turn, so that two models write the same chain:

- steps of 20 to 80 tokens, each closed by a blank line; after SCRIPT_TOKENS (default 800) tokens
  the boxed answer, then the end of the turn;
- a request for a single token is a judge's: the digit 9 with the probability in SCRIPT_ACCEPT_FILE
  (default 0.8), otherwise 1, drawn from the prompt's length, so that a run is the same each time;
- a pass of the model NAME takes SCRIPT_PACE_NAME seconds more (default 0), so that a CPU has the
  pace of a GPU.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

TOTAL = int(os.environ.get("SCRIPT_TOKENS", "800"))
# read for every verdict: one server serves several rates
RATE_FILE = Path(os.environ.get("SCRIPT_ACCEPT_FILE", ""))
WORDS = """
then number sum step total left each value group result equals count side half angle term square root line point circle
area length width height first second third next last even odd prime factor multiple ratio rate speed time distance
price cost day week hour minute box bag ball card coin book page row column table tree apple orange red blue green white
black add take give share split double divide times minus plus more less than same other both all some none one two
three four five six seven eight nine ten hundred check case set range limit order place part whole pair ring edge
"""
# logits
NO = -30.0
YES = 20.0


def accept_rate() -> float:
    try:
        return float(RATE_FILE.read_text())
    except (OSError, ValueError):
        return 0.8


class Scripted(LogitsProcessor):
    """
    Keeps, for each row of the batch, the judge's digit or 0, the place in the script, and the row's
    output.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        tokenizer: Any = AutoTokenizer.from_pretrained(vllm_config.model_config.tokenizer)

        def ids(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False))

        self.pinned = is_pin_memory
        self.pace = float(
            os.environ.get(f"SCRIPT_PACE_{vllm_config.model_config.served_model_name}", "0")
        )
        self.marker = ids("<|im_start|>assistant\n")
        self.end = ids("<|im_end|>")[0]
        self.nine = ids("9")[0]
        self.one = ids("1")[0]
        rng = random.Random(1)
        left = TOTAL
        words = [found[0] for word in WORDS.split() if len(found := ids(f" {word}")) == 1] or [
            ids(str(n))[0] for n in range(10)
        ]
        self.script: list[int] = []
        while left > 0:
            length = min(rng.randint(20, 80), left)
            self.script += [*rng.choices(words, k=length - 1), ids("\n\n")[0]]
            left -= length
        self.script += ids("Thus the answer is \\boxed{7}.")
        self.rows: dict[int, tuple[int, int, Sequence[int]]] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        return None

    def is_argmax_invariant(self) -> bool:
        return False

    def turn(self, prompt: Sequence[int]) -> int:
        """The place in *prompt* where the text of the last assistant's turn begins."""
        size = len(self.marker)
        places = range(len(prompt) - size, -1, -1)
        return next(
            (at + size for at in places if list(prompt[at : at + size]) == self.marker), len(prompt)
        )

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            self.rows.pop(index, None)
        for index, params, prompt, output in batch_update.added:
            if params.max_tokens == 1:
                accepted = random.Random(len(prompt or [])).random() < accept_rate()
                self.rows[index] = (self.nine if accepted else self.one, 0, output)
            else:
                self.rows[index] = (0, len(prompt or []) - self.turn(prompt or []), output)
        for source, target, way in batch_update.moved:
            moved = self.rows.pop(source, None)
            other = self.rows.pop(target, None)
            if moved is not None:
                self.rows[target] = moved
            if way == MoveDirectionality.SWAP and other is not None:
                self.rows[source] = other

    def wanted(self, index: int) -> int:
        """The next token of the row *index*."""
        digit, start, output = self.rows.get(index, (0, 0, ()))
        place = start + len(output)
        return digit or (self.script[place] if place < len(self.script) else self.end)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        time.sleep(self.pace)
        if not self.rows:
            return logits
        # A blocking copy waits for the whole pass, and vLLM then schedules the next one before it
        # sends this token.
        wanted = torch.tensor(
            [self.wanted(index) for index in range(logits.shape[0])], pin_memory=self.pinned
        )
        return logits.fill_(NO).scatter_(
            1, wanted.to(logits.device, non_blocking=True).unsqueeze(1), YES
        )
