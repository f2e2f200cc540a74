"""Shadow checks cover a sample of the accepted steps, delay no run, and leave no request open."""

import asyncio

import pytest

from stepspec.orchestrator import Chain, Step
from stepspec.orchestrator.errors import EndpointUnavailable
from stepspec.orchestrator.events import Called, Committed
from stepspec.orchestrator.feedback.shadow import Finding, ShadowRecord, Shadows

from ...fakes import run
from ..arms import PROBLEM

STEPS = [Step(f"Step {number}.\n\n", "small") for number in range(1000)]


class Checker:
    def __init__(self, seconds: float = 1.0, wrong: str = "7", fails: str = "none", lost: str = "none") -> None:
        self.seconds, self.wrong, self.fails, self.lost = seconds, wrong, fails, lost
        self.checked: list[Step] = []
        self.open = 0

    async def __call__(self, chain: Chain, step: Step) -> Finding | None:
        self.checked.append(step)
        self.open += 1
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.open -= 1
        if self.fails in step.text:
            raise EndpointUnavailable("gone", role="large")
        if self.lost in step.text:
            return None
        return Finding(agreed=self.wrong not in step.text, own=self.wrong not in step.text and "8" not in step.text)


def shadowed(
    shadows: Shadows, check: Checker, steps: list[Step], *, apart: float = 2.0, calm: bool = True
) -> ShadowRecord:
    async def main() -> ShadowRecord:
        for step in steps:
            shadows.consider(PROBLEM, step, check, calm=calm)
            await asyncio.sleep(apart)
        await shadows.close()
        return shadows.record

    return run(main())[0]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_checked_share_is_the_configured_one(share: float) -> None:
    record = shadowed(Shadows(share), Checker(), STEPS)
    assert record.checked == pytest.approx(1000 * share, abs=60 if 0 < share < 1 else 0)


def test_the_same_steps_are_chosen_every_time() -> None:
    first, second = Checker(), Checker()
    shadowed(Shadows(0.1), first, STEPS)
    shadowed(Shadows(0.1), second, STEPS[::-1])
    assert first.checked == second.checked[::-1]


def test_agreements_and_failures_are_counted() -> None:
    record = shadowed(Shadows(1.0), Checker(fails="5", lost="6"), STEPS[:10])
    assert (record.agreed, record.disputed, record.own_disputed, record.failed) == (7, 1, 2, 2)
    assert record.excess == pytest.approx(-1 / 8)
    assert ShadowRecord().excess is None


def test_concurrent_checks_are_limited_and_none_starts_on_a_busy_server() -> None:
    check = Checker(seconds=100.0)
    record = shadowed(Shadows(1.0, most=3), check, STEPS[:10], apart=1.0)
    assert (len(check.checked), record.skipped, check.open) == (3, 7, 0)
    assert shadowed(Shadows(1.0), Checker(), STEPS[:10], calm=False) == ShadowRecord(skipped=10)


@pytest.mark.parametrize(
    ("chain", "step"),
    [
        (PROBLEM, Step("Half a", "small", "length")),
        (PROBLEM, Step("Cut here", "small", "until")),
        (PROBLEM.extend(Step("Half a", "small", "length")), STEPS[0]),
    ],
)
def test_an_incomplete_step_is_not_checked(chain: Chain, step: Step) -> None:
    shadows, check = Shadows(1.0), Checker()
    shadows.consider(chain, step, check)
    assert not check.checked
    assert shadows.record == ShadowRecord()


def test_closing_cancels_open_checks() -> None:
    check = Checker(seconds=1000.0)
    record = shadowed(Shadows(1.0), check, STEPS[:3])
    assert (check.open, record.checked) == (0, 0)


def test_the_tokens_of_shadows_are_counted_here() -> None:
    shadows = Shadows(1.0)
    shadows.observe(Called("large", "write", "done", 0.0, 1.0, 0.1, 30, 0, 7))
    shadows.observe(Called("large", "ask", "done", 0.0, 1.0, None, 50, 0, 1))
    shadows.observe(Committed(0, STEPS[0]))
    assert (shadows.record.read, shadows.record.written) == (80, 8)
