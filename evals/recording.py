"""What is recorded of a run while it goes on."""

from __future__ import annotations

from collections.abc import Sequence

from ..orchestrator.events import Adapted, Event, Observer, Started
from ..orchestrator.trace import Moment, Recorder, Stopwatch


class Recording:
    """Keeps the events of one run with their times, and after the first what it was *given*; *observe* sees all."""

    def __init__(self, observe: Observer, given: Adapted | None = None) -> None:
        self._observe, self._given = observe, given
        self._recorder: Recorder | None = None

    def __call__(self, event: Event) -> None:
        self._take(event)
        if isinstance(event, Started) and self._given is not None:
            self._take(self._given)

    @property
    def moments(self) -> Sequence[Moment]:
        return self._recorder.moments if self._recorder else ()

    def _take(self, event: Event) -> None:
        if self._recorder is None:
            self._recorder = Recorder(Stopwatch())  # A run begins with its first event.
        self._recorder(event)
        self._observe(event)
