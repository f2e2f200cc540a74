"""Measure the models of the problems with tools for their model card, with the bare networks. No server."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from transformers import Qwen3ForCausalLM

from stepspec.evals.results import wilson

from ..worlds import tool_problems as world
from ..worlds.tool_problems import THREE_CALLS, Loop, Message, Problem, State, read_reply, tool_loop
from .inference import grades_after, write
from .model_card import REAL, SEED, SYNTHETIC, Figure, LoadedModel, detail, judging, size, table
from .tool_data import ToolWriter, system_prompt

SOLVED = 400
JUDGED = 600  # problems
LIMIT = 120  # tokens of a turn; the longest worked one has fewer
SOLVES = {"large": (0.97, 1.0), "small": (0.55, 0.9)}
JUDGES = 0.95
SIZE = 12_000_000  # bytes in git


@dataclass(frozen=True, slots=True)
class ToolModel:
    """A trained model and the writer with its vocabulary."""

    model: Qwen3ForCausalLM
    writer: ToolWriter

    @classmethod
    def of(cls, name: str, folder: Path) -> ToolModel:
        loaded = LoadedModel.of(name, folder)
        return cls(loaded.model, ToolWriter(loaded.writer.tokenizer, varied=False))

    def solve(
        self, problems: Sequence[Problem], before: Callable[[Problem], list[Message]] = lambda _: [],
        *, thinking: bool = True,
    ) -> list[Loop]:  # fmt: skip
        """
        Let the model solve all *problems* in whole loops, greedily.

        Without *thinking*, that of earlier turns is not sent back. The messages *before* stand before each problem.
        """
        self.model.eval()
        loops = [tool_loop(problem, before(problem)) for problem in problems]
        waiting, solved = {at: next(loop) for at, loop in enumerate(loops)}, dict[int, Loop]()
        while waiting:
            prompts = [list(self.writer.encode(self.writer.render(ask, world.tools()))) for ask in waiting.values()]
            texts = write(self.model, self.writer.tokenizer, prompts, 0.0, LIMIT)
            for at, text in zip(list(waiting), texts, strict=True):
                reply = read_reply(text)
                if not thinking:
                    del reply["reasoning_content"]
                try:
                    waiting[at] = loops[at].send(reply)
                except StopIteration as end:
                    solved[at] = end.value
                    del waiting[at]
        return [solved[at] for at in range(len(problems))]


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """A step at *state* of the worked loop, and whether it is right."""

    problem: Problem
    state: State
    step: str

    @property
    def right(self) -> bool:
        return world.is_right(self.problem, self.state, self.step)


def measure_tools(log: Callable[[str], object], folder: Path) -> list[Figure]:
    """Measure everything; *log* receives the progress."""
    fresh = list(islice(world.generate(SEED, "test"), SOLVED))
    long = list(islice(world.generate(SEED + 2, "test", THREE_CALLS), SOLVED // 2))
    figures = list[Figure]()
    for name, (low, high) in SOLVES.items():
        model = ToolModel.of(name, folder)
        log(f"{name} solves {SOLVED} problems")
        figures.append(_loops(f"{name}: whole loops right, greedy", model.solve(fresh), low, high))
        log(f"{name} solves {len(long)} problems of two items")
        figures.append(_loops(f"{name}: the same of two items", model.solve(long), 0, 1))
        log(f"{name} solves them without its earlier thinking, with system prompts")
        others = model.solve(long, _system, thinking=False)
        figures.append(_loops(f"{name}: the same with a system prompt, earlier thinking dropped", others, 0, 1))
    large, small = ToolModel.of("large", folder), ToolModel.of("small", folder)
    problems = list(islice(world.generate(SEED + 1, "test"), JUDGED))
    log(f"small writes a turn of {JUDGED} problems")
    for kind, cases in ((REAL, list(real_steps(small, problems))), (SYNTHETIC, list(synthetic_steps(problems)))):
        for name, judge, bar in (("large", large, JUDGES), ("small", small, 0.0)):
            log(f"{name} judges {len(cases)} steps, {kind}")
            marks = grades_after(judge.model, judge.writer, [_chain(judge.writer, case) for case in cases])
            right = [case.right for case in cases]
            figures.append(judging(f"{name} as judge: AUROC, wrong steps {kind}", right, marks, bar))
    return [*figures, size(folder, SOLVES, SIZE)]


def _system(problem: Problem) -> list[Message]:
    return [{"role": "system", "content": system_prompt(random.Random(f"{SEED} {problem.text}"))}]


def _loops(name: str, loops: Sequence[Loop], low: float, high: float) -> Figure:
    share = wilson(sum(loop.correct for loop in loops), len(loops))
    calls = sum(sum(map(len, loop.calls)) for loop in loops)
    return Figure(name, share.value, low, high, detail(share, f"n = {len(loops)}, with {calls} calls"))


def real_steps(small: ToolModel, problems: Sequence[Problem]) -> Iterator[JudgedStep]:
    """
    Let the small model write a turn of each of the *problems*, at temperature 1 after right turns.

    Yield its first wrong step, if there is one, and a right step.
    """
    rng = random.Random(SEED)
    torch.manual_seed(SEED)
    small.model.eval()
    indexes = [rng.randrange(len(problem.turns)) for problem in problems]
    prompts = [_prompt(small.writer, problem, index) for problem, index in zip(problems, indexes, strict=True)]
    texts = write(small.model, small.writer.tokenizer, prompts, 1.0, LIMIT)
    for problem, index, text in zip(problems, indexes, texts, strict=True):
        fine = list[JudgedStep]()
        for number, step in enumerate(world.paragraphs(text)[: len(problem.turns[index].steps)]):
            case = JudgedStep(problem, State(index, number), step)
            if not case.right:
                yield case
                break
            fine.append(case)
        if fine:
            yield rng.choice(fine)


def synthetic_steps(problems: Sequence[Problem]) -> Iterator[JudgedStep]:
    """Yield a right and a corrupted step at a random position of every problem's worked loop."""
    rng = random.Random(SEED)
    for problem in problems:
        state = rng.choice(world.states(problem))
        yield JudgedStep(problem, state, world.expected(problem, state))
        yield JudgedStep(problem, state, world.corrupt(rng, problem, state))


def _prompt(writer: ToolWriter, problem: Problem, index: int) -> list[int]:
    return list(writer.encode(writer.render(writer.conversation(problem, index), world.tools())))


def _chain(writer: ToolWriter, case: JudgedStep) -> list[int]:
    steps = (*case.problem.turns[case.state.index].steps[: case.state.step], case.step)
    return [*_prompt(writer, case.problem, case.state.index), *(id for step in steps for id in writer.encode(step))]


def tool_card(figures: Sequence[Figure]) -> str:
    """Render the model card."""
    return f"""# The miniature pair for problems with tools

Two models of the Qwen3 architecture, trained from scratch to call two tools, a lookup of prices and a calculator, so
that tool calls run with real models on a CPU. A problem needs up to three calls; some need none, and some want two
calls in one turn. The models think in one to three short steps before each call, and calculate nothing themselves: they
copy, from the problem and from what the tools have answered, and begin with an induction circuit that copies. They
share a vocabulary. `large` was also trained to judge. The training of `small` was stopped early, so that it makes
mistakes.

They know {len(world.ITEMS)} items, whole numbers up to {world.LARGEST}, and questions of three kinds
(`python -m lab.training problems --world tools` prints some); system prompts, other tools and a few more
words in a question do no harm. The chat template (`chat_template.jinja`) renders a tool as its name with the names of
its parameters. It keeps the thinking of turns since the last question, if the client sends it back, and drops that of
earlier ones. vLLM's parser `hermes` reads the calls.

Measured on {datetime.date.today()} by `python -m lab.training report --world tools`, seed {SEED}, on fresh
problems, none of which was trained on. A loop is right if its answer is right and all calls are those of the worked
solution. A grade is the mean over the probabilities of the ten digits.

| figure | value | bar | |
|---|---|---|---|
{table(figures)}

`python -m lab.training train --world tools` makes the weights, seed 0, by the recipes in `tool_training.py`.
Licence: Apache-2.0, like the code.
"""
