"""Solve problems in batches with the bare network, greedily or by sampling, and grade steps with it. No server."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedTokenizerFast, Qwen3ForCausalLM

from stepspec.evals.testbed.problems import THINK_END
from stepspec.prompts import load

from .data import IGNORED, MistakeRate, Problem, Writer, world_of
from .tokenizer import END_OF_TEXT, END_OF_TURN

LIMIT = 260  # tokens; the longest worked solution of `problems` has fewer


@dataclass(frozen=True, slots=True)
class ModelSolution:
    """The text that a model wrote for one problem."""

    problem: Problem
    text: str

    @property
    def reasoning(self) -> str:
        """The text up to and including the end of the thinking, or all of it if the thinking never ends."""
        thought, end, _ = self.text.partition(THINK_END)
        return thought + end

    @property
    def correct(self) -> bool:
        _, _, reply = self.text.partition(THINK_END)
        return f"\\boxed{{{self.problem.answer}}}" in reply


@torch.no_grad()
def solve(
    model: Qwen3ForCausalLM, writer: Writer, tasks: Sequence[Problem], *, temperature: float = 0.0, seed: int = 0,
    rows: int = 250,
) -> list[ModelSolution]:  # fmt: skip
    """Let *model* solve all problems *tasks*, *rows* in a batch; greedily at *temperature* 0."""
    model.eval()
    torch.manual_seed(seed)
    solved: list[ModelSolution] = []
    for start in range(0, len(tasks), rows):
        part = tasks[start : start + rows]
        prompts = [list(writer.prompt(p)) for p in part]
        texts = write(model, writer.tokenizer, prompts, temperature, LIMIT)
        solved += [ModelSolution(p, text) for p, text in zip(part, texts, strict=True)]
    model.train()
    return solved


@dataclass(frozen=True, slots=True)
class Recital:
    """
    How a model would write the worked steps of one problem, each after the right ones before it.

    *greedy* is whether it would write each step exactly so at temperature 0; *chance* is the probability of that at
    another temperature. The last step includes the answer.
    """

    problem: Problem
    greedy: tuple[bool, ...]
    chance: tuple[float, ...]


@torch.no_grad()
def recite(
    model: Qwen3ForCausalLM, writer: Writer, tasks: Sequence[Problem], *, temperature: float = 0.6
) -> list[Recital]:
    """
    Predict the worked steps of every problem from the right tokens before each: no token has to be written.

    As there is only one right solution, the share of problems whose steps are all greedy is the greedy accuracy, and
    the product of all chances the accuracy at *temperature*, as far as no mistake is ever corrected.
    """
    model.eval()
    plain = Writer(writer.tokenizer, MistakeRate(0.0), marked=False, varied=False)
    recitals: list[Recital] = []
    for problem in tasks:
        row = plain.row(random.Random(0), problem, 0)
        steps = [*world_of(problem).worked_steps(problem)]
        ids, targets = torch.tensor([row.ids]), torch.tensor(row.targets)
        wanted = torch.nonzero(targets != IGNORED).flatten()
        logits = model.lm_head(model.model(input_ids=ids, use_cache=False).last_hidden_state[0, wanted]).float()
        right = logits.argmax(-1) == targets[wanted]
        spoken = (logits / temperature).log_softmax(-1)[torch.arange(len(wanted)), targets[wanted]]
        lengths = [len(plain.encode(step)) for step in steps]
        lengths[-1] += len(wanted) - sum(lengths)  # the answer
        recitals.append(
            Recital(
                problem,
                tuple(bool(part.all()) for part in right.split(lengths)),
                tuple(float(part.sum().exp()) for part in spoken.split(lengths)),
            )
        )
    model.train()
    return recitals


class Trunk:
    """A problem and its worked steps, read by *model* once, so that drafts and grades after any of them cost little."""

    def __init__(self, model: Qwen3ForCausalLM, writer: Writer, problem: Problem) -> None:
        self.model, self.writer, self.problem = model, writer, problem
        self.steps: list[str] = world_of(problem).worked_steps(problem)
        self.ids, self.starts = list(writer.prompt(problem)), list[int]()
        for step in self.steps:
            self.starts.append(len(self.ids))
            self.ids += writer.encode(step)
        with torch.no_grad():
            read = model.model(input_ids=torch.tensor([self.ids]), use_cache=True)
        self.cache, self.hidden = read.past_key_values, read.last_hidden_state[0]

    @torch.no_grad()
    def drafts(self, temperature: float = 0.0, limit: int = 120) -> list[str]:
        """
        Let the model write each step, after the right ones before it, of at most *limit* tokens.

        The token that follows each token of the right steps is drawn at once. Only the drafts that differ from the
        right steps are written further, token by token.
        """
        last = {self.writer.encode(step)[-1] for step in self.steps}
        following = _drawn(self.model.lm_head(self.hidden).float(), temperature)
        written = list[list[int]]()
        for start, end in itertools.pairwise([*self.starts, len(self.ids)]):
            same = itertools.takewhile(lambda at: following[at - 1] == self.ids[at], range(start, end))
            written.append(following[start - 1 : start + len([*same])][: end - start])
        rows = [row for row, ids in enumerate(written) if ids[-1] not in last]
        cached = [self.starts[row] + len(written[row]) - 1 for row in rows]
        cache, before, going = self._copies(len(rows)), 0, {row for row in rows if len(written[row]) < limit}
        while going:
            ids = torch.tensor([written[row][-1:] for row in rows])
            new = _drawn(self._logits(cache, ids, cached, before)[:, -1], temperature)
            before += 1
            for row, id in zip(rows, new, strict=True):
                written[row].append(id)
                if id in last or len(written[row]) >= limit:
                    going.discard(row)
        return [self._text(ids[:limit], last) for ids in written]

    def _text(self, ids: list[int], last: set[int]) -> str:
        end = next((at for at, id in enumerate(ids) if id in last), len(ids))
        return str(self.writer.tokenizer.decode(ids[: end + 1], skip_special_tokens=False))

    @torch.no_grad()
    def grades(self, drafts: Sequence[tuple[int, str]]) -> list[float]:
        """Return the grade, 0 to 9, of each draft, a step's number and its text: the mean over the ten digits."""
        prompt = load("specreason.grade")
        question = self.writer.encode(self.writer.template.ask(prompt.text, prompt.opening))
        digits = torch.tensor([self.writer.encode(str(digit))[0] for digit in range(10)])
        rows = [[*self.writer.encode(text), *question] for _, text in drafts]
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        cached = [self.starts[number] for number, _ in drafts]
        logits = self._logits(self._copies(len(rows)), ids, cached, 0)
        ends = torch.tensor([len(row) - 1 for row in rows])
        marks: list[float] = (
            logits[torch.arange(len(rows)), ends][:, digits].softmax(-1) @ torch.arange(10.0)
        ).tolist()
        return marks

    def _copies(self, rows: int) -> DynamicCache:
        cache = copy.deepcopy(self.cache)
        cache.batch_repeat_interleave(rows)
        return cache

    def _logits(self, cache: DynamicCache, ids: Tensor, cached: list[int], before: int) -> Tensor:
        """Read *ids*, of which *before* were read already, after the first *cached* tokens of the trunk in each row."""
        length, trunk = ids.shape[1], len(self.ids)
        first = torch.tensor(cached)[:, None]
        places = torch.arange(trunk)[None] < first
        new = torch.arange(before, before + length)
        later = torch.arange(before + length)[None] <= new[:, None]
        allowed = torch.cat([places[:, None].expand(-1, length, -1), later[None].expand(len(cached), -1, -1)], -1)
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, -1e9)[:, None]
        out = self.model.model(
            input_ids=ids,
            attention_mask={"full_attention": mask},
            position_ids=first + new[None],
            past_key_values=cache,
        )
        return self.model.lm_head(out.last_hidden_state).float()


def _drawn(logits: Tensor, temperature: float) -> list[int]:
    """Draw a token from each row of *logits*; the likeliest at *temperature* 0."""
    if not temperature:
        return logits.argmax(-1).tolist()
    return torch.multinomial((logits / temperature).softmax(-1), 1).flatten().tolist()


def write(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[list[int]],
    temperature: float,
    limit: int,
) -> list[str]:
    """Continue all *prompts* up to the end of the turn, by at most *limit* tokens."""
    padding = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    width = max(map(len, prompts))
    ids = torch.tensor([[padding] * (width - len(p)) + p for p in prompts])
    attention = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    out = model.generate(  # pyright: ignore[reportAttributeAccessIssue]  # a mixin that the stubs leave out
        input_ids=ids,
        attention_mask=attention,
        max_new_tokens=limit,
        do_sample=temperature > 0,
        temperature=temperature or None,
        top_k=0 if temperature > 0 else None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END_OF_TURN),
        pad_token_id=padding,
    )
    texts = tokenizer.batch_decode(out[:, width:], skip_special_tokens=False)
    return [text.split(END_OF_TURN)[0].replace(END_OF_TEXT, "") for text in texts]


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """A step after the right steps *before* it, and whether it is right."""

    problem: Problem
    before: tuple[str, ...]
    step: str
    right: bool


@torch.no_grad()
def grades(model: Qwen3ForCausalLM, writer: Writer, cases: Sequence[JudgedStep], *, rows: int = 64) -> list[float]:
    """Return the grade, 0 to 9, that *model* gives to every case: the mean over the probabilities of the ten digits."""
    prompt = load("specreason.grade")
    question = writer.encode(writer.template.ask(prompt.text, prompt.opening))
    digits = torch.tensor([writer.encode(str(digit))[0] for digit in range(10)])
    model.eval()
    out: list[float] = []
    for start in range(0, len(cases), rows):
        ids = [[*_encode(writer, case), *question] for case in cases[start : start + rows]]
        ends = torch.tensor([len(row) - 1 for row in ids])
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in ids], batch_first=True)
        hidden = model.model(input_ids=padded).last_hidden_state  # no token attends to the padding after it
        logits = model.lm_head(hidden[torch.arange(len(ids)), ends])[:, digits]
        out += (logits.softmax(-1) @ torch.arange(10.0)).tolist()
    model.train()
    return out


def _encode(writer: Writer, case: JudgedStep) -> list[int]:
    steps = [id for step in (*case.before, case.step) for id in writer.encode(step)]
    return [*writer.prompt(case.problem), *steps]
