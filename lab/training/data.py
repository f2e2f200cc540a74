"""
Training rows: a trunk (prompt, reasoning, answer) and branches that fork from it after a step.

A branch is a draft of the next step, right or wrong, followed by a judge's question with its
answer, or by the reflection prompt with the right step. A token of a branch attends to the trunk
before the fork and to its own branch only, so that one row teaches several judgements for the cost
of one context.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import cycle

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from stepspec.orchestrator.endpoints.chat_template import Messages, Template
from stepspec.prompts import load

from ..templates import ask, learn
from ..worlds import mistakes, short
from ..worlds.short import Difficulty, Problem, State
from . import tokenizer as vocabulary

IGNORED = -100
TRUNK = 0
# Together with the models' own mistakes, a third of all drafts are wrong. With more, a judge in
# doubt would reject steps that are mostly right.
WRONG_DRAFTS = 0.25
PADDING = -1
NUMBER = re.compile(r"\d+")

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong step that a model wrote, and the right steps before it."""

    problem: Problem
    before: tuple[str, ...]
    wrong: str


@dataclass(frozen=True, slots=True)
class MistakeRate:
    """
    The share of wrong steps in a trunk, each corrected at once, and the share of these that are
    wrong sums only.
    """

    rate: float = 0.2
    sums: float = 0.0


DEFAULT_MISTAKES = MistakeRate()


@dataclass
class Row:
    """
    One row under construction: lists with a value per token. *branch* and *leaves* define the
    attention mask.

    *targets* are the tokens that the language model must write next, *verdicts* those that the
    judge must write next. *wrong* is 1 for a wrong token and 0 for a right one. IGNORED marks a
    position without a value. *leaves* is the position in the trunk from which the token's branch
    forks.
    """

    ids: list[int] = field(default_factory=list[int])
    positions: list[int] = field(default_factory=list[int])
    targets: list[int] = field(default_factory=list[int])
    verdicts: list[int] = field(default_factory=list[int])
    wrong: list[int] = field(default_factory=list[int])
    branch: list[int] = field(default_factory=list[int])
    leaves: list[int] = field(default_factory=list[int])

    def add(
        self,
        ids: Sequence[int],
        *,
        branch: int,
        leaves: int,
        learn: bool,
        wrong: Sequence[int] | None = None,
    ) -> None:
        """
        Append tokens. With *learn*, each is the target of the token before it, if that is in the
        same branch.
        """
        if learn and self.ids and self.branch[-1] == branch:
            self.targets[-1] = ids[0]
        before = len(self.ids) if self.ids and self.branch[-1] == branch else leaves
        start = self.positions[before - 1] + 1 if before else 0
        self.ids += ids
        self.positions += range(start, start + len(ids))
        self.targets += [*ids[1:], IGNORED] if learn else [IGNORED] * len(ids)
        self.verdicts += [IGNORED] * len(ids)
        self.wrong += wrong if wrong is not None else [IGNORED] * len(ids)
        self.branch += [branch] * len(ids)
        self.leaves += [leaves] * len(ids)


class Writer:
    """Encodes problems as rows of token ids, in the layout of the endpoints' prompts."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, mistake_rate: MistakeRate = DEFAULT_MISTAKES
    ) -> None:
        def render(messages: Messages, generate: bool) -> str:
            turns = [dict(message) for message in messages]
            return str(
                tokenizer.apply_chat_template(turns, add_generation_prompt=generate, tokenize=False)
            )

        self.tokenizer = tokenizer
        self.mistake_rate = mistake_rate
        self.render = render
        self.template: Template = learn(render)
        self.encode = lru_cache(maxsize=200_000)(self._encode)
        self.is_number = lru_cache(maxsize=None)(self._is_number)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def prompt(self, problem: Problem, rng: random.Random | None = None) -> tuple[int, ...]:
        """
        Encode the prefix of a chain; with *rng*, sometimes with a system prompt or an earlier turn.
        """
        messages = [{"role": "user", "content": problem.text}]
        if rng is not None and rng.random() < 0.04:
            earlier = short.draw(rng)
            reply = short.final_answer(earlier.answer).strip()
            messages = [
                {"role": "user", "content": earlier.text},
                {"role": "assistant", "content": reply},
                *messages,
            ]
        if rng is not None and rng.random() < 0.08:
            messages = [{"role": "system", "content": rng.choice(vocabulary.SYSTEM)}, *messages]
        return self._encode(self.template.begin(self.render(messages, True)))

    def marks(self, problem: Problem, state: State, step: str) -> list[int]:
        """
        Mark the wrong tokens of *step*: the last one, and the numbers if the right step has as many
        tokens.
        """
        ids = self.encode(step)
        want = self.encode(short.expected(problem, state))
        fine = short.is_right(problem, state, step)
        marks = [IGNORED] * len(ids)
        marks[-1] = 0 if fine else 1
        if fine or len(ids) == len(want):
            for i, id in enumerate(ids[:-1]):
                if self.is_number(id):
                    marks[i] = 0 if fine else int(id != want[i])
        return marks

    def _is_number(self, id: int) -> bool:
        return bool(NUMBER.fullmatch(str(self.tokenizer.decode([id])).strip()))

    def row(
        self, rng: random.Random, problem: Problem, branches: int, mistake: Mistake | None = None
    ) -> Row:
        """
        Build one row with *branches* branches; the first two judge *mistake*, if it is not None.
        """
        row = Row()
        row.add(self.prompt(problem, rng), branch=TRUNK, leaves=0, learn=False)
        state = short.begin(problem)
        forks: list[tuple[State, int, str]] = []
        last = ""
        for step, fine in self.trunk(rng, problem, mistake, mend=not branches):
            if not state.wrong:
                forks.append((state, len(row.ids), last))
            marks = self.marks(problem, state, step)
            row.add(self.encode(step), branch=TRUNK, leaves=0, learn=fine, wrong=marks)
            state = short.advance(problem, state, step)
            last = step
        answer = (
            *self.encode(short.final_answer(problem.answer)),
            self.encode(vocabulary.END_OF_TURN)[0],
        )
        row.add(answer, branch=TRUNK, leaves=0, learn=True)
        for number in range(1, branches + 1):
            if mistake is not None and number <= 2:
                self.fork(rng, row, problem, forks[len(mistake.before)], number, mistake.wrong)
            else:
                self.fork(rng, row, problem, rng.choice(forks), number, None)
        return row

    def trunk(
        self, rng: random.Random, problem: Problem, mistake: Mistake | None, *, mend: bool
    ) -> Iterator[tuple[str, bool]]:
        """
        Yield each step of the trunk, and whether it is right; with *mend*, *mistake* is among them,
        corrected.
        """
        if mistake is None:
            yield from mistakes.with_mistakes(
                rng, problem, self.mistake_rate.rate, sums=self.mistake_rate.sums
            )
            return
        state = short.begin(problem)
        steps = [(step, True) for step in mistake.before] + (
            [(mistake.wrong, False)] if mend else []
        )
        while state.index <= len(problem.operations):
            step, fine = steps.pop(0) if steps else (short.expected(problem, state), True)
            yield step, fine
            state = short.advance(problem, state, step)

    def fork(
        self,
        rng: random.Random,
        row: Row,
        problem: Problem,
        fork: tuple[State, int, str],
        number: int,
        wrong: str | None,
    ) -> None:
        """
        Add one branch: a draft, then a question about it, or the reflection prompt and the right
        step.
        """
        state, leaves, last = fork
        want = short.expected(problem, state)
        draft = (
            wrong
            if wrong is not None
            else mistakes.corrupt(rng, problem, state)
            if rng.random() < WRONG_DRAFTS
            else want
        )
        fine = short.is_right(problem, state, draft)
        row.add(
            self.encode(draft),
            branch=number,
            leaves=leaves,
            learn=False,
            wrong=self.marks(problem, state, draft),
        )
        kind = rng.choices((*vocabulary.JUDGES, vocabulary.REFLECTION), weights=(10, 3, 3, 6))[0]
        prompt = load(kind)
        if kind == vocabulary.REFLECTION:
            anchor = last if rng.random() < 0.5 else ""
            row.add(
                self.encode(f"{prompt.text}\n\n{anchor}"), branch=number, leaves=leaves, learn=False
            )
            row.add(self.encode(want), branch=number, leaves=leaves, learn=True)
            return
        question = prompt.text
        if kind == vocabulary.SAME:
            other = (
                draft
                if rng.random() < 0.5
                else want
                if not fine
                else mistakes.corrupt(rng, problem, state)
            )
            question = question.format(step=other.strip())
            fine = other == draft
        row.add(
            self.encode(ask(self.template, question, prompt.opening)),
            branch=number,
            leaves=leaves,
            learn=False,
        )
        verdict = "Yes" if fine else "No"
        if kind == "specreason.grade":
            verdict = str(short.grade(problem, state, draft))
        row.verdicts[-1] = self.encode(verdict)[0]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one length, padded: every array has shape (rows, length)."""

    ids: Ints
    positions: Ints
    targets: Ints
    verdicts: Ints
    wrong: Ints
    branch: Ints
    leaves: Ints


def collate(rows: Sequence[Row], length: int) -> Batch:
    """Pad *rows* to *length* tokens."""

    def pad(lists: Sequence[list[int]], value: int) -> Ints:
        out = np.full((len(rows), length), value, dtype=np.int64)
        for line, numbers in zip(out, lists, strict=True):
            line[: len(numbers)] = numbers
        return out

    return Batch(
        pad([r.ids for r in rows], 0),
        pad([r.positions for r in rows], 0),
        pad([r.targets for r in rows], IGNORED),
        pad([r.verdicts for r in rows], IGNORED),
        pad([r.wrong for r in rows], IGNORED),
        pad([r.branch for r in rows], PADDING),
        pad([r.leaves for r in rows], 0),
    )


def batches(
    writer: Writer, *, seed: int, rows: int, length: int, branches: int, mistakes: Sequence[Mistake] = (),
    mistaken: float = 0.25, difficulties: Sequence[Difficulty] = (short.DEFAULT,),
) -> Iterator[Batch]:  # fmt: skip
    """
    Yield batches without end; the sequence depends on *seed*. Rows longer than *length* tokens are
    left out.

    New problems come from the *difficulties* in turn; a share *mistaken* of the rows is about one
    of the *mistakes*.
    """
    rng = random.Random(f"rows {seed}")
    sources = cycle([short.generate(seed, "train", difficulty) for difficulty in difficulties])
    while True:
        batch: list[Row] = []
        while len(batch) < rows:
            mistake = rng.choice(mistakes) if mistakes and rng.random() < mistaken else None
            problem = mistake.problem if mistake is not None else next(next(sources))
            row = writer.row(rng, problem, branches, mistake)
            if len(row.ids) <= length:
                batch.append(row)
        yield collate(batch, length)


def first_mistake(problem: Problem, reasoning: str) -> Mistake | None:
    """Return the first wrong step of a model's *reasoning*; None if all steps are right."""
    state = short.begin(problem)
    before = list[str]()
    for step in short.paragraphs(reasoning):
        if not short.is_right(problem, state, step):
            return Mistake(problem, tuple(before), step)
        before.append(step)
        state = short.advance(problem, state, step)
        if state.index > len(problem.operations):
            return None
    return None
