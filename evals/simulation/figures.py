"""Simulate one arm under one load, and sum it up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..crowd import Load
from ..sample import Arm
from ..script import Script
from .costs import ServerCosts


@dataclass(frozen=True, slots=True)
class ServerWork:
    """
    What the servers of one role did: the share of the time that they were *busy*, and per second of it, in all servers.

    *written* and *read* are tokens that a second of the simulation wrote, and read uncached; *running* is the mean
    number of sequences in a pass.
    """

    busy: float
    written: float
    read: float
    running: float


@dataclass(frozen=True, slots=True)
class Figures:
    """
    The figures of one arm under one load, over *n* counted problems.

    *seconds* are the quantiles p50, p95 and p99 of the time from arrival to answer, and *mean* its mean. *first_step*
    and *first_answer* are medians: until the first verified step, and the answer's first token. *servers* is by role.
    """

    n: int
    seconds: Mapping[str, float]
    mean: float
    first_step: float | None
    first_answer: float | None
    problems_per_second: float
    tokens_per_second: float
    servers: Mapping[str, ServerWork]


def simulate(
    load: Load,
    arm: Arm,
    scripts: Sequence[Script],
    small: ServerCosts,
    large: ServerCosts,
    *,
    problems: int = 48,
    seed: int = 0,
    replicas: Mapping[str, int] | None = None,
    shared: bool = False,
) -> Figures:
    """
    Simulate *problems* counted problems of *load*, solved as *arm* does, on servers with these costs.

    The problems are those of *scripts*, in turn; *seed* is that of the arrivals. *replicas* is the number of
    servers by role, one by default. On a *shared* card the passes of both models take turns. The same arguments give
    the same figures. Not for use within a running event loop: it runs one of its own, on a virtual clock.
    """
    raise NotImplementedError
