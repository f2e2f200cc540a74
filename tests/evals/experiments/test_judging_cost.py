"""The rows compare the requests of their names; the figures come from real servers only."""

from __future__ import annotations

from itertools import islice

import pytest

from stepspec.evals.experiments.judging_cost import (
    JudgingMethod,
    Round,
    fresh_steps,
    judging_methods,
    long_chain,
    measure,
    summarise,
    table,
)

from ...orchestrator.endpoints.server import GENERATE, FakeVllm

COMPLETIONS = "/v1/completions"


async def test_every_way_sends_the_requests_of_its_name() -> None:
    server = FakeVllm(("So", " it", " is", "\n\n"), digits={"9": -0.1}, block=64, scale_out=True)
    async with (
        server.serve("large", suffix_scoring=True) as endpoint,
        judging_methods(endpoint, 3) as (large, all_ways),
    ):
        chain, steps = await long_chain(large, 500), fresh_steps(7)
        sent: list[list[tuple[str, int]]] = []
        for way in all_ways:
            for _ in range(2):  # The first time, the chain is read.
                drafts = await way.drafts(steps)
                server.requests.clear()
                await way.judge(chain, drafts)
            sent.append(
                [
                    (path, len(body["prompt"]) if path == COMPLETIONS and isinstance(body["prompt"][0], list) else 1)
                    for path, body in server.requests
                    if path != "/tokenize"
                ]
            )
    assert sent == [
        [(COMPLETIONS, 1)],
        [(GENERATE, 1)],
        [(COMPLETIONS, 1)],
        [(GENERATE, 1)],
        [(COMPLETIONS, 1)],
        [(COMPLETIONS, 1)] * 3,
        [(COMPLETIONS, 1)] * 3,
    ]


async def test_the_chain_has_the_requested_length() -> None:
    server = FakeVllm(digits={"9": -0.1}, block=16, scale_out=True)
    async with server.serve("large", suffix_scoring=True) as endpoint, judging_methods(endpoint, 2) as (large, _):
        chain = await long_chain(large, 600)
        assert 500 < len(await large.encoder.chain(chain)) <= 600


def test_no_step_occurs_twice() -> None:
    texts = [step.text for step in islice(fresh_steps(1), 500)]
    assert len(set(texts)) == 500


def test_every_way_is_compared_with_its_plain_one() -> None:
    async def judge(*_: object) -> None:
        raise NotImplementedError

    both = [JudgingMethod(name, "plain", 1, judge, []) for name in ("plain", "other")]
    measured = [Round("plain", seconds, 9, 1) for seconds in (4.0, 1.0, 2.0)]
    measured += [Round("other", seconds, 3, 1) for seconds in (1.0, 0.5, 9.0)]
    plain, other = summarise(measured, both)
    assert (plain.seconds, plain.least, plain.most, plain.ratio) == (2.0, 1.0, 4.0, 1.0)
    assert (other.seconds, other.ratio, other.read, other.n) == (1.0, 0.5, 3, 3)
    assert table([plain, other]).row_count == 2


@pytest.mark.parametrize("rounds", [1, 3])
async def test_rounds_that_warm_up_are_not_counted(rounds: int) -> None:
    judged: list[int] = []

    async def judge(chain: object, steps: list[object]) -> None:
        judged.append(len(steps))

    way = JudgingMethod("only", "only", 2, judge, [])  # type: ignore[arg-type]
    assert len(await measure(None, [way], rounds)) == rounds  # type: ignore[arg-type]
    assert judged == [2] * (rounds + 3)
