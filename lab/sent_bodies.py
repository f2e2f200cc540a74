"""
The bodies of all requests that stepspec sends to vLLM: ``python -m lab.sent_bodies FILE``.

Every method solves a problem on two servers without a model (``tests.stand_in``), which keep what
they are sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from stepspec import Solver
from stepspec.orchestrator.endpoints import Endpoint, Sampling
from stepspec.orchestrator.errors import StepspecError
from stepspec.policies import METHODS
from tests.stand_in import StandIn

PROBLEM = "What is 6 x 7?"
SECONDS = 60.0


class Kept(list[tuple[str, dict[str, Any]]]):
    """The requests of a stand-in, which forgets them as it goes on."""

    def clear(self) -> None:
        """Keep all of them."""


async def sent_bodies() -> dict[str, list[dict[str, Any]]]:
    """Return the bodies by the path of their route, each kind of body once."""
    logging.getLogger("aiohttp.server").disabled = True  # a bet that is lost closes its connection
    small = StandIn(scale_out=True, requests=Kept(), steps=6)
    large = StandIn(scale_out=True, requests=Kept(), steps=6)
    found: dict[str, dict[tuple[str, ...], dict[str, Any]]] = {}
    async with (
        small.serve("small", suffix_scoring=True) as one,
        large.serve("large", suffix_scoring=True) as other,
    ):
        for policy in METHODS:
            for seed in (None, 7):
                await solve(one, other, policy, seed)
    for path, body in (*small.requests, *large.requests):
        by_fields = found.setdefault(path, {})
        by_fields.setdefault(tuple(sorted(body)), body)
    return {path: list(by_fields.values()) for path, by_fields in found.items()}


async def solve(
    small: Endpoint,
    large: Endpoint,
    policy: str,
    seed: int | None,
) -> None:
    """Solve the problem by *policy*. A method that needs a third model sends nothing."""
    try:
        async with asyncio.timeout(SECONDS):
            async with Solver(
                small,
                large,
                sampling=Sampling(seed=seed),
            ) as solver:
                await solver.solve(PROBLEM, policy=policy, auto=False)
    except StepspecError as exc:
        print(f"{policy}: {exc}", file=sys.stderr)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(asyncio.run(sent_bodies())), encoding="utf-8")
