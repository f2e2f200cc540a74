"""What `stepspec tune` says of simulated servers, beside the gain in a simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lab.virtual_clock import run
from stepspec.evals.arms import LARGE
from stepspec.evals.sample import Arm
from stepspec.evals.tune.measuring import Measured, Measuring
from stepspec.evals.tune.prediction import predict

from .figures import SimulatedSolver, start_servers
from .grid import Chains, Pair, simulate_cell

MINUTES = 4.0
PROBLEMS = 20


def measure(
    pair: Pair,
    arms: Sequence[Arm],
    chains: Chains,
    accepted: float,
    users: int,
) -> Measured:
    """Let `stepspec tune` measure the simulated *pair*, on a virtual clock."""
    scripts = chains.scripts(accepted, PROBLEMS)
    problems = {f"{number}": script for number, script in enumerate(scripts)}

    async def work() -> Measured:
        servers = start_servers(pair.small, pair.large, shared=pair.shared)
        async with SimulatedSolver(servers, problems) as solver:
            measuring = Measuring(solver, arms, list(problems), users)
            return await measuring.measure(MINUTES)

    return run(work())[0]


def compared(
    pair: Pair,
    arms: Sequence[Arm],
    chains: Chains,
    accepted: float,
    users: int,
) -> Iterator[dict[str, Any]]:
    """Yield the gain that `stepspec tune` says and the simulated one, alone and with *users*."""
    found = measure(pair, arms, chains, accepted, users)
    assert found.paces is not None
    for arm in arms:
        said = predict(found.methods[arm.name], found.paces, found.lengths)
        for load, gain in ((1, said.alone.value), (users, said.loaded)):
            cells = [
                simulate_cell(
                    pair,
                    each,
                    load,
                    chains,
                    share,
                    max(PROBLEMS, 4 * load),
                )
                for each, share in ((LARGE, 1.0), (arm, accepted))
            ]
            simulated = cells[0].figures.mean / cells[1].figures.mean
            yield {
                "pair": pair.name,
                "method": arm.name,
                "accepted": accepted,
                "users": load,
                "tuned": gain,
                "low": said.alone.low if load == 1 else None,
                "high": said.alone.high if load == 1 else None,
                "simulated": simulated,
                "over": gain / simulated if gain else None,
            }
