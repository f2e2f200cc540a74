"""The models of the problems with tools before any training, and what is measured of them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.training.data import IGNORED
from lab.training.inference import grades_after
from lab.training.tool_card import ToolModel, real_steps, synthetic_steps
from lab.training.tool_data import ToolWriter
from lab.training.tool_training import RECIPES, ToolTrainer, exact
from lab.training.train import build
from lab.worlds.tool_problems import THREE_CALLS, generate


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> ToolTrainer:
    """A small model without any training, whose choices are arbitrary but fixed."""
    torch.set_num_threads(1)
    return ToolTrainer(RECIPES[0], Path(tmp_path_factory.mktemp("models")), lambda line: None)


@pytest.fixture(scope="module")
def untrained(trainer: ToolTrainer) -> ToolModel:
    return ToolModel(trainer.model, ToolWriter(trainer.tokenizer, varied=False))


def predicted(model: Any, writer: ToolWriter) -> float:
    """The share of the tokens of some worked loops that *model* would write."""
    right = total = 0
    for problem in islice(generate(3, "train", THREE_CALLS), 4):
        row, _ = writer.trunk(random.Random(0), problem)
        targets = torch.tensor(row.targets)
        with torch.no_grad():
            likeliest = model(input_ids=torch.tensor([row.ids])).logits[0].argmax(-1)
        right += int((likeliest == targets).sum())
        total += int((targets != IGNORED).sum())
    return right / total


def test_without_any_training_a_model_copies_much_of_what_it_has_to_write(untrained: ToolModel) -> None:
    torch.manual_seed(0)
    random_weights = build(RECIPES[0], untrained.writer.tokenizer)
    assert predicted(untrained.model, untrained.writer) > 0.2
    assert predicted(random_weights, untrained.writer) < 0.1


def test_an_untrained_model_writes_no_loop_word_for_word(untrained: ToolModel) -> None:
    assert exact(untrained.model, untrained.writer, 3) == 0


def test_steps_to_be_judged_are_right_and_wrong_ones_of_worked_loops(untrained: ToolModel) -> None:
    problems = list(islice(generate(7, "test"), 6))
    made = list(synthetic_steps(problems))
    assert [case.right for case in made] == [True, False] * 6
    assert not any(case.right for case in real_steps(untrained, problems))  # this model writes nothing right


def test_a_grade_is_between_0_and_9_and_depends_on_the_step(untrained: ToolModel) -> None:
    encode = untrained.writer.encode
    chains = [encode("cup: 17, so 2 * 17.\n\n"), encode("pen: 23, so 3 * 23.\n\n")]
    one, other = grades_after(untrained.model, untrained.writer, chains)
    assert 0 < one < 9
    assert one != other


def test_an_untrained_model_solves_no_loop_and_ends(untrained: ToolModel) -> None:
    loops = untrained.solve(list(islice(generate(7, "test"), 3)))
    assert not any(loop.correct for loop in loops)


def test_the_models_share_a_vocabulary_and_the_large_one_judges(trainer: ToolTrainer) -> None:
    small, large = RECIPES
    assert (small.judges, large.judges) == (False, True)
    assert small.numbers == large.numbers == "whole"
    model = build(replace(small, layers=2), trainer.tokenizer)
    assert model.config.vocab_size >= len(trainer.tokenizer)
