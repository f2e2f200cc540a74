"""What a benchmark is, and where its rows come from: the Hugging Face hub, or a file."""

from __future__ import annotations

import csv
import importlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from stepspec.orchestrator.errors import ConfigurationError, install_command
from stepspec.prompts import Prompt, known

from ..sample import Task

Row: TypeAlias = Mapping[str, str]
"""
The columns of a row as texts. A number is spelt out. A list of texts in a column that
`Benchmark.lists` names has one line for each text. Any other value is "".
"""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A set of problems. They come from the hub or from a file, or a function makes them."""

    name: str
    """Its name in commands."""
    licence: str
    """The licence of its problems."""
    columns: tuple[str, ...]
    """The columns in which every row must have a value."""
    read: Callable[[Row, int], Task]
    """Makes a task of a row and the seed."""
    source: str = ""
    """The data set on the Hugging Face hub. "": the problems come from elsewhere."""
    subset: str | None = None
    """The subset on the hub. None: the data set has no subsets."""
    split: str = "test"
    """The split on the hub."""
    prompt: str | None = "eval.boxed"
    """The name of the prompt template of every problem. None: the model reads the problem only."""
    made: Callable[[int, int], list[Task]] | None = None
    """Makes the problems. Its arguments are the seed and the number of problems."""
    file: Path | None = None
    """A JSONL, CSV or Parquet file with the rows."""
    lists: tuple[str, ...] = ()
    """The columns that hold a list of texts, such as all accepted answers."""

    @property
    def template(self) -> Prompt | None:
        """The prompt template of every problem. None: the model reads the problem only."""
        if self.prompt is None:
            return None
        return known()[self.prompt]


Raw: TypeAlias = Mapping[str, Any]
"""A row as the file or the hub has it."""
Half: TypeAlias = Literal["calibration", "report"]
MADE_PROBLEMS = 200
"""How many problems a function makes if no limit is given."""
HUB_LIBRARIES = ("datasets", "huggingface_hub", "httpx", "urllib3")
CALIBRATED_ON = "calibration half"
"""How a policy file names the half of a benchmark that it was calibrated on."""


def load(
    benchmark: Benchmark,
    data: Path | None = None,
    *,
    seed: int = 0,
    limit: int | None = None,
) -> list[Task]:
    """
    Return the first *limit* tasks of *benchmark*, in its template.

    They come from the file *data* if it is given. If they cannot be read, raise
    `ConfigurationError`, which says what to do.
    """
    data = data or benchmark.file
    if data is None and benchmark.made is not None:
        tasks = benchmark.made(seed, MADE_PROBLEMS if limit is None else limit)
    else:
        rows = from_file(data) if data is not None else from_hub(benchmark)
        where = str(data or benchmark.source)
        tasks = [
            _task(benchmark, row, seed, f"{where}, row {number}")
            for number, row in enumerate(rows, start=1)
        ][:limit]
    if not tasks:
        raise ConfigurationError(f"no problems in {data or benchmark.name}")
    tasks = [replace(task, question=_question(task)) for task in tasks]
    template = benchmark.template
    if template is None:
        return tasks
    return [replace(task, problem=template.fill(problem=task.problem)) for task in tasks]


def _question(task: Task) -> str:
    return task.question or task.problem


def _task(benchmark: Benchmark, row: Raw, seed: int, where: str) -> Task:
    """Make a task of *row*. Raise `ConfigurationError`, which names the place *where* it is."""
    texts = {column: _text(value) for column, value in row.items()}
    texts |= {column: _lines(row.get(column)) for column in benchmark.lists}
    for column in benchmark.columns:
        if row.get(column) is None:
            raise ConfigurationError(
                f"{where}: {column!r} missing or null; {benchmark.name} needs"
                f" {_quoted(benchmark.columns)}, and there are {_quoted(row)}"
            )
        if not texts[column].strip():
            expected = "a list of texts" if column in benchmark.lists else "a text or a number"
            raise ConfigurationError(
                f"{where}: {column!r} is {row[column]!r:.80}, where {expected} has to be"
            )
    task = benchmark.read(texts, seed)
    if not str(task.gold).strip():
        raise ConfigurationError(f"{where}: no answer in {texts!r:.200}")
    return task


def _quoted(columns: Iterable[str]) -> str:
    return ", ".join(map(repr, columns))


def _text(value: object) -> str:
    """Spell out a text or a number. Return "" for other values, and for broken characters."""
    if isinstance(value, str):
        # Half of a surrogate pair is no character, and cannot be encoded.
        return value if value == value.encode(errors="ignore").decode() else ""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return ""
    return str(value) if math.isfinite(value) else ""


def _lines(value: Any) -> str:
    """Write a list of texts, or one text, with a line for each. Return "" for other values."""
    values = cast("list[object]", value) if isinstance(value, list) else [value]
    lines = [" ".join(_text(each).split()) for each in values]
    return "\n".join(lines) if all(lines) else ""


def from_file(path: Path) -> Sequence[Raw]:
    """Return the rows of a JSONL, CSV or Parquet file."""
    if not path.is_file():
        raise ConfigurationError(f"no data at {path}")
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.suffix == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file))
    lines = path.read_bytes().splitlines()
    return [
        _row(line, f"{path}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]


def _parquet(path: Path) -> Sequence[Raw]:
    parquet = _library("pyarrow.parquet", "a Parquet file")
    try:
        return cast("list[Raw]", parquet.read_table(path).to_pylist())
    except Exception as exc:  # The errors of Arrow have no common root.
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
    """Return the rows of a data set on the hub, or in the hub's cache on this machine."""
    datasets = _library("datasets", f"the data set {benchmark.source}")
    for library in HUB_LIBRARIES:
        # What they would log is in the error below.
        logging.getLogger(library).setLevel(logging.CRITICAL)
    try:
        loaded = datasets.load_dataset(
            benchmark.source,
            benchmark.subset,
            split=benchmark.split,
        )
    except Exception as exc:  # The hub's errors have no common root.
        cause = " ".join(str(exc).split()) or type(exc).__name__
        raise ConfigurationError(
            f"cannot load {benchmark.source} from the Hugging Face hub: {cause[:300]}. Without a"
            " network, pass --data FILE, a JSONL, CSV or Parquet file with the columns"
            f" {_quoted(benchmark.columns)}; a data set that asks for registration needs HF_TOKEN"
        ) from exc
    return cast("Sequence[Raw]", loaded)


def _library(name: str, what: str) -> Any:
    """Import a library that only *what* needs. Raise `ConfigurationError` if it is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        raise ConfigurationError(
            f"{what} needs {name}: {install_command('evals')}, or pass --data FILE.jsonl"
        ) from exc


def half(task: Task) -> Half:
    """
    Return the half of its benchmark that *task* belongs to.

    The half depends on the question alone, not on the template or the order of the choices.
    """
    digest = blake2b(_question(task).encode(), digest_size=1).digest()
    return "calibration" if digest[0] % 2 else "report"


def duplicates(tasks: Sequence[Task]) -> list[str]:
    """Return a remark if some of *tasks* have the same question."""
    repeated = len(tasks) - len(set(map(_question, tasks)))
    if not repeated:
        return []
    return [
        f"{repeated} of {len(tasks)} problems are there before: they count as independent, so that"
        " the intervals are too narrow."
    ]


def overlaps(calibrated: Mapping[str, str], benchmark: str, part: str | None) -> list[str]:
    """
    Return a remark for each arm that was calibrated on problems that are measured now.

    *calibrated* maps the name of an arm to the problems of its calibration. *part* is the half of
    *benchmark* that is measured. None: both halves are measured.
    """
    if part == "report":
        return []
    shared = "the very problems" if part == "calibration" else "half of the problems"
    return [
        f"{name!r} was calibrated on {shared} that are measured here, and chosen to lose few of"
        " just those: these figures are no evidence for its promise. Those of `--half report` are."
        for name, problems in calibrated.items()
        if problems == f"{benchmark}, {CALIBRATED_ON}"
    ]
