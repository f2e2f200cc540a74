"""How many tokens and seconds a run used, by model and by fate. A pure function of its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from .chain import Accept, Party, Step
from .events import Answered, Called, Chosen, Committed, Event, Judged, JudgedWithin, Repaired


@dataclass(frozen=True, slots=True)
class Account:
    """
    The tokens and seconds of one model in a run.

    *kept* tokens are in the chain or the answer; *discarded* ones were written in vain (rejected
    drafts, lost bets); *judging* ones were read or written to judge, and were not in the server's
    prefix cache. *prompt* and *cached* count the prompt tokens of all requests. *writing* and
    *judged* are the seconds that requests of that kind were open; these times may overlap. The
    account of a model in a nested pair has the *path* of `Called`, and the pair's role.
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
    path: str = ""

    @property
    def written(self) -> int:
        return self.kept + self.discarded

    @property
    def waste(self) -> float:
        """The share of written tokens that were discarded; 0 if nothing was written."""
        return self.discarded / self.written if self.written else 0.0


COUNTED = tuple(field.name for field in fields(Account) if field.name not in ("role", "path"))
"""The fields of an account that can be added up."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """
    The accounts of both models and of the critic, and how many of the judged drafts were accepted.

    A draft that is replaced by a rival counts as *accepted*, because nothing is repaired; *chosen*
    counts such drafts. *nested* are the accounts of the models in nested pairs; a pair's own
    account is their sum. *sifted* has, by the path of a pair, the number of drafts judged in it and
    the number accepted.
    """

    small: Account
    large: Account
    drafts: int = 0
    accepted: int = 0
    critic: Account = Account("critic")
    chosen: int = 0
    nested: tuple[Account, ...] = ()
    sifted: tuple[tuple[str, int, int], ...] = ()

    @property
    def accept_rate(self) -> float | None:
        """
        The share of judged drafts that were accepted, without bets on a rejected step; None if none
        was judged.

        It includes the *chosen*: drafts that a rival replaced.
        """
        return self.accepted / self.drafts if self.drafts else None

    def __str__(self) -> str:
        """A table with a line for each model that had a request, and a line about the drafts."""
        heads = ("", "kept", "discarded", "judging", "requests", "seconds")
        lines = ["{:<8}{:>10}{:>11}{:>10}{:>10}{:>10}".format(*heads)]
        for account in (self.small, self.large, self.critic):
            if account.requests:
                seconds = account.writing + account.judged
                lines.append(
                    f"{account.role:<8}{account.kept:>10}{account.discarded:>11}"
                    f"{account.judging:>10}{account.requests:>10}{seconds:>10.2f}"
                )
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
        accepted, repaired = _decided(events)
        chosen = sum(isinstance(event, Chosen) for event in events)
        return cls(
            small=_account("small", events),
            large=_account("large", events),
            drafts=accepted + chosen + repaired,
            accepted=accepted + chosen,
            critic=_account("critic", events),
            chosen=chosen,
            nested=_nested(events),
            sifted=_sifted(events),
        )


def _account(role: Party, events: tuple[Event, ...]) -> Account:
    calls = [event for event in events if isinstance(event, Called) and event.role == role]
    kept = sum(len(step.tokens) for step in _kept(events) if step.author == role)
    return _charged(Account(role, kept), calls)


def _nested(events: tuple[Event, ...]) -> tuple[Account, ...]:
    """The accounts of the models within nested pairs, by their paths."""
    calls = [event for event in events if isinstance(event, Called) and event.path]
    kept = Counter[str]()
    for step in _kept(events):
        if step.pieces:
            for path, leaf in step.leaves():
                kept[path] += len(leaf.tokens)
    roles: dict[str, Party] = {call.path: call.role for call in calls}
    return tuple(
        _charged(
            Account(roles[path], kept[path], path=path),
            [call for call in calls if call.path == path],
        )
        for path in sorted(roles)
    )


def _sifted(events: tuple[Event, ...]) -> tuple[tuple[str, int, int], ...]:
    judged = [event for event in events if isinstance(event, JudgedWithin)]
    drafts = Counter(event.path for event in judged)
    stood = Counter(
        event.path for event in judged if isinstance(event.verdict, Accept) or event.verdict.chosen
    )
    return tuple((path, drafts[path], stood[path]) for path in sorted(drafts))


def _kept(events: tuple[Event, ...]) -> list[Step]:
    return [event.step for event in events if isinstance(event, Committed | Answered)]


def _charged(account: Account, calls: Sequence[Called]) -> Account:
    writes = [call for call in calls if call.verb == "write"]
    verdicts = [call for call in calls if call.verb != "write"]
    return replace(
        account,
        discarded=max(0, sum(call.written for call in writes) - account.kept),
        judging=sum(call.prompt - call.cached + call.written for call in verdicts),
        prompt=sum(call.prompt for call in calls),
        cached=sum(call.cached for call in calls),
        requests=len(calls),
        failed=sum(call.fate == "failed" for call in calls),
        writing=sum(call.seconds for call in writes),
        judged=sum(call.seconds for call in verdicts),
    )


def _decided(events: tuple[Event, ...]) -> tuple[int, int]:
    """
    Return the number of drafts that were committed whole by a verdict, and of those repaired.

    Lost bets, drafts replaced by a rival, and steps that a run let the large model write alone
    count for none.
    """
    accepted = [e for e in events if isinstance(e, Judged) and isinstance(e.verdict, Accept)]
    approved = {(e.index, e.draft.text) for e in accepted if e.draft.author == "small"}
    repaired = {e.index for e in events if isinstance(e, Repaired)}
    replaced = repaired | {e.index for e in events if isinstance(e, Chosen)}
    committed = [e for e in events if isinstance(e, Committed) and e.index not in replaced]
    drafts = [e for e in committed if e.step.author == "small"]
    return sum((e.index, e.step.text) in approved for e in drafts), len(repaired)
