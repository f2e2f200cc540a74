"""Where rows come from: the Hugging Face hub, or a file of the same columns."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import orjson

from ...orchestrator.errors import ConfigurationError
from ..arms import Task
from .benchmark import Benchmark, Row

MADE = 200  # problems, where a benchmark has no end


def load(benchmark: Benchmark, data: Path | None = None, *, seed: int = 0, limit: int | None = None) -> list[Task]:
    """
    Return the tasks of *benchmark*, the first *limit* of them, put into its template; from the file *data* if given.

    Raise `ConfigurationError`, which says what to do, if they cannot be had.
    """
    if data is None and benchmark.made is not None:
        tasks = benchmark.made(seed, MADE if limit is None else limit)
    else:
        rows = from_file(data) if data is not None else from_hub(benchmark)
        where = str(data or benchmark.source)
        tasks = [_task(benchmark, row, seed, f"{where}, row {at}") for at, row in enumerate(rows, 1)][:limit]
    if not tasks:
        raise ConfigurationError(f"no problems in {data or benchmark.name}")
    return [replace(task, problem=benchmark.put(task.problem)) for task in tasks]


def _task(benchmark: Benchmark, row: Row, seed: int, where: str) -> Task:
    missing = [column for column in benchmark.columns if row.get(column) is None]
    if missing:
        raise ConfigurationError(
            f"{where}: no column {', '.join(map(repr, missing))}; {benchmark.name} needs "
            f"{', '.join(map(repr, benchmark.columns))}, and there are {', '.join(map(repr, row))}"
        )
    return benchmark.read(row, seed)


def from_file(path: Path) -> Sequence[Row]:
    """Read a JSONL or a Parquet file."""
    if not path.is_file():
        raise ConfigurationError(f"no data at {path}")
    if path.suffix == ".parquet":
        parquet = _library("pyarrow.parquet", "a Parquet file")
        return cast("list[Row]", parquet.read_table(path).to_pylist())
    lines = path.read_bytes().splitlines()
    return [_row(line, f"{path}, line {at}") for at, line in enumerate(lines, 1) if line.strip()]


def _row(line: bytes, where: str) -> Row:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as exc:
        raise ConfigurationError(f"{where}: not JSON ({exc}); a problem is one JSON object on a line") from exc
    if not isinstance(row, Mapping):
        raise ConfigurationError(f"{where}: not a JSON object")
    return cast("Row", row)


def from_hub(benchmark: Benchmark) -> Sequence[Row]:
    """Fetch the data set, or take it from the hub's cache on this machine."""
    datasets = _library("datasets", f"the data set {benchmark.source}")
    try:
        loaded = datasets.load_dataset(benchmark.source, benchmark.subset, split=benchmark.split)
    except Exception as exc:  # the hub's errors have no common root: no network, no permission, no such data set
        cause = " ".join(str(exc).split()) or type(exc).__name__
        raise ConfigurationError(
            f"cannot load {benchmark.source} from the Hugging Face hub: {cause[:300]}. Without a network, pass "
            f"--data FILE, a JSONL or Parquet file with the columns {', '.join(map(repr, benchmark.columns))}; a data "
            "set that asks for registration needs HF_TOKEN"
        ) from exc
    return cast("Sequence[Row]", loaded)


def _library(name: str, what: str) -> Any:
    """Import a library that the core does without."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        raise ConfigurationError(
            f"{what} needs {name}: pip install 'stepspec[evals]', or pass --data FILE.jsonl"
        ) from exc
