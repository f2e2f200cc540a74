"""
Equal seeds give equal chains: at any lookahead, alone or with other runs, and in another process.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepspec import Sampling, Solution, Solver
from stepspec.evals.testbed.solving_pair import fresh_tasks

from .conftest import Pair

pytestmark = pytest.mark.servers

COUNT = 4
SEED = 7
PROBLEMS = [task.problem for task in fresh_tasks(COUNT, 2_000)]
SECOND = f"""
import asyncio, json, sys
from stepspec import Sampling, Solver

async def main():
    policy, small, large, *problems = json.load(sys.stdin)
    async with Solver(small, large, sampling=Sampling(temperature=0.6), seed={SEED}) as solver:
        work = [solver.solve(one, policy=policy, ahead=2, hedge=0.9) for one in problems]
        solutions = await asyncio.gather(*work)
    kept = [
        [[step.author, step.text] for step in one.steps if step.fate == "kept"]
        for one in solutions
    ]
    json.dump([[*steps, one.text] for steps, one in zip(kept, solutions)], sys.stdout)

asyncio.run(main())
"""


def written(solution: Solution) -> list[Any]:
    return [
        *([step.author, step.text] for step in solution.steps if step.fate == "kept"),
        solution.text,
    ]


async def chains(solver: Solver, together: int, **options: Any) -> list[list[Any]]:
    """What became of every problem, so many of them at a time."""
    places = asyncio.Semaphore(together)

    async def one(problem: str) -> list[Any]:
        async with places:
            return written(await solver.solve(problem, **options))

    return await asyncio.gather(*map(one, PROBLEMS))


@pytest.mark.parametrize("policy", ["specreason", "small"])
async def test_a_seed_brings_the_same_chains_back(pair: Pair, tmp_path: Path, policy: str) -> None:
    urls = pair.small.base_url, pair.large.base_url
    async with Solver(
        *urls, sampling=Sampling(temperature=0.6), seed=SEED, policy=policy
    ) as solver:
        expected = await chains(solver, 1, ahead=0)
        assert await chains(solver, 8, ahead=3) == expected
        others = await chains(solver, 8, ahead=2, seed=SEED + 1)
    # or nothing was sampled
    assert sum(one != other for one, other in zip(others, expected, strict=True)) >= 2
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("STEPSPEC_")
    }
    second = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", SECOND],
        input=json.dumps([policy, *urls, *PROBLEMS]),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment,
    )
    assert json.loads(second.stdout) == expected
