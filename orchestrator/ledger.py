"""How many tokens and seconds a run used, by model and by fate. A pure function of its events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from .chain import Accept, Party
from .events import Answered, Called, Chosen, Committed, Event, Judged, Repaired


@dataclass(frozen=True, slots=True)
class Account:
    """The tokens and seconds of one model in a run."""

    role: Party
    """The role of the model."""
    kept: int = 0
    """Tokens that the model wrote and that are in the chain or in the answer."""
    discarded: int = 0
    """Tokens that the model wrote in vain: rejected drafts and lost bets."""
    judging: int = 0
    """Tokens read or written to judge, without those in the server's prefix cache."""
    prompt: int = 0
    """Tokens of the prompts of all requests."""
    cached: int = 0
    """Tokens of the prompts that were in the server's prefix cache."""
    requests: int = 0
    """The number of requests."""
    failed: int = 0
    """The number of requests that failed."""
    writing: float = 0.0
    """Seconds that requests to write were open. Their times may overlap."""
    judged: float = 0.0
    """Seconds that requests to judge were open. Their times may overlap."""

    @property
    def written(self) -> int:
        return self.kept + self.discarded

    @property
    def waste(self) -> float:
        """The share of written tokens that were discarded; 0 if nothing was written."""
        return self.discarded / self.written if self.written else 0.0


COUNTED = tuple(field.name for field in fields(Account) if field.name != "role")
"""The fields of an account that can be added up."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The accounts of a run's models, and how many of its judged drafts were accepted."""

    small: Account
    """The small model's account."""
    large: Account
    """The large model's account."""
    drafts: int = 0
    """Judged drafts, without lost bets."""
    accepted: int = 0
    """Judged drafts that were not repaired: they were accepted, or a rival replaced them."""
    critic: Account = Account("critic")
    """The critic's account."""
    chosen: int = 0
    """Judged drafts that a rival replaced."""

    @property
    def accept_rate(self) -> float | None:
        """The share of judged drafts that were accepted; None if none was judged."""
        return self.accepted / self.drafts if self.drafts else None

    def __str__(self) -> str:
        """A table with a line for each model that had a request, and a line about the drafts."""
        row = "{:<8}{:>10}{:>11}{:>10}{:>10}{:>10}"
        lines = [row.format("", "kept", "discarded", "judging", "requests", "seconds")]
        for account in (self.small, self.large, self.critic):
            if account.requests:
                line = row.format(
                    account.role,
                    account.kept,
                    account.discarded,
                    account.judging,
                    account.requests,
                    f"{account.writing + account.judged:.2f}",
                )
                lines.append(line)
        return "\n".join([*lines, f"{self.accepted} of {self.drafts} drafts accepted"])

    @property
    def share_large(self) -> float:
        """The large model's share of the kept tokens."""
        kept = self.small.kept + self.large.kept
        return self.large.kept / kept if kept else 0.0

    @classmethod
    def of(cls, events: Iterable[Event]) -> Ledger:
        """Add up *events*, in any order."""
        events = tuple(events)
        judged = {
            (event.index, event.draft.text)
            for event in events
            if isinstance(event, Judged)
            and isinstance(event.verdict, Accept)
            and event.verdict.judged
        }
        repaired = {event.index for event in events if isinstance(event, Repaired)}
        chosen = {event.index for event in events if isinstance(event, Chosen)}
        accepted = len(chosen)
        for event in events:
            if isinstance(event, Committed) and event.index not in repaired | chosen:
                key = (event.index, event.step.text)
                accepted += event.step.author == "small" and key in judged
        return cls(
            small=_account("small", events),
            large=_account("large", events),
            drafts=accepted + len(repaired),
            accepted=accepted,
            critic=_account("critic", events),
            chosen=len(chosen),
        )


def _account(role: Party, events: Sequence[Event]) -> Account:
    calls = [event for event in events if isinstance(event, Called) and event.role == role]
    steps = [event.step for event in events if isinstance(event, Committed | Answered)]
    kept = sum(len(step.tokens) for step in steps if step.author == role)
    writes = [call for call in calls if call.verb == "write"]
    verdicts = [call for call in calls if call.verb != "write"]
    return Account(
        role,
        kept=kept,
        discarded=max(0, sum(call.written for call in writes) - kept),
        judging=sum(call.prompt - call.cached + call.written for call in verdicts),
        prompt=sum(call.prompt for call in calls),
        cached=sum(call.cached for call in calls),
        requests=len(calls),
        failed=sum(call.fate == "failed" for call in calls),
        writing=sum(call.seconds for call in writes),
        judged=sum(call.seconds for call in verdicts),
    )
