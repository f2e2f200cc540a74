"""What a run holds while its chain grows."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from stepspec.api import Solver
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Chain
from stepspec.orchestrator.endpoints import Endpoint, Sampling
from stepspec.orchestrator.reason import reason
from stepspec.orchestrator.trace import Stopwatch

from ..stand_in import stand_in_process

SHORT = 50  # steps
TIMES = 5
SERVER = ("--steps", "10000", "--step-tokens", "40", "--room", "1000000", "--block", "0")


async def peak(method: str, steps: int) -> int:
    """Return the most bytes that one run of *steps* steps held, beyond those held before it."""
    with stand_in_process(*SERVER) as url:
        small = Endpoint(role="small", url=url)
        large = Endpoint(role="large", url=url)
        async with Solver(small, large, sampling=Sampling(temperature=0)) as solver:
            models = solver.connections.models(
                Budget(tokens=1_000_000), Sampling(temperature=0), lambda event: None, Stopwatch()
            )
            policy = models.policy_of(solver.resolve(policy=method))
            await reason(policy, Chain.of("Why?"), ahead=2, spent=lambda chain: chain.tokens > 99)
            gc.collect()
            tracemalloc.start()
            try:
                chain, _ = await reason(
                    policy,
                    Chain.of("What?"),
                    ahead=2,
                    spent=lambda chain: len(chain.steps) >= steps,
                )
                assert len(chain.steps) == steps
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()


@pytest.mark.parametrize("method", ["specreason", "large"])
async def test_the_memory_of_a_chain_grows_with_its_length(method: str) -> None:
    short = await peak(method, SHORT)
    long = await peak(method, TIMES * SHORT)
    # What a run holds from its start on is in both.
    assert long < 0.75 * TIMES * short
