"""
Measure how good verdicts are: which share of the small model's errors they let through.

Errors are found without labels. The large model goes on after a draft. The draft counts as an error
if the large model does not reach the next number of its own chain, or reaches it without any of the
numbers that only the draft has. Some right drafts that take another way count as errors, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from stepspec.orchestrator.chain import Step
from stepspec.orchestrator.interfaces import Model

from ..results import Interval, bootstrap_share
from .drafts import Place

ROOM_TOKENS = 16  # that a continuation may be longer than the large model's own steps
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
    Return the share of true *outcomes*, each of which comes with the number of its problem.

    The interval is that of `bootstrap_share`.
    """
    sizes = Counter(problem for problem, _ in outcomes)
    true = Counter(problem for problem, value in outcomes if value)
    trues = [true[problem] for problem in sizes]
    return bootstrap_share(trues, list(sizes.values()), least=0)
