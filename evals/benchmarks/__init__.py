"""The benchmarks: one file each, found by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stepspec.orchestrator.errors import ConfigurationError, near

from ..sample import Task
from .aime import AIME24, AIME25
from .amc23 import AMC23
from .arithmetic import ARITHMETIC
from .benchmark import Benchmark, Row
from .gpqa_diamond import GPQA_DIAMOND
from .gsm8k import GSM8K
from .loading import CALIBRATED_ON, bare, half, load, overlaps
from .math500 import MATH500

__all__ = ["BENCHMARKS", "CALIBRATED_ON", "Benchmark", "bare", "find", "half", "load", "overlaps", "own"]

BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.name: benchmark for benchmark in (MATH500, GSM8K, AIME24, AIME25, AMC23, GPQA_DIAMOND, ARITHMETIC)
}


def find(name: str) -> Benchmark:
    """Return the benchmark called *name*. Raise `ConfigurationError` if there is none."""
    known = BENCHMARKS.get(name.lower().replace("-", "_"))
    if known is None:
        raise ConfigurationError(
            f"there is no benchmark {name!r}{near(name.lower(), BENCHMARKS)}; there are {', '.join(BENCHMARKS)}, and "
            "any JSONL or Parquet file with the columns 'problem', 'answer'"
        )
    return known


def own(path: Path) -> Benchmark:
    """A benchmark of somebody's own, in the file at *path*; its answers are mathematical objects."""
    return Benchmark(path.stem, "the owner's", "math", ("problem", "answer"), _read)


def _read(row: Row, seed: int) -> Task:
    return Task(row["problem"], row["answer"], name=row.get("id", ""))
