"""What decides whether an answer is right: a true answer, or a check that a benchmark brings along."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, get_args

from stepspec.orchestrator.errors import ConfigurationError

from .answers import Metric
from .graders import Graders, Mark, require

METRICS: tuple[Metric, ...] = get_args(Metric)


class Gold(Protocol):
    """Decides whether an answer to one problem is right. ``str()`` of it is for lists that people read."""

    async def grade(self, text: str, graders: Graders) -> Mark:
        """Grade *text*, what a model wrote after its thinking. *graders* compares expressions by algebra."""
        ...

    def record(self) -> Mapping[str, Any]:
        """Return what the run folder keeps of it, as JSON. Runs with other records do not mix."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """One true answer; *metric* says how others are compared with it: as "math", "number", "choice" or "exact" text."""

    text: str
    metric: Metric = "math"

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ConfigurationError(f"there is no metric {self.metric!r}; the metrics: {', '.join(METRICS)}")

    async def grade(self, text: str, graders: Graders) -> Mark:
        return await graders.grade(text, self.text, self.metric)

    def record(self) -> Mapping[str, Any]:
        return {"answer": self.text, "metric": self.metric}

    def __str__(self) -> str:
        return self.text


def require_graders(golds: Iterable[Gold]) -> None:
    """Raise `ConfigurationError` if some of *golds* need what is not installed."""
    for metric in {gold.metric for gold in golds if isinstance(gold, Answer)}:
        require(metric)
