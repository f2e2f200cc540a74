"""What a benchmark is: where its problems come from and how they are put. Values only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from stepspec.prompts import Prompt, known

from ..sample import Task

Row: TypeAlias = Mapping[str, str]  # those columns that hold text, or numbers, which are spelt out


@dataclass(frozen=True, slots=True)
class Benchmark:
    """
    A set of problems.

    *source*, *subset* and *split* name the data set on the Hugging Face hub. One without a source is read from a
    *file*, JSONL or Parquet, or *made* from a seed and a number of problems. *read* makes a task, with what grades the
    answers to it, of a row, which has at least these *columns*, and the seed. *prompt* names the template that every
    problem is put into, for all arms alike; without one it stands alone.
    """

    name: str
    licence: str
    columns: tuple[str, ...]
    read: Callable[[Row, int], Task]
    source: str = ""
    subset: str | None = None
    split: str = "test"
    prompt: str | None = "eval.boxed"
    made: Callable[[int, int], list[Task]] | None = None
    file: Path | None = None

    @property
    def template(self) -> Prompt | None:
        return known()[self.prompt] if self.prompt else None

    def put(self, problem: str) -> str:
        """The text that a model gets to read for *problem*."""
        return self.template.fill(problem=problem) if self.template else problem
