"""Whoever watches the service: metrics, spans, logs. They learn everything and decide nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..chain import Role
from ..events import Event
from ..solution import Solution
from .visit import Visit


class Witness(Protocol):
    """Sees every request to the service, and everything that happens in its runs."""

    def begins(self, visit: Visit) -> None:
        """A request came in."""
        ...

    def sees(self, visit: Visit, index: int, event: Event) -> None:
        """Something happened in the run of choice *index*."""
        ...

    def solved(self, visit: Visit, index: int, solution: Solution) -> None:
        """The run of choice *index* is over."""
        ...

    def failed(self, visit: Visit, exc: Exception) -> None:
        """Something failed that nobody foresaw."""
        ...

    def ends(self, visit: Visit) -> None:
        """A request was answered, or its client went away."""
        ...

    def looked(self, role: Role, up: bool) -> None:
        """Somebody looked whether the servers of *role* are up."""
        ...


@dataclass(frozen=True, slots=True)
class Witnesses:
    """Several as one."""

    all: Sequence[Witness]

    def begins(self, visit: Visit) -> None:
        for witness in self.all:
            witness.begins(visit)

    def sees(self, visit: Visit, index: int, event: Event) -> None:
        for witness in self.all:
            witness.sees(visit, index, event)

    def solved(self, visit: Visit, index: int, solution: Solution) -> None:
        for witness in self.all:
            witness.solved(visit, index, solution)

    def failed(self, visit: Visit, exc: Exception) -> None:
        for witness in self.all:
            witness.failed(visit, exc)

    def ends(self, visit: Visit) -> None:
        for witness in self.all:
            witness.ends(visit)

    def looked(self, role: Role, up: bool) -> None:
        for witness in self.all:
            witness.looked(role, up)
