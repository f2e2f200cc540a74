"""Models that sample: their text follows from the seed of a request, or is not reproducible."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from stepspec.orchestrator.chain import DELIMITER, THINK_END, Chain, Step
from stepspec.orchestrator.endpoints import Sampling

from ..fakes import Previous, ScriptedModel
from ..orchestrator.arms import taste
from ..stand_in import THINK, FakeVllm

WORDS = ("one", "two", "three", "four")


def drawn_script(seed: int | None, length: int) -> Callable[[Previous], str]:
    """Return a script whose paragraphs are drawn by *seed*; without one, they never repeat."""
    key = random.getrandbits(64) if seed is None else seed

    @cache
    def script(previous: Previous) -> str:
        words = [WORDS[int(taste(key, previous, place) * len(WORDS))] for place in range(4)]
        return f"So {' '.join(words)}." + (DELIMITER if len(previous) + 1 < length else f"\n{THINK_END}")

    return script


@dataclass(eq=False)
class DrawingModel(ScriptedModel):
    """A scripted model that draws what a write says by the seed that *sampling* derives for its place."""

    sampling: Sampling = field(default_factory=lambda: Sampling(seed=0))
    length: int = 6

    async def write(self, chain: Chain, **options: Any) -> Step:
        seed = self.sampling.seed_for(self.role, "write", chain, options.get("opening", ""))
        drawing = replace(self, script=drawn_script(seed, self.length))
        return await ScriptedModel.write(drawing, chain, **options)

    async def branch(self, chain: Chain, begun: Sequence[Step], **options: Any) -> tuple[Step, ...]:
        seed = self.sampling.seed_for(self.role, "write", chain, "branch")
        drawing = replace(self, script=drawn_script(seed, self.length))
        return await ScriptedModel.branch(drawing, chain, begun, **options)


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
            pieces.append(THINK_END.encode() if paragraph + 1 == self.length else f".{DELIMITER}".encode())
            paragraph, words = paragraph + 1, 0
        return pieces

    def grades(self, prompt: list[int], wanted: list[int]) -> dict[str, float]:
        good = taste("grade", self.decode(prompt)) < 2 / 3
        self.digits = {"9" if good else "1": -0.01}
        return super().grades(prompt, wanted)
