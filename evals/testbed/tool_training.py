"""Train the models of the problems with tools: the recipes, and the trainer with the rows of `tool_data`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from transformers import Qwen3ForCausalLM

from . import tool_problems as world
from .data import IGNORED, Batch
from .tool_data import ToolWriter, tool_batches
from .train import Log, Phase, Pools, Recipe, Trainer, save

LARGE_PHASES = (
    Phase(700, 3e-3, tokens=2600, branches=4, asked=0.15),  # to solve, and to mark the wrong tokens of a draft
    Phase(700, 2e-3, tokens=3200, branches=5, asked=0.7),  # to answer the judge's questions
)
ENOUGH = 0.7
SMALL_PHASES = (Phase(1500, 3e-3, tokens=2600, until=ENOUGH),)
RECIPES = (
    Recipe("small", "whole", width=64, layers=3, heads=2, phases=SMALL_PHASES, theta=1e9, head=64),
    Recipe("large", "whole", width=112, layers=6, heads=2, phases=LARGE_PHASES, theta=1e9, head=64),
)


class ToolTrainer(Trainer):
    """Trains one model of the problems with tools."""

    def source(self, number: int, phase: Phase, mistakes: Pools) -> Iterator[Batch]:
        writer = ToolWriter(self.tokenizer, asked=phase.asked)
        return tool_batches(writer, seed=self.recipe.seed + number, tokens=phase.tokens, branches=phase.branches)

    def evaluate(self, count: int = 100) -> float:
        """Return the share of *count* problems of the test split that the model would solve as the worked loop does."""
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
        row, _ = writer.trunk(world.random.Random(0), problem)
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
            trainer = ToolTrainer(recipe, folder / recipe.name, log, compile=False)
            trainer.learn(lambda pool, difficulties: (), work / f"{recipe.name}.pt")
            save(trainer.model, trainer.tokenizer, folder / recipe.name)
