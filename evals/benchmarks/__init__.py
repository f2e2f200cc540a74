"""The benchmarks, found by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepspec import prompts
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.registry import Registry

from ..grading.answers import Metric
from ..grading.graders import METRICS
from .built_in import AIME24, AIME25, AMC23, ARITHMETIC, GPQA_DIAMOND, GSM8K, MATH500, reader
from .loading import (
    CALIBRATED_ON,
    Benchmark,
    Half,
    duplicates,
    half,
    load,
    overlaps,
)

FILES = (".jsonl", ".csv", ".parquet")

__all__ = [
    "BENCHMARKS",
    "CALIBRATED_ON",
    "Benchmark",
    "Half",
    "choose",
    "duplicates",
    "find",
    "half",
    "load",
    "overlaps",
    "own",
]

BUILT_IN: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (MATH500, GSM8K, AIME24, AIME25, AMC23, GPQA_DIAMOND, ARITHMETIC)
}


def read_benchmark(name: str, value: object) -> Benchmark:
    """Return *value* as the benchmark *name*. Raise `ConfigurationError` if it is none."""
    if not isinstance(value, Benchmark):
        raise ConfigurationError(f"{value!r} is no Benchmark")
    sources = [value.source != "", value.file is not None, value.made is not None]
    if sum(sources) != 1:
        raise ConfigurationError(
            f"{name} needs one of a source, a file and a function that makes its problems"
        )
    if value.prompt is not None and value.prompt not in prompts.known():
        raise ConfigurationError(f"{name}: there is no prompt {value.prompt!r}")
    return replace(value, name=name)


BENCHMARKS = Registry(
    "benchmark",
    "benchmarks",
    "stepspec.benchmarks",
    BUILT_IN,
    read_benchmark,
)
"""The built-in benchmarks and those of plugins, by name."""


def find(name: str) -> Benchmark:
    """Return the benchmark called *name*. Raise `ConfigurationError` if there is none."""
    try:
        return BENCHMARKS.find(name)
    except ConfigurationError as exc:
        if name in BENCHMARKS.broken:
            raise
        raise ConfigurationError(
            f"{exc}; or a JSONL, CSV or Parquet file with the problems and their answers"
        ) from exc


def own(
    path: Path,
    *,
    problem: str = "problem",
    answer: str = "answer",
    metric: Metric = "math",
    prompt: str | None = "eval.boxed",
) -> Benchmark:
    """
    Return the benchmark in a user's file at *path*, with the columns *problem* and *answer*.

    A column ``id`` names the problems. *prompt* is the name of a template with the placeholder
    ``{problem}``; None: the problem alone.
    """
    # The name becomes that of a folder. ".." would lead out of the folder above.
    name = path.stem.strip(".") or "problems"

    read = reader(problem, answer, metric)
    return Benchmark(name, "the owner's", (problem, answer), read, prompt=prompt)


FLAGS = {
    "problem": "--problem-column",
    "answer": "--answer-column",
    "metric": "--metric",
    "prompt": "--prompt",
}
"""The flags for a file, by the parameters of `own`."""


def choose(
    name: str,
    data: Path | None = None,
    **reading: str | None,
) -> tuple[Benchmark, Path | None]:
    """
    Return the benchmark *name*, or the benchmark in the file *name*, and the file of its problems.

    The file of a benchmark with a name is *data*. *reading* is for a file, as in `own`; None: the
    default. Its prompt is the name of a prompt, the path of a file with one, or "none". Raise
    `ConfigurationError`, which names the flag.
    """
    given: dict[str, Any] = {key: value for key, value in reading.items() if value is not None}
    is_file = Path(name).suffix in FILES
    if is_file and data:
        raise ConfigurationError(f"{name} is a file already: leave --data out")
    file = Path(name) if is_file else data
    if file and not file.is_file():
        raise ConfigurationError(f"no data at {file}")
    if not is_file:
        for key in given:
            raise ConfigurationError(
                f"{FLAGS[key]} is for a file of your own: {name} says itself how it is read and put"
            )
        return find(name), file
    metric = given.get("metric", "math")
    if metric not in METRICS:
        raise ConfigurationError(
            f"--metric {metric}: there is no such metric; the metrics: {', '.join(METRICS)}"
        )
    if "prompt" in given:
        given["prompt"] = _template(given["prompt"])
    return own(Path(name), **given), file


def _template(prompt: str) -> str | None:
    """Return the name of a *prompt*. Raise `ConfigurationError` if it has no ``{problem}``."""
    if prompt == "none":
        return None
    known = prompts.known()
    try:
        found = known[prompt] if prompt in known else prompts.load_file(Path(prompt))
    except ValueError as exc:
        names = [name for name, file in known.items() if "problem" in file.original.placeholders]
        raise ConfigurationError(
            f"--prompt {exc}; name a file, none, or one of: {', '.join(names)}"
        ) from exc
    if "problem" not in found.original.placeholders:
        raise ConfigurationError(
            f"--prompt {prompt}: the text needs {{problem}}, where the problem stands"
        )
    return found.name
