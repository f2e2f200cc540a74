"""Requests that stay open between two writes: where, for how long, and the saving."""

from contextlib import AsyncExitStack
from dataclasses import dataclass

from stepspec.orchestrator import Chain, Model, Rollback, Step, Verdict, reason
from stepspec.orchestrator.interfaces import KEPT_OPEN
from stepspec.policies import SpecReason

from ..fakes import run
from .arms import PROBLEM, pair


@dataclass(frozen=True)
class Spying:
    """SpecReason that notes where it may leave requests open."""

    inner: SpecReason
    contexts: dict[str, list[AsyncExitStack | None]]

    @property
    def answerer(self) -> Model:
        return self.inner.answerer

    async def draft(self, chain: Chain) -> Step:
        self.contexts["draft"].append(KEPT_OPEN.get())
        return await self.inner.draft(chain)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        self.contexts["verify"].append(KEPT_OPEN.get())
        return await self.inner.verify(chain, draft)

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        self.contexts["repair"].append(KEPT_OPEN.get())
        return await self.inner.repair(chain, draft, rollback)


def spied(ahead: int) -> dict[str, list[AsyncExitStack | None]]:
    small, large = pair(wrong=(4,))
    contexts: dict[str, list[AsyncExitStack | None]] = {"draft": [], "verify": [], "repair": []}

    async def main() -> None:
        await reason(Spying(SpecReason(small, large), contexts), PROBLEM, ahead=ahead)
        assert KEPT_OPEN.get() is None

    run(main())
    return contexts


def test_requests_may_be_left_open_by_drafts_alone_and_for_one_block() -> None:
    contexts = spied(ahead=1)
    assert len({id(stack) for stack in contexts["draft"]}) == 2  # before and after the one repair
    assert None not in contexts["draft"]
    assert set(contexts["verify"]) == set(contexts["repair"]) == {None}


def test_without_lookahead_no_request_may_be_left_open() -> None:
    assert {stack for stacks in spied(ahead=0).values() for stack in stacks} == {None}


def test_a_request_that_was_left_open_saves_its_latency_and_is_closed_during_the_repair() -> None:
    small, large = pair(length=6, wrong=(3,))
    small.sticky, small.pace = True, 0.125
    _, seconds = run(reason(SpecReason(small, large), PROBLEM, ahead=1))
    log = small.log
    assert [line for line in log if line.startswith("small")] == [
        "small write 0",
        *(f"small goes on {index}" for index in (1, 2, 3, 4)),
        "small write 0 cancelled",
        "small write 4",
        "small goes on 5",
        "small write 4 done",
    ]
    assert log.index("small write 0 cancelled") < log.index("large write 3 done")
    # The fourth draft is complete at 4.25 s, and its judgement at 5.25 s; the repair at 6.25 s; the last two drafts at
    # 8 s and 9 s, and the last judgement a second later.
    assert seconds == 10


def test_no_bet_continues_while_open_requests_are_closed() -> None:
    small, large = pair(wrong=(0,))
    small.sticky, small.pace, small.closing = True, 0.125, 5.0
    run(reason(SpecReason(small, large), PROBLEM, ahead=9))
    refused, closed = small.log.index("large ask 1 done"), small.log.index("small write 0 cancelled")
    assert "large write 0 done" in small.log[refused:closed]
    assert not [line for line in small.log[refused:closed] if "goes on" in line or line.startswith("small write 1")]
