"""The file of the benchmarks' figures, a JSON list in which every measurement has rows of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import orjson

METHODS, MATRIX = "methods", "matrix"  # the tables that rows belong to


def write_rows(path: Path, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace the rows of *table* in the file at *path*; rows of another table stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    there = cast("list[dict[str, Any]]", orjson.loads(path.read_bytes())) if path.is_file() else []
    others = [row for row in there if row.get("table", METHODS) != table]
    path.write_bytes(orjson.dumps([*others, *({**row, "table": table} for row in rows)], option=orjson.OPT_INDENT_2))
