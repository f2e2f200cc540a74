"""The miniature pair's problems as tasks that can be measured."""

from __future__ import annotations

from itertools import islice

from ..arms import Task
from .problems import DEFAULT, Difficulty, generate


def fresh(count: int, seed: int, difficulty: Difficulty = DEFAULT) -> list[Task]:
    """Return *count* problems that no model was trained on."""
    return [Task(problem.text, str(problem.answer)) for problem in islice(generate(seed, "test", difficulty), count)]
