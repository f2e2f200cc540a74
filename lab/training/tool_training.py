"""Train the models of the problems with tools: the recipes, how they begin, and the trainer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Qwen3ForCausalLM

from ..worlds import tool_problems as world
from .data import IGNORED, Batch
from .tool_data import ToolWriter, tool_batches
from .train import SHARPNESS, SLOW, Log, Phase, Pools, Recipe, Trainer, look_back, save

LARGE_PHASES = (
    Phase(900, 3e-3, tokens=2600, branches=2, asked=0.2),  # to solve, and to mark the wrong tokens of a draft
    Phase(700, 2e-3, tokens=3200, branches=5, asked=0.7),  # to answer the judge's questions
    Phase(700, 2e-3, tokens=3200, branches=4, asked=0.8),  # both again, for conversations without earlier thinking
)
ENOUGH = 0.6
MEASURED = 80  # problems, at most, in a measurement during training
SMALL_PHASES = (Phase(800, 3e-3, tokens=2600, until=ENOUGH),)
RECIPES = (
    Recipe("small", "whole", width=80, layers=3, heads=3, phases=SMALL_PHASES, theta=1e9, head=64),
    Recipe("large", "whole", width=112, layers=6, heads=3, phases=LARGE_PHASES, theta=1e9, head=64),
)
BEFORE = (1, 2, 4)  # how far the heads of the first layer look back


@torch.no_grad()
def copying(model: Qwen3ForCausalLM) -> None:
    """
    Let *model* begin with a circuit that copies what followed the same words earlier (`train.induction`).

    The first layer writes the codes of the tokens that are one, two and four before into dimensions of their own, which
    the embedding leaves empty. In the second layer, the first head attends to what followed the same token; the second
    to what stands two after the token before, so that "cup: " finds the price in "cup: 17"; and the third to what
    stands four after it, so that "After cup " finds the next item in "cup x 2, pen x 3".
    """
    parts: Any = model.model
    first, second = (layer.self_attn for layer in parts.layers[:2])
    width, head, unit = model.config.hidden_size, model.config.head_dim, model.config.hidden_size**-0.5
    size = 3 * width // 14  # of a code
    own = slice(1, width - len(BEFORE) * size)
    once, twice, fourth = written = [
        slice(begin, begin + size) for begin in range(own.stop, own.stop + len(BEFORE) * size, size)
    ]
    embedding = parts.embed_tokens.weight
    embedding[:, 0], embedding[:, own.stop :] = 2 * unit, 0
    code = torch.zeros(size, width)
    nn.init.orthogonal_(code[:, own])
    slow = [at for at in range(head) if at % (head // 2) >= SLOW][:size]
    for number, (distance, place) in enumerate(zip(BEFORE, written, strict=True)):
        look_back(model, first, 0, number=number, far=distance)
        rows = slice(number * head, number * head + size)
        first.v_proj.weight[rows] = code
        first.o_proj.weight[:, number * head : (number + 1) * head] = 0
        first.o_proj.weight[place, rows] = unit * torch.eye(size)
    for norm in (second.q_norm.weight, second.k_norm.weight):
        norm[:] = SHARPNESS
    plain = torch.eye(width)
    for number, (query, key) in enumerate(((code, once), (plain[once], twice), (plain[once], fourth))):
        begin = number * head
        second.q_proj.weight[begin : begin + head] = second.k_proj.weight[begin : begin + head] = 0
        compared = [begin + at for at in slow]
        second.q_proj.weight[compared], second.k_proj.weight[compared] = query, plain[key]
        copied = slice(begin, begin + own.stop - 1)
        second.v_proj.weight[begin : begin + head] = 0
        second.v_proj.weight[copied] = plain[own]
        second.o_proj.weight[:, begin : begin + head] = 0
        second.o_proj.weight[own, copied] = 2 * unit * torch.eye(own.stop - 1)


class ToolTrainer(Trainer):
    """Trains one model of the problems with tools."""

    def __init__(self, recipe: Recipe, folder: Path, log: Log) -> None:
        super().__init__(recipe, folder, log)
        copying(self.model)

    def source(self, number: int, phase: Phase, mistakes: Pools) -> Iterator[Batch]:
        writer = ToolWriter(self.tokenizer, asked=phase.asked)
        return tool_batches(writer, seed=self.recipe.seed + number, tokens=phase.tokens, branches=phase.branches)

    def evaluate(self, count: int = 100) -> float:
        """Return the share of *count* problems of the test split that the model would solve as the worked loop does."""
        count = min(count, MEASURED)
        right = exact(self.model, ToolWriter(self.tokenizer, varied=False), count)
        self.log(f"{self.recipe.name} solves {right:.1%} of {count}")
        return right

    def recite(self, most: int, count: int = 200) -> None:
        self.evaluate(count)


@torch.no_grad()
def exact(model: Qwen3ForCausalLM, writer: ToolWriter, count: int) -> float:
    """
    Return the share of *count* worked loops of the test split that *model* would write word for word at temperature 0.

    It reads each loop once and writes nothing: each token is predicted from the right ones before it.
    """
    model.eval()
    right = 0
    for problem in islice(world.generate(1234, "test"), count):
        row, _ = writer.trunk(random.Random(0), problem)
        ids, targets = torch.tensor([row.ids]), torch.tensor(row.targets)
        wanted = torch.nonzero(targets != IGNORED).flatten()
        logits = model.lm_head(model.model(input_ids=ids, use_cache=False).last_hidden_state[0, wanted])
        right += int((logits.argmax(-1) == targets[wanted]).all())
    model.train()
    return right / count


def train_tool_models(folder: Path, work: Path, log: Log, *, only: str | None = None, threads: int = 2) -> None:
    """Train both models, or *only* one, and write each to its own subfolder of *folder*; *work* has finished phases."""
    torch.set_num_threads(threads)
    for recipe in RECIPES:
        if only in (None, recipe.name):
            trainer = ToolTrainer(recipe, folder / recipe.name, log)
            trainer.learn(lambda pool, difficulties: (), work / f"{recipe.name}.pt")
            save(trainer.model, trainer.tokenizer, folder / recipe.name)
