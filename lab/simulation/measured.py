"""
What was measured on an H200, and the same simulated: how far the simulation is from the truth.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from lab.script import Script, Turn
from lab.simulation.figures import simulate
from stepspec.evals.arms import LARGE
from stepspec.evals.sample import Arm

from .grid import CLOSE, GPUS, Pair, find_pair

TOTAL, ANSWER = 800, 9  # tokens of the chain that was measured, and of its answer
PROMPT, QUESTION = 120, 110  # tokens of its problem, and of the judge's question
DRAWS = 8  # orders of good and bad drafts, whose mean is taken


@dataclass(frozen=True, slots=True)
class Measured:
    """
    Seconds of SpecReason and of the large model alone, *at* once, with a share of drafts
    *accepted*.

    The large model wrote the tokens *mended*, which is not the same share: steps differ in length.
    With *known*, an earlier case had left the drafts in the prefix cache, so that a verdict read
    its question only.
    """

    at: int
    accepted: float
    mended: int
    large: float
    seconds: float
    known: bool = False
    date: str = "2026-11-26"


H200 = (
    Measured(1, 1.0, 0, 16.9, 3.4, known=True),
    Measured(1, 0.68, 340, 17.0, 10.7),
    Measured(1, 0.51, 396, 17.3, 12.9, known=True),
)


def lengths() -> list[int]:
    """The lengths of the script's steps; its words are drawn from the same generator."""
    rng = random.Random(1)
    left = TOTAL
    found = list[int]()
    while left > 0:
        found.append(min(rng.randint(20, 80), left))
        rng.choices("w", k=found[-1] - 1)
        left -= found[-1]
    return found


def scripts(case: Measured, question: int) -> list[Script]:
    """The chain with these shares of drafts and tokens, in several orders."""
    steps = lengths()
    drawn = random.Random(0)
    # the end of the thinking and the answer are judged too
    bad = round((1 - case.accepted) * (len(steps) + 2))
    orders = [drawn.sample(range(len(steps)), bad) for _ in range(4000)]
    orders.sort(key=lambda order: abs(sum(steps[place] for place in order) - case.mended))
    found: list[Script] = []
    for rejected in orders[:DRAWS]:
        turns = (
            Turn(size, size, grade=9.0) if place not in rejected else Turn(size, 0, size, 0.0)
            for place, size in enumerate(steps)
        )
        end = Turn(ANSWER, ANSWER, grade=9.0, stop="end", ends=True)
        found.append(Script(PROMPT, (*turns, replace(CLOSE), end), question))
    return found


def seconds(pair: Pair, arm: Arm, case: Measured) -> float:
    """The mean simulated seconds of a chain."""
    question = max(1, QUESTION - round(fmean(lengths()))) if case.known else QUESTION
    shared = pair.shared and arm.policy != LARGE.policy
    drawn = scripts(case, question)
    return simulate(case.at, arm, drawn, pair.small, pair.large, problems=DRAWS, shared=shared).mean


def floor(pair: Pair, case: Measured) -> float:
    """Seconds to write every kept token on its author, alone, at the mean length of the chain."""
    small, large = (costs.seconds(1, 0, PROMPT + TOTAL // 2) for costs in (pair.small, pair.large))
    return (TOTAL + ANSWER - case.mended) * small + case.mended * large


def rows(arms: Sequence[tuple[str, Arm]], pair: str) -> list[dict[str, Any]]:
    """Each measured case beside its simulation, for a table."""
    known = find_pair(GPUS, pair)
    table = list[dict[str, Any]]()
    for each in H200:
        large = seconds(known, LARGE, each)
        for name, arm in arms:
            ours = seconds(known, arm, each)
            table.append(
                {
                    "at": each.at,
                    "accepted": each.accepted,
                    "method": name,
                    "large": large,
                    "measured large": each.large,
                    "seconds": ours,
                    "measured seconds": each.seconds,
                    "ratio": ours / large,
                    "measured ratio": each.seconds / each.large,
                    "over the floor": ours / floor(known, each),
                }
            )
    return table
