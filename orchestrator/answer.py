"""Close the thinking and write the final answer; find the answer in what was written."""

from __future__ import annotations

from .chain import THINK_END, Chain, Step
from .interfaces import Model

BOXED = "\\boxed{"


def close(chain: Chain, author: Model) -> Chain:
    """End the thinking of *chain* where it did not end by itself, so that an answer can follow."""
    if THINK_END in chain.text:
        return chain
    closing = f"{'' if chain.text.endswith(chr(10)) else chr(10)}{THINK_END}"
    return chain.extend(Step(closing, author.role, "end", note="closed"))


async def write_answer(author: Model, chain: Chain, *, limit: int) -> Step:
    """Let *author* write what follows the thinking, at most *limit* tokens."""
    return await author.write(close(chain, author), stop=(), limit=limit)


def extract(text: str) -> str:
    r"""Return what the last complete ``\boxed{}`` of *text* holds, or its last line that says anything."""
    inside = boxed(text)
    if inside is not None:
        return inside
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def boxed(text: str) -> str | None:
    r"""Return what the last complete ``\boxed{}`` of *text* holds, if there is one."""
    start = text.rfind(BOXED)
    while start >= 0:
        inside = _balanced(text[start + len(BOXED) :])
        if inside is not None:
            return inside.strip()
        start = text.rfind(BOXED, 0, start)
    return None


def _balanced(text: str) -> str | None:
    depth = 1
    for place, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[:place]
    return None
