"""
How good verdicts are: which errors of the small model they let through.

A draft counts as an error if the large model, which goes on after it, does not reach the next
number of its own chain, or does so without a number that only the draft has. That needs no labels.
Some right drafts that take another way count as errors, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from stepspec.orchestrator.chain import Step
from stepspec.orchestrator.interfaces import Model

from ..results import Interval, bootstrap_ratio
from .drafts import Place

ROOM_TOKENS = 16  # of a continuation, beyond the large model's own steps
NUMBER = re.compile(r"(?m)(?!^\d+[.)]\s)(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")


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
