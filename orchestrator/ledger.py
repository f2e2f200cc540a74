"""Where the tokens and the seconds of a run went, by model and by fate. A pure function of its events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .chain import Role
from .events import Answered, Called, Committed, Event, Judged

ROLES: tuple[Role, ...] = ("small", "large")


@dataclass(frozen=True, slots=True)
class Account:
    """
    What one model did in a run.

    Tokens: *kept* are in the chain or the answer; *discarded* were written for nothing (rejected drafts, lost bets);
    *judging* were read or written to judge and were not in the server's prefix cache. *prompt* and *cached* count all
    prompt tokens sent, whatever for. *writing* and *judged* are the seconds that requests of that kind were open; they
    overlap with the other model's, and may with each other.
    """

    role: Role
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
    """Both models' accounts, and how many of the drafts that were judged stood."""

    small: Account
    large: Account
    drafts: int = 0
    accepted: int = 0

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
        accounts = {role: _account(role, events) for role in ROLES}
        drafts = _decided(events)
        return cls(accounts["small"], accounts["large"], len(drafts), sum(drafts.values()))


def _account(role: Role, events: tuple[Event, ...]) -> Account:
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


def _decided(events: tuple[Event, ...]) -> dict[tuple[int, str], bool]:
    """Every draft whose verdict the chain followed, with whether it stands: those that were committed or repaired."""
    kept = {(e.index, e.step.text) for e in events if isinstance(e, Committed) and not e.step.note}
    committed = {e.index: e.step for e in events if isinstance(e, Committed)}
    decided: dict[tuple[int, str], bool] = {}
    for event in events:
        if isinstance(event, Judged):
            key = (event.index, event.draft.text)
            repaired = event.index in committed and bool(committed[event.index].note)
            if key in kept or repaired:
                decided[key] = key in kept
    return decided
