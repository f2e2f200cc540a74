"""
What a benchmark is, and where its rows come from: the Hugging Face hub, or a file of the same
columns.
"""

from __future__ import annotations

import csv
import importlib
import json
import logging
import math
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from stepspec.orchestrator.errors import ConfigurationError, install_command
from stepspec.prompts import Prompt, known

from ..sample import Task

Row: TypeAlias = Mapping[str, str]  # those columns that hold text, or numbers, which are spelt out


@dataclass(frozen=True, slots=True)
class Benchmark:
    """
    A set of problems.

    *source*, *subset* and *split* name the data set on the Hugging Face hub. One without a source
    is read from a *file*, JSONL, CSV or Parquet, or *made* from a seed and a number of problems. *read*
    makes a task, with what grades the answers to it, of a row, which has at least these *columns*,
    and the seed. *prompt* names the template that every problem is put into, for all arms alike;
    without one it stands alone.
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


Raw: TypeAlias = Mapping[str, Any]
Half: TypeAlias = Literal["calibration", "report"]
MADE = 200  # problems, where a benchmark has no end
HUB = "https://huggingface.co"
HUB_SECONDS = 5.0  # to answer
HUB_LIBRARIES = ("datasets", "huggingface_hub", "httpx", "urllib3")
CALIBRATED_ON = "calibration half"


def load(
    benchmark: Benchmark, data: Path | None = None, *, seed: int = 0, limit: int | None = None
) -> list[Task]:
    """
    Return the tasks of *benchmark*, the first *limit* of them, put into its template; from the file
    *data* if given.

    Raise `ConfigurationError`, which says what to do, if they cannot be had.
    """
    data = data or benchmark.file
    if data is None and benchmark.made is not None:
        tasks = benchmark.made(seed, MADE if limit is None else limit)
    else:
        rows = from_file(data) if data is not None else from_hub(benchmark)
        where = str(data or benchmark.source)
        tasks = [
            _task(benchmark, row, seed, f"{where}, row {at}") for at, row in enumerate(rows, 1)
        ][:limit]
    if not tasks:
        raise ConfigurationError(f"no problems in {data or benchmark.name}")
    return [
        replace(task, problem=benchmark.put(task.problem), question=task.question or task.problem)
        for task in tasks
    ]


def bare(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """The *tasks* without a template, as the miniature models were trained on them."""
    return tuple(replace(task, problem=task.question or task.problem) for task in tasks)


def _task(benchmark: Benchmark, row: Raw, seed: int, where: str) -> Task:
    missing = [column for column in benchmark.columns if row.get(column) is None]
    if missing:
        raise ConfigurationError(
            f"{where}: {', '.join(map(repr, missing))} missing or null; {benchmark.name} needs "
            f"{', '.join(map(repr, benchmark.columns))}, and there are {', '.join(map(repr, row))}"
        )
    texts = {column: text for column, value in row.items() if (text := _text(value)) is not None}
    for column in benchmark.columns:
        if not texts.get(column, "").strip():
            raise ConfigurationError(
                f"{where}: {column!r} is {row[column]!r:.80}, where a text or a number has to be"
            )
    task = benchmark.read(texts, seed)
    if not str(task.gold).strip():
        raise ConfigurationError(f"{where}: no answer in {texts[benchmark.columns[1]]!r:.80}")
    return task


def _text(value: object) -> str | None:
    """
    Spell out a text or a number; None for what is neither, and for a text with half of a character.
    """
    if isinstance(value, str):
        return value if value == value.encode(errors="ignore").decode() else None
    whole = isinstance(value, int) and not isinstance(value, bool)
    return (
        str(value)
        if whole or (isinstance(value, float | Decimal) and math.isfinite(value))
        else None
    )


def from_file(path: Path) -> Sequence[Raw]:
    """Read a JSONL, a CSV or a Parquet file."""
    if not path.is_file():
        raise ConfigurationError(f"no data at {path}")
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.suffix == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file))
    lines = path.read_bytes().splitlines()
    return [_row(line, f"{path}, line {at}") for at, line in enumerate(lines, 1) if line.strip()]


def _parquet(path: Path) -> Sequence[Raw]:
    parquet, arrow = (_library(name, "a Parquet file") for name in ("pyarrow.parquet", "pyarrow"))
    try:
        return cast("list[Raw]", parquet.read_table(path).to_pylist())
    except (OSError, arrow.ArrowException) as exc:
        raise ConfigurationError(
            f"{path}: no Parquet file that can be read ({' '.join(str(exc).split())})"
        ) from exc


def _row(line: bytes, where: str) -> Raw:
    try:
        row = json.loads(line)  # reads any integer exactly, and a byte-order mark
    except ValueError as exc:
        raise ConfigurationError(
            f"{where}: not JSON ({exc}); a problem is one JSON object on a line"
        ) from exc
    if not isinstance(row, Mapping):
        raise ConfigurationError(f"{where}: not a JSON object")
    return cast("Raw", row)


def from_hub(benchmark: Benchmark) -> Sequence[Raw]:
    """Fetch the data set, or take it from the hub's cache on this machine."""
    if not _hub_answers():
        os.environ["HF_HUB_OFFLINE"] = "1"  # else the library tries again for half a minute
    datasets = _library("datasets", f"the data set {benchmark.source}")
    for library in HUB_LIBRARIES:
        logging.getLogger(library).setLevel(logging.CRITICAL)  # the error below says the same
    try:
        loaded = datasets.load_dataset(benchmark.source, benchmark.subset, split=benchmark.split)
    except (
        Exception
    ) as exc:  # the hub's errors have no common root: no network, no permission, no such data set
        cause = " ".join(str(exc).split()) or type(exc).__name__
        raise ConfigurationError(
            f"cannot load {benchmark.source} from the Hugging Face hub: {cause[:300]}. Without a"
            " network, pass --data FILE, a JSONL, CSV or Parquet file with the columns"
            f" {', '.join(map(repr, benchmark.columns))}; a data set that asks for registration"
            " needs HF_TOKEN"
        ) from exc
    return cast("Sequence[Raw]", loaded)


def _hub_answers() -> bool:
    """Whether the hub can be reached. An answer of any status counts."""
    request = urllib.request.Request(os.environ.get("HF_ENDPOINT", HUB), method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=HUB_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):  # ValueError: the variable holds no URL
        return False


def _library(name: str, what: str) -> Any:
    """Import a library that the core does without."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        raise ConfigurationError(
            f"{what} needs {name}: {install_command('evals')}, or pass --data FILE.jsonl"
        ) from exc


def half(task: Task) -> Half:
    """
    Which half of its benchmark *task* belongs to, for good.

    That depends on its question alone: neither on the template that it is put into, nor on how
    choices are shuffled.
    """
    question = task.question or task.problem
    return "calibration" if blake2b(question.encode(), digest_size=1).digest()[0] % 2 else "report"


def duplicates(tasks: Sequence[Task]) -> list[str]:
    """A remark about problems that are there several times, if any of *tasks* is."""
    again = len(tasks) - len({task.question or task.problem for task in tasks})
    if not again:
        return []
    return [
        f"{again} of {len(tasks)} problems are there before: they count as independent, so that the"
        " intervals are too narrow."
    ]


def overlaps(calibrated: Mapping[str, str], benchmark: str, part: str | None) -> list[str]:
    """
    Remarks about arms that were *calibrated* on problems that are measured here.

    *calibrated* says by the name of an arm what it was calibrated on, *part* which half of
    *benchmark* is measured.
    """
    if part == "report":
        return []
    shared = "the very problems" if part == "calibration" else "half of the problems"
    return [
        f"{name!r} was calibrated on {shared} that are measured here, and chosen to lose few of"
        " just those: these figures are no evidence for its promise. Those of `--half report` are."
        for name, on in calibrated.items()
        if on == f"{benchmark}, {CALIBRATED_ON}"
    ]
