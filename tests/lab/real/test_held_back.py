"""Steps of solutions that judge never saw, and how far two rankings agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.real.held_back import agreement, solved_steps


def test_the_steps_of_a_solution_each_have_a_slip_and_no_calculation(tmp_path: Path) -> None:
    answer = "He has 3 * 4 = <<3*4=12>>12 eggs.\nSo he sells them.\nHe earns 12 * 2 = $<<12*2=24>>24.\n#### 24"
    path = tmp_path / "gsm8k.jsonl"
    path.write_text(
        "\n".join(
            [json.dumps({"question": "Other?", "answer": "1"}), json.dumps({"question": "How much?", "answer": answer})]
        )
    )
    first, second = sorted(solved_steps(path, 1, 5), key=lambda case: len(case.chain.steps))
    assert first.right == "He has 3 * 4 = 12 eggs.\n\n"
    assert first.slip != first.right
    assert [step.text for step in second.chain.steps] == [first.right, "So he sells them.\n\n"]
    assert second.right == "He earns 12 * 2 = $24.\n\n"


def test_the_agreement_is_that_of_ranks() -> None:
    judged = {"a": 0.5, "b": 0.6, "c": 0.9, "only here": 1.0}
    assert agreement(judged, {"a": 0.1, "b": 0.2, "c": 0.3}) == pytest.approx(1.0)
    assert agreement(judged, {"a": 0.3, "b": 0.2, "c": 0.1}) == pytest.approx(-1.0)
