"""
The training data of the large model: the branches of a row contain the text of a served judge, and
no more.
"""

from __future__ import annotations

import random
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lab.templates import ask
from lab.worlds.short import RIGHT, WRONG, generate, worked_steps
from stepspec.prompts import load

if TYPE_CHECKING:
    from lab.training.data import Row, Writer


@pytest.fixture(scope="module")
def data() -> Any:
    """The module, whose imports take seconds that not every worker of a test run has to spend."""
    return import_module("lab.training.data")


@pytest.fixture(scope="module")
def writer(data: Any) -> Writer:
    made: Writer = data.Writer(data.vocabulary.train("plain"))
    return made


def rows(writer: Writer, count: int) -> list[Row]:
    rng = random.Random(5)
    return [writer.row(rng, problem, 4) for problem in islice(generate(3, "train"), count)]


def text(writer: Writer, ids: list[int]) -> str:
    return str(writer.tokenizer.decode(ids))


def test_the_question_of_the_judge_has_the_layout_of_the_endpoints(
    data: Any, writer: Writer
) -> None:
    prompt = load("specreason.grade")
    question = ask(writer.template, prompt.text, prompt.opening)
    assert "<think>\n\n</think>" in question
    count = 0
    for row in rows(writer, 20):
        for at, verdict in enumerate(row.verdicts):
            if verdict != data.IGNORED and text(writer, [verdict]) in (str(RIGHT), str(WRONG)):
                branch = [
                    i for i, b in zip(row.ids, row.branch, strict=True) if b == row.branch[at]
                ]
                assert text(writer, branch).endswith(question)
                count += 1
    assert count > 10


def test_wrong_tokens_are_never_to_be_written(data: Any, writer: Writer) -> None:
    for row in rows(writer, 50):
        for at in range(1, len(row.ids)):
            if row.wrong[at] == 1:
                assert row.targets[at - 1] == data.IGNORED or row.targets[at - 1] != row.ids[at]


def test_a_branch_sees_the_trunk_up_to_its_fork_and_itself(data: Any, writer: Writer) -> None:
    torch: Any = import_module("torch")
    visible = import_module("lab.training.train").visible
    batch = data.collate(rows(writer, 2), 640)
    mask = visible(torch.from_numpy(batch.branch), torch.from_numpy(batch.leaves))[:, 0] == 0
    for row in range(2):
        branch = batch.branch[row]
        leaves = batch.leaves[row]
        for query in range(0, 640, 7):
            if branch[query] < data.TRUNK:
                continue
            for key in range(640):
                own = branch[key] == branch[query] and key <= query
                stem = (
                    branch[query] != data.TRUNK
                    and branch[key] == data.TRUNK
                    and key < leaves[query]
                )
                assert bool(mask[row, query, key]) == bool(own or stem)


def test_positions_go_on_where_the_trunk_was_left(writer: Writer) -> None:
    for row in rows(writer, 20):
        for at in range(1, len(row.ids)):
            first = row.branch[at] != row.branch[at - 1]
            assert row.positions[at] == (row.leaves[at] if first else row.positions[at - 1] + 1)


def test_the_first_mistake_is_found(data: Any, writer: Writer) -> None:
    problem = next(generate(9, "train"))
    steps = worked_steps(problem)
    assert data.first_mistake(problem, "".join(steps)) is None
    wrong = steps[1].replace("=", "= 9", 1)
    assert data.first_mistake(problem, steps[0] + wrong + steps[1]) == data.Mistake(
        problem, (steps[0],), wrong
    )


@pytest.mark.parametrize("numbers", ["plain", "grouped"])
def test_digits_and_verdicts_are_single_tokens(data: Any, numbers: str) -> None:
    writer = data.Writer(data.vocabulary.train(numbers))
    assert all(len(writer.encode(word)) == 1 for word in (*"0123456789", "Yes", "No", ".\n\n"))
    assert (len(writer.encode("42")) == 1) == (numbers == "grouped")


def test_auroc_counts_pairs() -> None:
    auroc = import_module("lab.training.model_card").auroc
    right = np.array([True, True, False, False])
    assert auroc(np.array([9.0, 8.0, 1.0, 2.0]), right) == 1.0
    assert auroc(np.array([9.0, 1.0, 5.0, 1.0]), right) == 0.625
