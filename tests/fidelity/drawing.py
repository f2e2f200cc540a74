"""Models that sample: their text follows from the seed of a request, or is not reproducible."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stepspec.orchestrator.chain import DELIMITER, THINK_END

from ..orchestrator.arms import taste
from ..stand_in import THINK, FakeVllm

WORDS = ("one", "two", "three", "four")


@dataclass
class DrawingVllm(FakeVllm):
    """
    A server that draws token after token with a generator of the request's seed, as vLLM does.

    Without a seed nothing repeats. The judge refuses about a third of the drafts, by their text.
    """

    length: int = 5
    rng: random.Random | None = None

    def following(self, body: dict[str, Any]) -> Iterable[bytes]:
        self.rng = random.Random(body["seed"]) if "seed" in body else random.Random()
        return super().following(body)

    def continuation(self, prompt: str) -> list[bytes]:
        assert self.rng is not None
        text = prompt.rpartition(f"{THINK}\n")[2]
        if THINK_END in text:
            return [] if "boxed" in text else [f"\n\n\\boxed{{{self.rng.choice(WORDS)}}}".encode()]
        pieces: list[bytes] = []
        paragraph = text.count(DELIMITER)
        words = len(text.rpartition(DELIMITER)[2].split())
        while paragraph < self.length:
            if words < 4:
                pieces.append(f" {self.rng.choice(WORDS)}".encode())
                words += 1
                continue
            pieces.append(
                THINK_END.encode() if paragraph + 1 == self.length else f".{DELIMITER}".encode()
            )
            paragraph = paragraph + 1
            words = 0
        return pieces

    def grades(self, prompt: list[int], wanted: list[int]) -> dict[str, float]:
        good = taste("grade", self.decode(prompt)) < 2 / 3
        self.digits = {"9" if good else "1": -0.01}
        return super().grades(prompt, wanted)
