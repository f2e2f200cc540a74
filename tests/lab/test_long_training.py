"""The rows and measurements of the long problems."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.training.data import IGNORED, TRUNK, Mistake, MistakeRate, Writer, long_batches, world_of
from lab.training.inference import JudgedStep, Trunk, grades, recite
from lab.training.train import LONG_RECIPES, Trainer, build, grow
from lab.worlds import accounts
from lab.worlds.accounts import Difficulty, advance, begin, corrupt, grade, worked_steps
from stepspec.evals.testbed.problems import CORRECTION

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
        plain, moved = near.row(random.Random(seed), problem, 2), far.row(random.Random(seed), problem, 2)
        assert plain.positions[:start] == moved.positions[:start] == list(range(start))
        trunk = [place for place, branch in zip(moved.positions, moved.branch, strict=True) if branch == TRUNK]
        gap = trunk[start] - start
        assert trunk[start:] == list(range(start + gap, len(trunk) + gap))
        gaps.add(gap)
        for at in range(1, len(moved.ids)):
            if moved.branch[at] != moved.branch[at - 1]:  # a branch goes on where it leaves the trunk
                assert moved.positions[at] == moved.positions[moved.leaves[at] - 1] + 1
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


def test_batches_hold_problems_of_one_length_and_the_mistakes_on_them(trainer: Trainer) -> None:
    writer = Writer(trainer.tokenizer, MistakeRate(0.0))
    problem = problems(1)[0]
    wrong = worked_steps(problem)[1].replace("Ones", "tens")
    mistakes = [Mistake(problem, (worked_steps(problem)[0],), wrong)]
    source = long_batches(
        writer, seed=1, tokens=2000, branches=0, difficulties=[SHORT], mistakes=mistakes, mistaken=0.5
    )
    batches = list(islice(source, 6))
    assert all(batch.ids.size <= 2300 for batch in batches)
    tokenizer: Any = writer.tokenizer
    texts = [str(tokenizer.decode(ids)) for batch in batches for ids in batch.ids]
    assert all(text.count("Balance on the") - 1 in (3, 4) for text in texts)  # the mistake has one more
    assert 0.2 < sum(wrong + CORRECTION in text for text in texts) / len(texts) < 0.8


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


def test_the_vocabulary_does_not_depend_on_the_lengths_of_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.training import tokenizer

    before = tokenizer.train("dated").vocab
    monkeypatch.setattr(accounts, "DEFAULT", Difficulty(steps=(5, 6)))
    assert tokenizer.train("dated").vocab == before


def test_right_steps_are_graded_8_or_9_and_wrong_ones_less_the_more_is_wrong() -> None:
    rng = random.Random(4)
    right, wrong = set[int](), set[int]()
    for problem in islice(accounts.generate(6, "train", Difficulty(steps=(6, 6))), 30):
        assert world_of(problem) is accounts
        state = begin(problem)
        for step in worked_steps(problem):
            right.add(grade(problem, state, step))
            wrong.add(grade(problem, state, corrupt(rng, problem, state)))
            state = advance(problem, state, step)
    assert right == {8, 9}
    assert wrong == {0, 1, 2, 3, 4}
    problem = problems(1)[0]
    good = worked_steps(problem)[0]
    one = good.replace("Ones", "ones")
    assert grade(problem, begin(problem), one) == 4
    assert grade(problem, begin(problem), one.replace("tens", "TENS")) < 4
    assert grade(problem, begin(problem), good + " ") == 0
