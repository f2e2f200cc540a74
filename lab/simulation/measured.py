"""What was measured on an H200, beside the same in a simulation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from lab.script import Script, Turn
from lab.simulation.figures import simulate, start_servers
from stepspec.evals.arms import LARGE
from stepspec.evals.sample import Arm

from .grid import CLOSE, GPUS, Pair, find_pair

TOTAL = 800  # tokens of the chain that was measured
ANSWER = 9  # tokens of its answer
PROMPT = 120  # tokens of its problem
QUESTION = 110  # tokens of the judge's question
DRAWS = 8  # orders of good and bad drafts, whose mean is taken


@dataclass(frozen=True, slots=True)
class Measured:
    """A chain that was measured."""

    at: int
    """Chains at once."""
    accepted: float
    """The share of the drafts that was accepted."""
    mended: int
    """Tokens of the large model's repairs."""
    large: float
    """Seconds of the large model alone."""
    seconds: float
    """Seconds of SpecReason."""
    known: bool = False
    """Whether the drafts were in the prefix cache, so that a verdict read its question only."""


# measured on 2026-11-26
H200 = (
    Measured(1, 1.0, 0, 16.9, 3.4, known=True),
    Measured(1, 0.68, 340, 17.0, 10.7),
    Measured(1, 0.51, 396, 17.3, 12.9, known=True),
)


def lengths() -> list[int]:
    """Return the lengths of the steps. The words are drawn from the same generator."""
    rng = random.Random(1)
    left = TOTAL
    found: list[int] = []
    while left > 0:
        found.append(min(rng.randint(20, 80), left))
        rng.choices("w", k=found[-1] - 1)
        left -= found[-1]
    return found


def scripts(case: Measured, question: int) -> list[Script]:
    """Return the chain with these shares of drafts and tokens, in several orders."""
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
    """Return the mean simulated seconds of a chain."""
    question = max(1, QUESTION - round(fmean(lengths()))) if case.known else QUESTION
    shared = pair.shared and arm.policy != LARGE.policy
    servers = start_servers(pair.small, pair.large, shared=shared)
    return simulate(
        case.at,
        arm,
        scripts(case, question),
        servers,
        problems=DRAWS,
    ).mean


def floor(pair: Pair, case: Measured) -> float:
    """Return the seconds to write every kept token on its author, at the mean length."""
    small, large = (costs.seconds(1, 0, PROMPT + TOTAL // 2) for costs in (pair.small, pair.large))
    return (TOTAL + ANSWER - case.mended) * small + case.mended * large


def rows(arms: Sequence[tuple[str, Arm]], pair: str) -> list[dict[str, Any]]:
    """Return each measured case beside its simulation, for a table."""
    known = find_pair(GPUS, pair)
    table: list[dict[str, Any]] = []
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
                },
            )
    return table
