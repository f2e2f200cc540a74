"""Units: a few conversions, from a file that comes with the package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stepspec import Answer, Benchmark, Task


def read(row: Mapping[str, str], seed: int) -> Task:
    """Make a task of a *row* of the file; *seed* is for benchmarks that shuffle choices."""
    return Task(row["question"], Answer(row["value"], "number"), name=row["id"])


UNITS = Benchmark(
    name="units",
    licence="Apache-2.0",
    columns=("question", "value", "id"),
    read=read,
    file=Path(__file__).with_name("units.jsonl"),
)
