"""Properties of a nested pair with any policies: with seeds, random times and random budgets."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Budget, Ledger, Step
from stepspec.orchestrator.chain import Chain
from stepspec.orchestrator.events import Called, Committed, JudgedWithin
from stepspec.orchestrator.trace import Moment, dump, parse

from ...fakes import run
from ..arms import BOUNDED
from .families import INNER, OUTER, Family, family

SEEDS = st.integers(0, 10_000)
DEPTHS = st.sampled_from([0, 1, 2, 4])


@pytest.mark.parametrize("inner", INNER)
@given(
    outer=st.sampled_from(OUTER),
    seed=SEEDS,
    ahead=DEPTHS,
    tokens=st.integers(4, 90) | st.just(32_768),
)
@BOUNDED
def test_the_chain_is_the_same_at_any_lookahead_within_the_budget_and_the_accounts_add_up(
    inner: str, outer: str, seed: int, ahead: int, tokens: int
) -> None:
    budget = Budget(tokens, answer=1)
    expected, _ = run(family(outer, inner, seed=seed, budget=budget).run())
    betting = family(outer, inner, seed=seed, budget=budget, sticky=seed % 2 > 0)
    (chain, end), _ = run(betting.run(ahead))
    assert (chain, end) == expected
    assert chain.tokens <= tokens - 1
    assert end != "budget" or chain.tokens == tokens - 1
    _adds_up(betting, chain)


def _adds_up(family: Family, chain: Chain) -> None:
    ledger = Ledger.of(family.events)
    for fact in (
        "kept",
        "discarded",
        "judging",
        "prompt",
        "requests",
        "failed",
        "writing",
        "judged",
    ):
        total = sum(getattr(account, fact) for account in ledger.nested)
        assert total == pytest.approx(getattr(ledger.small, fact)), fact
    for account in ledger.nested:
        assert account.path.startswith("small.")
        assert account.role == "small"
        calls = [
            event
            for event in family.events
            if isinstance(event, Called) and event.path == account.path
        ]
        assert account.written == sum(call.written for call in calls if call.verb == "write")
    for path, drafts, stood in ledger.sifted:
        assert 0 <= stood <= drafts
        assert path in ("small", "small.small")
    for step in chain.steps:
        _joins(step)


def _joins(step: Step) -> None:
    if step.pieces:
        assert "".join(piece.text for piece in step.pieces) == step.text
        assert tuple(token.text for piece in step.pieces for token in piece.tokens) == tuple(
            token.text for token in step.tokens
        )
    for piece in step.pieces:
        _joins(piece)


@given(
    outer=st.sampled_from(OUTER),
    inner=st.sampled_from(INNER),
    seed=SEEDS,
    ahead=DEPTHS,
    deep=st.booleans(),
    pauses=st.lists(st.integers(0, 60), min_size=1, max_size=3),
)
@BOUNDED
def test_cancelling_at_any_moment_and_again_leaves_nothing_open(
    outer: str, inner: str, seed: int, ahead: int, deep: bool, pauses: list[int]
) -> None:
    async def main() -> None:
        nest = (inner, "specreason") if deep else (inner,)
        made = family(outer, *nest, seed=seed, sticky=seed % 2 > 0)
        running = asyncio.create_task(made.run(ahead))
        for pause in pauses:
            await asyncio.sleep(pause / 8)
            running.cancel()
        await asyncio.wait([running])
        if not running.cancelled():
            running.result()
        assert [model.open for model in made.models] == [0] * len(made.models)

    run(main())


@given(outer=st.sampled_from(OUTER), inner=st.sampled_from(INNER), seed=SEEDS)
@BOUNDED
def test_the_steps_and_verdicts_of_a_pair_survive_the_trace(
    outer: str, inner: str, seed: int
) -> None:
    made = family(outer, inner, seed=seed, sticky=True)
    run(made.run(2))
    recorded = [
        event for event in made.events if isinstance(event, Committed | Called | JudgedWithin)
    ]
    assert [parse(dump(Moment(0.0, event))).event for event in recorded] == recorded
