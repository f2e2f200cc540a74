"""
How good verdicts are: which slips and which errors of the small model's own they let through.

A slip is an error made on purpose, in a step of the large model. A draft counts as an error if the
large model, which goes on after it, does not reach the next number of its own chain, or does so
without a number that only the draft has. That needs no labels. Some right drafts that take another
way count as errors, too.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from stepspec.orchestrator.chain import THINK_END, Accept, Step, Token, Verdict
from stepspec.orchestrator.interfaces import Model

from ..results import Interval, bootstrap_ratio
from .drafts import Place

ROOM_TOKENS = 16  # of a continuation, beyond the large model's own steps
NUMBER = re.compile(r"(?m)(?!^\d+[.)]\s)(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
SIGN = re.compile("(?<=[\\w)] )[+\N{MINUS SIGN}-](?= [\\w($\\\\])")
WORD = re.compile(r"\s*\S+|\s+")


@dataclass(frozen=True, slots=True)
class Slip:
    """A step of the large model's own with an error made on purpose, as a draft."""

    draft: Step
    """The step with the slip. Each word counts as a token."""
    position: int
    """The character that differs."""

    def passes(self, verdict: Verdict) -> bool:
        """Whether the *verdict* keeps the slip."""
        return isinstance(verdict, Accept) or verdict.keep > self.position


def make_slip(place: Place, rng: random.Random) -> Slip | None:
    """
    Change a digit of one of the last two numbers of the large model's step, or a sign.

    *rng* draws which. Return None if the step has neither.
    """
    text = place.own.text
    if place.own.stop != "delimiter" or THINK_END in text:
        return None
    numbers = [number.span() for number in NUMBER.finditer(text)]
    digits = [index for span in numbers[-2:] for index in range(*span) if text[index].isdigit()]
    positions = [*digits, *(sign.start() for sign in SIGN.finditer(text))]
    if not positions:
        return None
    position = rng.choice(positions)
    old = text[position]
    others = "123456789".replace(old, "")
    if not old.isdigit():
        others = "-" if old == "+" else "+"
    changed = text[:position] + rng.choice(others) + text[position + 1 :]
    words = tuple(Token(word) for word in WORD.findall(changed))
    return Slip(Step(changed, "small", "delimiter", words), position)


async def is_error(large: Model, place: Place, draft: Step) -> bool | None:
    """
    Whether *draft* leads the *large* model away from the next number of its own chain.

    It is an error, too, if the large model gets there but uses none of the numbers that only the
    draft has. None if its own next two steps have no new number.
    """
    known = {*numbers(place.chain.messages[-1].content), *numbers(place.chain.text)}
    new = [number for number in numbers(place.own.text) if number not in known]
    new_after = [number for number in numbers(place.following.text) if number not in known]
    if not (new or new_after):
        return None
    target = new[-1] if new else new_after[0]
    drafted = set(numbers(draft.text))
    if target in drafted:
        return False
    going_on = await large.write(
        place.chain.extend(draft),
        stop=(),
        limit=len(place.own.tokens) + len(place.following.tokens) + ROOM_TOKENS,
    )
    reached = set(numbers(going_on.text))
    foreign = drafted - known - {*new, *new_after}
    return target not in reached or bool(foreign and not foreign & reached)


def numbers(text: str) -> list[str]:
    """The numbers of *text*, in order, without thousands separators."""
    return [found.group().replace(",", "") for found in NUMBER.finditer(text)]


def share_by_problem(outcomes: Sequence[tuple[int, bool]]) -> Interval:
    """
    The share of true *outcomes*, each with the number of its problem, and its 95% interval.

    It is a bootstrap over problems. Two more are drawn from, of which all outcomes are true or
    false: problems of a kind too rare to be among these.
    """
    sizes = Counter(problem for problem, _ in outcomes)
    true = Counter(problem for problem, value in outcomes if value)
    usual = fmean(sizes.values())
    shares = [*(true[problem] for problem in sizes), 0, usual]
    drawn = bootstrap_ratio(shares, [*sizes.values(), usual, usual])
    return Interval(true.total() / len(outcomes), drawn.low, drawn.high)
