"""
How good verdicts are: which slips and which errors of the small model's own they let through.

A draft counts as an error if the large model, which goes on after it, does not reach the next
number of its own chain, or does so without a number that only the draft has. That needs no labels.
Some right drafts that take another way count as errors, too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stepspec.orchestrator.chain import THINK_END, Step, Token
from stepspec.orchestrator.interfaces import Model

from ..results import Interval, wilson
from .drafts import Place, Trial
from .slips import NUMBER, make_slip

MIN_ERRORS = 5  # errors, or slips, below which their share says nothing
MIN_CHARACTERS = 12  # of a step that says something
ROOM_TOKENS = 16  # of a continuation, beyond the large model's own steps


@dataclass(frozen=True, slots=True)
class SlippedStep:
    """A step of the large model's own with a slip, as a draft."""

    draft: Step
    """The step with the slip. Each word counts as a token."""
    position: int
    """The first character that the slip changes."""


def slipped(place: Place, rng: random.Random) -> SlippedStep | None:
    """Make a slip in the large model's own step of *place*; None if it has no room for one."""
    own = place.own
    usable = own.stop == "delimiter" and len(own.text.strip()) >= MIN_CHARACTERS
    if not usable or THINK_END in own.text:
        return None
    made = make_slip(own.text, rng)
    if made is None:
        return None
    text, _ = made
    pairs = enumerate(zip(own.text, text, strict=False))
    position = next((index for index, (old, new) in pairs if old != new), len(text))
    words = text.split(" ")
    pieces = [f"{word} " for word in words[:-1]] + words[-1:]
    tokens = tuple(Token(piece) for piece in pieces if piece)
    return SlippedStep(Step(text, "small", "delimiter", tokens), position)


def lets_through(trial: Trial, step: SlippedStep) -> bool:
    """Whether the method of *trial* keeps the slip of *step*."""
    return trial.accepted or trial.kept_text > step.position


async def is_error(large: Model, place: Place, draft: Step) -> bool | None:
    """
    Whether *draft* leads the *large* model away from the next number of its own chain.

    It is an error, too, if the large model gets there but uses none of the numbers that only the
    draft has. None if its own next two steps have no new number.
    """
    after = place.following.text if place.following else ""
    tokens = len(place.own.tokens) + (len(place.following.tokens) if place.following else 0)
    known = {*numbers(place.chain.messages[-1].content), *numbers(place.chain.text)}
    new = [number for number in numbers(place.own.text) if number not in known]
    new_after = [number for number in numbers(after) if number not in known]
    if not (new or new_after):
        return None
    target = new[-1] if new else new_after[0]
    drafted = set(numbers(draft.text))
    if target in drafted:
        return False
    longer = place.chain.extend(draft)
    going_on = await large.write(longer, stop=(), limit=tokens + ROOM_TOKENS)
    reached = set(numbers(going_on.text))
    foreign = drafted - known - {*new, *new_after}
    return target not in reached or bool(foreign and not foreign & reached)


def numbers(text: str) -> list[str]:
    """The numbers of *text*, in order, without thousands separators."""
    return [found.group().replace(",", "") for found in NUMBER.finditer(text)]


def clustered(outcomes: Sequence[tuple[int, bool]]) -> Interval:
    """
    The share of true *outcomes*, each with the number of its problem, and its 95% interval.

    Wilson's interval of as many outcomes as are worth the same if those of one problem depend on
    each other: n over the design effect (Kish 1965).
    """
    count = len(outcomes)
    share = sum(true for _, true in outcomes) / count
    sizes = Counter(problem for problem, _ in outcomes)
    true = Counter(problem for problem, value in outcomes if value)
    independent = share * (1 - share) / count
    effective = float(count)
    if len(sizes) == 1:
        effective = 1.0
    elif independent:
        squares = sum((true[each] - share * size) ** 2 for each, size in sizes.items())
        variance = squares / count**2 * len(sizes) / (len(sizes) - 1)
        effective = count / max(1.0, variance / independent)
    return wilson(share * effective, effective)


@dataclass(frozen=True, slots=True)
class JudgedDraft:
    """A draft of the small model, and whether a method accepts it."""

    problem: int
    """The number of the problem."""
    tokens: int
    """The length of the draft."""
    error: bool | None
    """Whether it is an error; None if that is not known."""
    accepted: bool
    """Whether the method accepts all of it."""


def length_alone(drafts: Sequence[JudgedDraft]) -> float:
    """
    The share of errors that the length of a draft lets through.

    As many drafts are accepted as the method accepts: the shortest ones.
    """
    accepted = sum(draft.accepted for draft in drafts)
    shortest = sorted(drafts, key=lambda draft: draft.tokens)[:accepted]
    errors = sum(bool(draft.error) for draft in drafts)
    return sum(bool(draft.error) for draft in shortest) / errors
