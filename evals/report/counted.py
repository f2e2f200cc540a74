"""What the servers counted while a run went on: prefix caches, and speculation token by token. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...orchestrator.endpoints.acceptance import Acceptance

QUERIES, HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
DRAFTS, DRAFTED, ACCEPTED = (
    f"vllm:spec_decode_num_{name}_total" for name in ("drafts", "draft_tokens", "accepted_tokens")
)


@dataclass(frozen=True, slots=True)
class Counted:
    """What the servers of one role counted in *sessions* sessions of a run, all arms and warm-ups together."""

    role: str
    sessions: int
    queried: int
    hit: int
    speculation: Acceptance | None

    @property
    def hits(self) -> float | None:
        return self.hit / self.queried if self.queried else None


def counted(sessions: Iterable[Mapping[str, Any]]) -> list[Counted]:
    """Add up what was counted in each session. One that was killed did not look at the end, and counts for nothing."""
    found: dict[str, list[dict[str, float]]] = {}
    for session in sessions:
        afters: list[Mapping[str, float]] = session.get("counters") or []
        for server, after in zip(session["servers"], afters, strict=False):
            grown: dict[str, float] = {name: after[name] - server["counters"].get(name, 0.0) for name in after}
            if grown and min(grown.values()) >= 0:  # else the server began anew, and its counters with it
                found.setdefault(server["role"], []).append(grown)
    return [_counted(role, each) for role, each in found.items()]


def _counted(role: str, sessions: list[dict[str, float]]) -> Counted:
    def total(name: str) -> int:
        return int(sum(session.get(name, 0.0) for session in sessions))

    drafted = Acceptance(total(DRAFTS), total(DRAFTED), total(ACCEPTED))
    return Counted(role, len(sessions), total(QUERIES), total(HITS), drafted if drafted.drafted else None)
