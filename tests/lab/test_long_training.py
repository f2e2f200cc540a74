"""The rows and measurements of the long problems."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.training.data import IGNORED, MistakeRate, Writer, long_batches
from lab.training.inference import JudgedStep, Trunk, grades, recite
from lab.training.train import LONG_RECIPES, Trainer, build, grow
from lab.worlds import accounts
from lab.worlds.accounts import Difficulty, begin, corrupt, worked_steps

SHORT = Difficulty(steps=(3, 3))


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A small model without any training, whose choices are arbitrary but fixed."""
    torch.set_num_threads(1)
    return Trainer(LONG_RECIPES[0], Path(tmp_path_factory.mktemp("models")), lambda line: None)


def problems(count: int) -> list[accounts.Problem]:
    return list(islice(accounts.generate(3, "train", SHORT), count))


def test_a_model_without_any_training_prefers_the_deed_of_the_day_to_those_of_other_days(trainer: Trainer) -> None:
    writer = Writer(trainer.tokenizer, MistakeRate(0.0), marked=False, varied=False)
    right = total = 0
    for problem in islice(accounts.generate(3, "train", Difficulty(steps=(6, 6))), 4):
        row = writer.row(random.Random(0), problem, 0)
        with torch.no_grad():
            logits = trainer.model(input_ids=torch.tensor([row.ids])).logits[0]
        deeds = {index: writer.encode(f" {deed}")[0] for index, deed in enumerate(problem.operations)}
        place = len(writer.prompt(problem))
        for index, step in enumerate(worked_steps(problem)[:-1]):
            after_day = logits[place + 1]
            assert row.ids[place + 2] == deeds[index]
            right += int(max(deeds.values(), key=lambda id: float(after_day[id])) == deeds[index])
            total += 1
            place += len(writer.encode(step))
    assert right > 0.4 * total, f"{right} of {total}, of which one in six by chance"


def test_a_grown_model_writes_the_same_as_its_base(trainer: Trainer) -> None:
    deeper = build(replace(trainer.recipe, layers=5), trainer.tokenizer)
    ids = torch.tensor([trainer.writer.prompt(problems(1)[0])])
    with torch.no_grad():
        before = deeper(input_ids=ids).logits
        grow(deeper, trainer.model)
        after, base = deeper(input_ids=ids).logits, trainer.model(input_ids=ids).logits
    assert torch.allclose(after, base, atol=1e-5)
    assert not torch.allclose(after, before, atol=1e-5)


def test_only_the_reasoning_and_the_answer_are_learnt(trainer: Trainer) -> None:
    writer = Writer(trainer.tokenizer, MistakeRate(0.0), varied=False)
    for problem in problems(5):
        row = writer.row(random.Random(0), problem, 0)
        targets = [target for target in row.targets if target != IGNORED]
        text = "".join(worked_steps(problem)) + accounts.final_answer(problem.answer)
        assert targets == [*writer.encode(text), *writer.encode("<|im_end|>")]


def test_the_reasoning_begins_up_to_a_reach_after_its_problem(trainer: Trainer) -> None:
    near, far = (Writer(trainer.tokenizer, MistakeRate(0.0), reach=reach, varied=False) for reach in (0, 3000))
    gaps = set[int]()
    for seed, problem in enumerate(problems(20)):
        start = len(near.prompt(problem))
        plain, moved = near.row(random.Random(seed), problem, 0), far.row(random.Random(seed), problem, 0)
        assert plain.positions[:start] == moved.positions[:start] == list(range(start))
        gap = moved.positions[start] - start
        assert moved.positions[start:] == list(range(start + gap, len(moved.positions) + gap))
        gaps.add(gap)
    assert all(0 <= gap < 3000 for gap in gaps)
    assert len(gaps) > 5


def test_a_shortened_step_keeps_its_equation_and_its_balance_where_they_would_be(trainer: Trainer) -> None:
    long = next(accounts.generate(3, "train", Difficulty(steps=(30, 30))))
    writers = (
        Writer(trainer.tokenizer, MistakeRate(0.0), whole=whole, varied=False, marked=False) for whole in (1.0, 0.2)
    )
    whole, shortened = (writer.row(random.Random(1), long, 0) for writer in writers)
    places = dict(zip(whole.positions, zip(whole.ids, whole.targets, strict=True), strict=True))
    for place, id, target in zip(shortened.positions, shortened.ids, shortened.targets, strict=True):
        assert places[place][0] == id
        assert target in (places[place][1], IGNORED)
    assert len(shortened.ids) < 0.6 * len(whole.ids)
    words: Any = trainer.tokenizer
    kept = [id for id, before in zip(shortened.ids[1:], shortened.targets, strict=False) if before != IGNORED]
    learnt = str(words.decode(kept))
    for index, step in enumerate(worked_steps(long)[:-1]):
        equation, _, columns = step.partition(" Ones")
        assert equation in learnt
        assert f"{long.day(index)}: ${long.values[index + 1]}." in str(words.decode(shortened.ids))
        assert (columns.partition(" Balance")[0] in learnt) == (step in str(words.decode(shortened.ids)))
    assert worked_steps(long)[-1] in learnt


def test_batches_hold_problems_of_one_length(trainer: Trainer) -> None:
    batches = list(islice(long_batches(trainer.writer, seed=1, tokens=2000, difficulties=[SHORT]), 3))
    assert all(batch.ids.size <= 2300 for batch in batches)
    tokenizer: Any = trainer.tokenizer
    texts = [str(tokenizer.decode(ids)) for batch in batches for ids in batch.ids]
    assert all(text.count("Balance on the") - 1 == 3 for text in texts)


def test_drafts_and_grades_from_one_reading_are_those_of_the_plain_network(trainer: Trainer) -> None:
    model, writer = trainer.model.eval(), trainer.writer
    problem = problems(1)[0]
    trunk = Trunk(model, writer, problem)
    steps = worked_steps(problem)
    written = [steps[0], corrupt(random.Random(1), problem, begin(problem)), *steps[2:]]
    cases = [JudgedStep(problem, tuple(steps[:n]), step, True) for n, step in enumerate(written)]
    assert trunk.grades(list(enumerate(written))) == pytest.approx(grades(model, writer, cases), abs=1e-4)
    for number, draft in enumerate(trunk.drafts(limit=8)):
        ids = [*writer.prompt(problem), *(id for step in steps[:number] for id in writer.encode(step))]
        start = len(ids)
        for _ in range(9):
            with torch.no_grad():
                ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        tokenizer: Any = writer.tokenizer
        assert str(tokenizer.decode(ids[start:])).startswith(draft)


def test_a_recital_says_which_steps_the_model_would_write_and_how_likely(trainer: Trainer) -> None:
    problem = problems(1)[0]
    ((greedy, chance),) = [(r.greedy, r.chance) for r in recite(trainer.model, trainer.writer, [problem])]
    assert greedy == (False,) * 4
    assert len(chance) == 4
    assert all(0 <= value < 0.01 for value in chance)
