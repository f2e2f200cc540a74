"""The script of a run: how many tokens the models wrote, and what was judged, step by step. Values, without I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median_low

from stepspec.orchestrator.chain import Accept, Role, Rollback, Step, Stop
from stepspec.orchestrator.events import Answered, Called, Chosen, Committed, Event, Judged, Repaired


@dataclass(frozen=True, slots=True)
class Turn:
    """
    One step: the *author* drafts it with *draft* tokens, of which the first *kept* are accepted.

    If not all are, the large model goes on with *repair* tokens; 0 stands for as many as the draft has. *grade* is the
    score of the verdict, None if it has none. *stop* says why the draft ended, as in `Step`. A step that *ends* closes
    the thinking or, after that, the turn. One that is *blank* has no text.
    """

    draft: int
    kept: int
    repair: int = 0
    grade: float | None = None
    author: Role = "small"
    stop: Stop = "delimiter"
    ends: bool = False
    blank: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """
    One problem: the tokens of its *prompt*, and the *turns* of its solution, the answer's included.

    A verdict reads *question* tokens beyond the chain and the draft, and the whole chain again if it is *uncached*.
    """

    prompt: int
    turns: tuple[Turn, ...]
    question: int = 0
    uncached: bool = False

    @classmethod
    def of(cls, events: Iterable[Event]) -> Script:
        """Read the script of the run that emitted *events*."""
        events = list(events)
        calls = [event for event in events if isinstance(event, Called)]
        prompt = min((call.prompt for call in calls if call.verb == "write" and call.step == 0), default=0)
        verdicts = [call for call in calls if call.purpose == "verify" and call.verb != "write" and call.fate == "done"]
        lengths = {event.index: len(event.step.tokens) for event in events if isinstance(event, Committed)}
        drafts = {event.index: len(event.draft.tokens) for event in events if isinstance(event, Judged)}
        before = [0, *accumulate(lengths[index] for index in sorted(lengths))]
        known = [(call, prompt + before[call.step]) for call in verdicts if call.step in lengths]
        questions = [call.prompt - chain - drafts.get(call.step, 0) for call, chain in known]
        # A verdict on a lost bet is about another chain, and a cache keeps whole blocks: hence the medians.
        question = max(0, median_low(questions)) if questions else 0
        uncached = (
            bool(known) and median_low([call.cached for call, _ in known]) < median_low([c for _, c in known]) // 2
        )
        return cls(prompt, tuple(_turns(events)), question, uncached)

    @property
    def completed(self) -> Script:
        """
        The same with both ends that a replay waits for: that of the thinking, and that of the answer.

        A run that is cut, or whose answer is over without an end, lacks one or both. The large model then writes it as
        a step of one token; an answer that lacks only its end has it in its last step.
        """
        *others, last = self.turns or (END,)
        count = sum(turn.ends for turn in (*others, last))
        if count == 1 and not last.ends:
            return replace(self, turns=(*others, replace(last, stop="end", ends=True)))
        return replace(self, turns=(*others, last, *(END,) * (2 - count)))


END = Turn(1, 1, author="large", stop="end", ends=True)


def _turns(events: Iterable[Event]) -> list[Turn]:
    turns: list[Turn] = []
    judged: dict[int, Judged] = {}
    begun: Judged | None = None  # a draft of which only the beginning is committed
    for event in events:
        match event:
            case Judged(index):
                judged[index] = event
            case Repaired(index, step):
                if (before := begun or judged.get(index)) is not None:
                    turns.append(_repaired(before, step))
                begun = None
                judged.clear()
            case Chosen(index, step):
                turns.append(_whole(step, event.step, None))
                judged.clear()
            case Committed(index, step) if (found := judged.pop(index, None)) is not None:
                if isinstance(found.verdict, Accept):
                    turns.append(_whole(found.draft, step, found.verdict.score))
                else:
                    begun = found
            case Answered(step):
                turns.append(_whole(step, step, None))
            case _:
                pass
    return turns


def _whole(draft: Step, step: Step, grade: float | None) -> Turn:
    length, blank = len(draft.tokens), not step.text.strip()
    return Turn(length, length, 0, grade, draft.author, draft.stop, step.stop == "end", blank)


def _repaired(before: Judged, repair: Step) -> Turn:
    draft, verdict = before.draft, before.verdict
    assert isinstance(verdict, Rollback)
    kept, tokens = len(draft.cut(verdict.keep).tokens), len(repair.tokens)
    return Turn(len(draft.tokens), kept, tokens, verdict.score, draft.author, draft.stop, repair.stop == "end")
