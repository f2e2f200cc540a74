"""Where the tokens and the seconds of a run went, by model and by fate. A pure function of its events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .chain import Accept, Party
from .events import Answered, Called, Committed, Event, Judged, Repaired


@dataclass(frozen=True, slots=True)
class Account:
    """
    What one model did in a run.

    Tokens: *kept* are in the chain or the answer; *discarded* were written for nothing (rejected drafts, lost bets);
    *judging* were read or written to judge and were not in the server's prefix cache. *prompt* and *cached* count all
    prompt tokens sent, whatever for. *writing* and *judged* are the seconds that requests of that kind were open; they
    overlap with the other model's, and may with each other.
    """

    role: Party
    kept: int = 0
    discarded: int = 0
    judging: int = 0
    prompt: int = 0
    cached: int = 0
    requests: int = 0
    failed: int = 0
    writing: float = 0.0
    judged: float = 0.0

    @property
    def written(self) -> int:
        return self.kept + self.discarded

    @property
    def waste(self) -> float:
        """Discarded tokens over written ones; 0 where nothing was written."""
        return self.discarded / self.written if self.written else 0.0


@dataclass(frozen=True, slots=True)
class Ledger:
    """The accounts of both models and of the critic, and how many of the drafts that were judged stood."""

    small: Account
    large: Account
    drafts: int = 0
    accepted: int = 0
    critic: Account = Account("critic")

    @property
    def accept_rate(self) -> float | None:
        """Accepted drafts over judged ones that were not bets on a rejected step; None where none was judged."""
        return self.accepted / self.drafts if self.drafts else None

    @property
    def share_large(self) -> float:
        """The large model's share of the tokens that were kept."""
        kept = self.small.kept + self.large.kept
        return self.large.kept / kept if kept else 0.0

    @classmethod
    def of(cls, events: Iterable[Event]) -> Ledger:
        """Add up *events*, in any order."""
        events = tuple(events)
        accepted, repaired = _decided(events)
        return cls(
            small=_account("small", events),
            large=_account("large", events),
            drafts=accepted + repaired,
            accepted=accepted,
            critic=_account("critic", events),
        )


def _account(role: Party, events: tuple[Event, ...]) -> Account:
    account, written = Account(role), 0
    for event in events:
        match event:
            case Called(role=by) if by == role:
                account = _charge(account, event)
                written += event.written if event.verb == "write" else 0
            case Committed(step=step) | Answered(step=step) if step.author == role:
                account = replace(account, kept=account.kept + len(step.tokens))
            case _:
                pass
    return replace(account, discarded=max(0, written - account.kept))


def _charge(account: Account, call: Called) -> Account:
    account = replace(
        account,
        prompt=account.prompt + call.prompt,
        cached=account.cached + call.cached,
        requests=account.requests + 1,
        failed=account.failed + (call.fate == "failed"),
    )
    if call.verb == "write":
        return replace(account, writing=account.writing + call.seconds)
    judging = account.judging + call.prompt - call.cached + call.written
    return replace(account, judging=judging, judged=account.judged + call.seconds)


def _decided(events: tuple[Event, ...]) -> tuple[int, int]:
    """How many drafts were committed whole, and how many were repaired; drafts of lost bets are neither."""
    approved = {(e.index, e.draft.text) for e in events if isinstance(e, Judged) and isinstance(e.verdict, Accept)}
    repaired = {e.index for e in events if isinstance(e, Repaired)}
    committed = [e for e in events if isinstance(e, Committed) and e.index not in repaired]
    return sum((e.index, e.step.text) in approved for e in committed), len(repaired)
