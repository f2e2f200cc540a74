"""
Solve problems in batches with the bare network, greedily or by sampling, and grade steps with it.
No server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from stepspec.evals.benchmarks.miniature import THINK_END
from stepspec.prompts import load

from ..templates import ask
from ..worlds.short import Problem
from .data import Writer
from .tokenizer import END_OF_TEXT, END_OF_TURN

LIMIT = 260  # tokens; the longest worked solution of `problems` has fewer


@dataclass(frozen=True, slots=True)
class ModelSolution:
    """The text that a model wrote for one problem."""

    problem: Problem
    text: str

    @property
    def reasoning(self) -> str:
        """
        The text up to and including the end of the thinking, or all of it if the thinking never
        ends.
        """
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
def grades(
    model: Qwen3ForCausalLM, writer: Writer, cases: Sequence[JudgedStep], *, rows: int = 64
) -> list[float]:
    """
    Return the grade, 0 to 9, that *model* gives to every case: the mean over the probabilities of
    the ten digits.
    """
    prompt = load("specreason.grade")
    question = writer.encode(ask(writer.template, prompt.text, prompt.opening))
    digits = torch.tensor([writer.encode(str(digit))[0] for digit in range(10)])
    model.eval()
    out: list[float] = []
    for start in range(0, len(cases), rows):
        ids = [[*_encode(writer, case), *question] for case in cases[start : start + rows]]
        ends = torch.tensor([len(row) - 1 for row in ids])
        padded = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(row) for row in ids], batch_first=True
        )
        # no token attends to the padding after it
        hidden = model.model(input_ids=padded).last_hidden_state
        logits = model.lm_head(hidden[torch.arange(len(ids)), ends])[:, digits]
        out += (logits.softmax(-1) @ torch.arange(10.0)).tolist()
    model.train()
    return out


def _encode(writer: Writer, case: JudgedStep) -> list[int]:
    steps = [id for step in (*case.before, case.step) for id in writer.encode(step)]
    return [*writer.prompt(case.problem), *steps]
