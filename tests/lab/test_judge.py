"""The layers that judge: they change nothing about solving, begin as a comparison, and end as graders."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from lab.training.data import IGNORED, TRUNK, MistakeRate, Writer
from lab.training.inference import Trunk, recite
from lab.training.judge import JUDGES, WORKSPACE, DraftWriter, Judge
from lab.training.model_card import LoadedModel, auroc
from lab.worlds import LONG, WORLDS, accounts
from lab.worlds.accounts import Difficulty

MODELS = WORLDS[LONG].folders[0]


def problems(count: int, steps: int, seed: int = 3) -> list[accounts.Problem]:
    return list(islice(accounts.generate(seed, "test", Difficulty(steps=(steps, steps))), count))


@pytest.fixture(scope="module")
def judge() -> Judge:
    """The small model with layers that judge, before any training."""
    torch.set_num_threads(1)
    return Judge(LoadedModel.of("small", MODELS), lambda line: None, problems=40)


def test_the_new_layers_leave_what_the_model_writes_as_it_is(judge: Judge) -> None:
    row = Writer(judge.tokenizer, MistakeRate(0.0), marked=False).row(random.Random(0), problems(1, 12)[0], 0)
    ids = torch.tensor([row.ids])
    with torch.no_grad():
        before = judge.base.model(input_ids=ids).logits.softmax(-1)
        after = judge.model(input_ids=ids).logits.softmax(-1)
    writes = torch.tensor(row.targets) != IGNORED
    assert torch.equal(before.argmax(-1)[0, writes], after.argmax(-1)[0, writes])
    assert float((before - after).abs().sum(-1).mean()) < 0.01  # the workspace changes the norms a little
    assert not any(bool(weight[: judge.width].any()) for weight in _written(judge))


def _written(judge: Judge) -> list[torch.Tensor]:
    """What the new layers write into the residual stream, by dimension."""
    return [
        part.weight
        for layer in (judge.first, judge.second, judge.third)
        for part in (layer.self_attn.o_proj, layer.mlp.down_proj)
    ]


def test_before_training_wrong_tokens_agree_less_with_what_was_predicted(judge: Judge) -> None:
    writer = DraftWriter(judge.tokenizer, questions=False)
    agrees, right = list[float](), list[bool]()
    for number, problem in enumerate(problems(12, 8)):
        row = writer.row(random.Random(number), problem, 0)
        state, steps = accounts.begin(problem), accounts.worked_steps(problem)
        for _ in range(3):
            state = accounts.advance(problem, state, steps[state.index])
        draft = accounts.corrupt(random.Random(number), problem, state)
        marks, ids = writer.marks(problem, state, draft), writer.encode(draft)
        begun = [*writer.prompt(problem), *(id for step in steps[:3] for id in writer.encode(step))]
        with torch.no_grad():
            read = judge.network(input_ids=torch.tensor([[*begun, *ids]]), use_cache=False, output_hidden_states=True)
        agreement = read.hidden_states[-2][0, len(begun) :, judge.mark]
        agrees += [float(value) for value, mark in zip(agreement, marks, strict=True) if mark != IGNORED]
        right += [mark == 0 for mark in marks if mark != IGNORED]
        assert row.branch == [TRUNK] * len(row.branch)
    assert auroc(np.array(agrees), np.array(right)) > 0.8


def test_a_wrong_draft_is_marked_at_its_first_wrong_token_only(judge: Judge) -> None:
    writer, (problem,) = DraftWriter(judge.tokenizer, questions=True), problems(1, 5)
    state = accounts.begin(problem)
    right = accounts.expected(problem, state)
    wrong = right.replace("Ones (", "Ones (1")
    marks, same = writer.marks(problem, state, wrong), len(writer.encode(right.partition("Ones (")[0] + "Ones ("))
    assert marks == [0] * same + [1] + [IGNORED] * (len(marks) - same - 1)
    assert set(writer.marks(problem, state, right)) == {0}


@pytest.mark.parametrize("questions", [True, False])
def test_the_rows_of_drafts(judge: Judge, questions: bool) -> None:
    writer, words = DraftWriter(judge.tokenizer, questions=questions), judge.tokenizer
    tokenizer: Any = words
    verdicts, drafts = set[str](), list[bool]()
    for number, problem in enumerate(problems(10, 6)):
        row = writer.row(random.Random(number), problem, 8)
        for branch in range(1, 9):
            places = [at for at, other in enumerate(row.branch) if other == branch]
            text = str(tokenizer.decode([row.ids[at] for at in places]))
            wrong = any(row.wrong[at] == 1 for at in places)
            drafts.append(wrong)
            verdict = [row.verdicts[at] for at in places if row.verdicts[at] != IGNORED]
            if questions:
                verdicts.add(str(tokenizer.decode(verdict)))
                assert text.endswith("boxed{")
                assert str(tokenizer.decode(verdict)) in (("No", *"01234") if wrong else ("Yes", *"89"))
            elif wrong:
                assert row.wrong[places[-1]] == 1
                assert not verdict
    assert 0.2 < np.mean(drafts) < 0.9
    assert not questions or {"Yes", "No", "9", "0"} <= verdicts


@pytest.fixture(scope="module")
def areas() -> dict[str, float]:
    """The AUROC of the grades of every judge, for right and corrupted steps."""
    rng, found = random.Random(5), dict[str, float]()
    written, right = list[list[str]](), list[bool]()
    for problem in problems(4, 20):
        state, steps = accounts.begin(problem), accounts.worked_steps(problem)
        drafts = list[str]()
        for step in steps:
            drafts.append(step if rng.random() < 0.5 else accounts.corrupt(rng, problem, state))
            state = accounts.advance(problem, state, step)
        written.append(drafts)
        right += [draft == step for draft, step in zip(drafts, steps, strict=True)]
    for name in JUDGES:
        loaded, grades = LoadedModel.of(name, MODELS), list[float]()
        for problem, drafts in zip(problems(4, 20), written, strict=True):
            grades += Trunk(loaded.model.eval(), loaded.writer, problem).grades(list(enumerate(drafts)))
        found[name] = auroc(np.array(grades), np.array(right))
    return found


def test_the_shipped_judges_tell_right_from_wrong_as_well_as_they_are_said_to(areas: dict[str, float]) -> None:
    assert areas["large"] > 0.97
    assert 0.65 < areas["judge-75"] < areas["judge-90"] < areas["large"]


def test_all_of_them_solve_alike() -> None:
    some = problems(2, 20)
    for name in JUDGES:
        loaded = LoadedModel.of(name, MODELS)
        assert np.mean([right for each in recite(loaded.model, loaded.writer, some) for right in each.greedy]) > 0.97


@pytest.mark.parametrize("name", JUDGES)
def test_marks_do_not_make_the_likelihoods_flatter(name: str) -> None:
    loaded, normed = LoadedModel.of(name, MODELS), list[torch.Tensor]()
    network: Any = loaded.model.eval().get_submodule("model")

    def keep(_: object, inputs: tuple[torch.Tensor]) -> None:
        normed.append(inputs[0][0])

    network.norm.register_forward_pre_hook(keep)
    writer = Writer(loaded.writer.tokenizer, MistakeRate(0.0), marked=False, varied=False)
    shares = list[torch.Tensor]()
    for problem in problems(2, 40):
        row = writer.row(random.Random(0), problem, 0)
        with torch.no_grad():
            network(input_ids=torch.tensor([row.ids]), use_cache=False)
        squares = normed.pop()[torch.tensor(row.targets) != IGNORED].pow(2)
        shares.append(squares[:, -WORKSPACE:].sum(1) / squares.sum(1))
    assert float(torch.cat(shares).quantile(0.995)) < 0.2
