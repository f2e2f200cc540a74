"""
Training rows of problems with tools: whole loops, or one turn of a loop whose earlier thinking was dropped.

The trunk is the conversation as the chat template renders it. A branch forks from it before a step of the thinking: a
draft of that step, right or wrong, and mostly one of the judge's questions about it, or the reflection prompt.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice

from transformers import PreTrainedTokenizerFast

from stepspec.evals.testbed.problems import THINK_END
from stepspec.orchestrator.endpoints.chat_template import Template, learn
from stepspec.prompts import load

from ..worlds import tool_problems as world
from ..worlds.tool_problems import Message, Problem, State, Turn
from . import tokenizer as vocabulary
from .data import IGNORED, TRUNK, Batch, Row, collate

FEW_ITEMS = world.Difficulty(("buy", "price", "stated"), (1, 1))  # for the problem before a conversation's last one
OTHER_TOOLS = (
    "weather(city)", "search(query)", "translate(text, language)", "time(zone)", "send_email(to, subject, body)",
    "calendar(day)", "read_file(path)", "stock(symbol)", "run(code)", "remember(key, value)",
)  # fmt: skip
WRONG_DRAFTS = 0.5
DROPPED = 0.5  # share of the rows in which the thinking of earlier turns was not sent back
POOL = 160  # rows that are sorted by their length
QUESTIONS = {"specreason.grade": 10, "check": 3, vocabulary.SAME: 3, vocabulary.REFLECTION: 3}


@dataclass(frozen=True, slots=True)
class Fork:
    """The position in a worked loop before one step, and where in the row it is: the token before it ends there."""

    state: State
    leaves: int


class ToolWriter:
    """
    Encodes problems with tools as rows of token ids.

    Of the branches, a share *asked* has a question after the draft. Without *varied*, the conversation is only the
    problem with its two tools, as `prompt` renders it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, asked: float = 0.5, varied: bool = True) -> None:
        self.tokenizer, self.asked, self.varied = tokenizer, asked, varied
        self.template: Template = learn(lambda messages, generate: self.render([*map(dict, messages)], None, generate))
        self.encode = lru_cache(maxsize=200_000)(self._encode)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def render(self, messages: Sequence[Message], tools: Sequence[Message] | None, generate: bool = True) -> str:
        """Render a conversation as the model's server does."""
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tools=list(tools) if tools else None, add_generation_prompt=generate, tokenize=False
            )
        )

    def row(self, rng: random.Random, problem: Problem, branches: int) -> Row:
        """Build one row with *branches* branches."""
        row, forks = self.trunk(rng, problem)
        for number in range(1, branches + 1):
            self.fork(rng, row, problem, rng.choice(forks), number)
        return row

    def trunk(self, rng: random.Random, problem: Problem) -> tuple[Row, list[Fork]]:
        """Build a row without branches, and list where they may fork."""
        tools = self._tools(rng, problem) if self.varied else world.tools()
        before = self._before(rng, problem) if self.varied else []
        words = self._words(rng, problem.text) if self.varied else problem.text
        turns, row, forks = problem.turns, Row(), list[Fork]()
        dropped = self.varied and len(turns) > 1 and rng.random() < DROPPED
        first, last = (rng.randrange(1, len(turns)),) * 2 if dropped else (0, len(turns) - 1)
        text, messages = "", [*before, {"role": "user", "content": words}]
        for index, turn in enumerate(turns[: last + 1]):
            if index >= first:
                prompt = self.render(messages, tools)
                row.add(self._encode(prompt.removeprefix(text)), branch=TRUNK, leaves=0, learn=False)
                for number, step in enumerate(turn.steps):
                    forks.append(Fork(State(index, number), len(row.ids)))
                    row.add(self.encode(step), branch=TRUNK, leaves=0, learn=True)
                reply = turn.reply + vocabulary.END_OF_TURN
                row.add(self.encode(reply), branch=TRUNK, leaves=0, learn=True)
                text = prompt + "".join(turn.steps) + reply
            messages += answered(problem, turn, thinking=not dropped)
        return row, forks

    def conversation(self, problem: Problem, index: int) -> list[Message]:
        """Return the messages before turn *index* of the worked loop."""
        messages: list[Message] = [{"role": "user", "content": problem.text}]
        for turn in problem.turns[:index]:
            messages += answered(problem, turn, thinking=True)
        return messages

    def _tools(self, rng: random.Random, problem: Problem) -> list[Message]:
        """Return the tools in random order, with an unrelated one now and then; none for some that need none."""
        if problem.kind == "stated" and rng.random() < 0.4:
            return []
        tools = world.tools()
        if rng.random() < 0.3:
            tools += [named(each) for each in rng.sample(OTHER_TOOLS, rng.randint(1, 2))]
        rng.shuffle(tools)
        return tools

    def _before(self, rng: random.Random, problem: Problem) -> list[Message]:
        """Return what stands before the problem: now and then a system prompt, or another problem and its solution."""
        before = list[Message]()
        if rng.random() < 0.5:
            before.append({"role": "system", "content": system_prompt(rng)})
        if rng.random() < 0.12:
            while (earlier := world.draw(rng, FEW_ITEMS)).catalogue.keys() & problem.catalogue.keys():
                pass
            before.append({"role": "user", "content": earlier.text})
            for turn in earlier.turns:
                before += answered(earlier, turn, thinking=rng.random() < 0.5)
        return before

    def _words(self, rng: random.Random, text: str) -> str:
        """Put other words before or after the problem now and then."""
        if rng.random() < 0.75:
            return text
        other = filler(rng, rng.randint(1, 8))
        return f"{other} {text}" if rng.random() < 0.5 else f"{text} {other}"

    def marks(self, problem: Problem, state: State, step: str) -> list[int]:
        """Mark the first wrong token of *step*, and the last one; those between have no mark."""
        ids, want = self.encode(step), self.encode(world.expected(problem, state))
        first = next((at for at, (id, right) in enumerate(zip(ids, want, strict=False)) if id != right), len(ids))
        marks = [0] * first + [1] * (first < len(ids)) + [IGNORED] * (len(ids) - first - 1)
        marks[-1] = 0 if ids == want else 1
        return marks

    def fork(self, rng: random.Random, row: Row, problem: Problem, fork: Fork, number: int) -> None:
        """Add one branch: a draft, and a question about it, or the reflection prompt and the right step."""
        want = world.expected(problem, fork.state)
        wrong = world.corrupt(rng, problem, fork.state)
        draft = wrong if rng.random() < WRONG_DRAFTS else want
        add = partial(row.add, branch=number, leaves=fork.leaves, learn=False)
        add(self.encode(draft), wrong=self.marks(problem, fork.state, draft))
        if rng.random() >= self.asked:
            return
        (kind,) = rng.choices([*QUESTIONS], weights=[*QUESTIONS.values()])
        prompt = load(kind)
        if kind == vocabulary.REFLECTION:
            add(self.encode(f"{prompt.text}\n\n"))
            row.add(self.encode(want), branch=number, leaves=fork.leaves, learn=True)
            return
        question, fine = prompt.text, draft == want
        if kind == vocabulary.SAME:
            other = draft if rng.random() < 0.5 else wrong if draft == want else want
            question, fine = question.format(step=other.strip()), other == draft
        add(self.encode(self.template.ask(question, prompt.opening)))
        verdict = "Yes" if fine else "No"
        if kind == "specreason.grade":
            verdict = str(world.grade(problem, fork.state, draft))
        row.verdicts[-1] = self.encode(verdict)[0]


def answered(problem: Problem, turn: Turn, *, thinking: bool) -> list[Message]:
    """Return the message of a worked *turn*, with its *thinking* or without, and those of the tools that it calls."""
    message: Message = {"role": "assistant", "content": "" if turn.calls else turn.reply.strip()}
    if thinking:
        message["reasoning_content"] = "".join(turn.steps).removesuffix(THINK_END)
    if turn.calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in turn.calls
        ]
    results = [world.run_tool(problem.catalogue, call.name, call.arguments) for call in turn.calls]
    return [message, *({"role": "tool", "content": result} for result in results)]


def named(signature: str) -> Message:
    """Return the tool with a *signature* such as ``search(query)``."""
    name, _, parameters = signature.removesuffix(")").partition("(")
    properties = {parameter: {"type": "string"} for parameter in parameters.split(", ")}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


def system_prompt(rng: random.Random) -> str:
    """Draw a system prompt, mostly a few sentences of a framework's words."""
    if rng.random() < 0.3:
        return rng.choice(vocabulary.SYSTEM)
    return " ".join(filler(rng, rng.randint(3, 12)) for _ in range(rng.randint(1, 4)))


def filler(rng: random.Random, count: int) -> str:
    """Draw a sentence of *count* words, some of which do not exist."""
    words = [
        "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 6)))
        if rng.random() < 0.15
        else rng.choice(vocabulary.AGENT_WORDS)
        for _ in range(count)
    ]
    return " ".join(words).rstrip(".!,") + "."


def tool_batches(
    writer: ToolWriter, *, seed: int | str, tokens: int, branches: int, difficulty: world.Difficulty = world.DEFAULT
) -> Iterator[Batch]:
    """
    Yield batches of about *tokens* tokens without end; they depend on *seed*.

    Rows of about the same length are together, since a batch is as long as its longest row.
    """
    rng = random.Random(f"tool rows {seed}")
    source = world.generate(rng.getrandbits(32), "train", difficulty)
    while True:
        rows = [writer.row(rng, problem, branches) for problem in islice(source, POOL)]
        rows.sort(key=lambda row: len(row.ids))
        batches, batch = list[list[Row]](), list[Row]()
        for row in rows:
            if batch and (len(batch) + 1) * len(row.ids) > tokens:
                batches.append(batch)
                batch = []
            batch.append(row)
        batches.append(batch)
        rng.shuffle(batches)
        for batch in batches:
            yield collate(batch, len(batch[-1].ids))
