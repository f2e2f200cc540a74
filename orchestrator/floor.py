"""
How sure a draft has to be for bets to be made beyond it: a floor that follows how often such bets are won.

The idea is Kangaroo's (Liu et al. 2024, arXiv:2404.18911), which ends drafting at a token of low confidence; here the
unit is a step, and the floor adapts. Pure: the same verdicts, the same floor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log

from .chain import Accept, Step
from .errors import ConfigurationError
from .events import Event, Judged

LEAST, MOST = 1e-4, 10.0  # nats


@dataclass(eq=False)
class Floor:
    """
    Lets bets be made beyond drafts whose *confidence*, 0 to 1, is at least that of the floor, `at`.

    Of the drafts above the floor a share of *wanted* is accepted in the long run (Robbins and Monro, 1951): each that
    is rejected raises the floor, and each that is accepted lowers it by as much less as there should be more of them. A
    *step* is a factor, for sure drafts differ in their last digits: it multiplies the *doubt*, in nats, that is
    allowed.
    """

    confidence: Callable[[Step], float]
    wanted: float = 0.8
    step: float = 1.1
    doubt: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.wanted < 1 and self.step > 1):
            raise ConfigurationError(f"a floor needs a share wanted, and a step above 1: {self.wanted}, {self.step}")

    @property
    def at(self) -> float:
        return exp(-self.doubt)

    def carries(self, draft: Step) -> bool:
        """Whether *draft* is sure enough to bet on; a step that nobody judges is."""
        return draft.author != "small" or not draft.tokens or self.confidence(draft) >= self.at

    def observe(self, event: Event) -> None:
        """Learn from a verdict on a draft that was bet on."""
        if not isinstance(event, Judged) or event.draft.author != "small" or not self.carries(event.draft):
            return
        up, down = log(self.step) * (1 - self.wanted) / self.wanted, -log(self.step)
        change = up if isinstance(event.verdict, Accept) else down
        self.doubt = min(MOST, max(LEAST, self.doubt * exp(change)))
