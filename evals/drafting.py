"""What the servers of a pair accept, meanwhile, of the tokens that they draft for their own models."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from ..api import Solver
from ..orchestrator.chain import Role
from ..orchestrator.endpoints.acceptance import Acceptance

ByRole: TypeAlias = Mapping[Role, Acceptance]


async def drafted(solver: Solver) -> ByRole:
    """Look at the counters of both roles; those that do not speculate are left out."""
    endpoints = (solver.large, solver.small)
    found = await asyncio.gather(*(endpoint.acceptance() for endpoint in endpoints))
    return {one.role: told for one, told in zip(endpoints, found, strict=True) if told is not None}


def between(earlier: ByRole, later: ByRole) -> ByRole:
    """What happened from one look to the next."""
    return {role: told - earlier.get(role, Acceptance()) for role, told in later.items()}


def together(found: Iterable[ByRole]) -> ByRole:
    """Add up several of them."""
    added: dict[Role, Acceptance] = {}
    for one in found:
        for role, told in one.items():
            added[role] = added.get(role, Acceptance()) + told
    return added
