"""The circuit breaker of one server: whether calls may be sent there, and when it is probed. `replicas` sends both."""

from __future__ import annotations

import asyncio
from typing import Literal, TypeAlias

from ..errors import EndpointError, StepspecError

PROBE_SECONDS = 5.0  # for a probe of a server at which no request waits
FIRST_PAUSE = 1.0  # seconds from the first failed probe to the next; each further pause is twice as long

State: TypeAlias = Literal["closed", "half-open", "open"]


class Breaker:
    """
    Closed while the server works, half-open while a probe decides, open from a failed probe on.

    The pause before the next probe doubles up to *longest* seconds. A server that fails again within *longest* seconds
    after a probe is paused on from where it was. *failing* is set unless the circuit is closed, *settled* unless it is
    half-open.
    """

    def __init__(self, longest: float) -> None:
        self.state: State = "closed"
        self.error: StepspecError | None = None
        self.pause = 0.0
        self.failing, self.settled = asyncio.Event(), asyncio.Event()
        self.settled.set()
        self._longest, self._closed_at = longest, 0.0

    @property
    def cause(self) -> str:
        """Why the server failed last; "" if it never did."""
        return (self.error.cause if isinstance(self.error, EndpointError) else str(self.error or "")) or (
            "failed" if self.error else ""
        )

    def fail(self, exc: StepspecError) -> None:
        """Note that a call failed: the server is to be probed, unless its probes fail already."""
        if self.state == "closed":
            self.error, self.state = exc, "half-open"
            if asyncio.get_running_loop().time() - self._closed_at >= self._longest:
                self.pause = 0.0
            self.settled.clear()
            self.failing.set()

    def open(self, exc: StepspecError) -> None:
        """Note that a probe failed."""
        self.error, self.state = exc, "open"
        self.pause = min(2 * self.pause or FIRST_PAUSE, self._longest)
        self.failing.set()
        self.settled.set()

    def close(self) -> None:
        """Note that a probe succeeded."""
        self.state, self._closed_at = "closed", asyncio.get_running_loop().time()
        self.failing.clear()
        self.settled.set()
