"""Every line of the threat model names a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (
    (ROOT / "docs" / "security.md")
    .read_text(encoding="utf-8")
    .partition("\n## When servers fail")[0]
)
ROWS = [
    line
    for line in DOCUMENT.splitlines()
    if line.startswith("| ") and not line.startswith("| threat |")
]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@pytest.mark.parametrize("row", ROWS)
def test_every_threat_has_a_test(row: str) -> None:
    cells = row.strip("| ").split(" | ")
    assert len(cells) == 3
    assert NAMED.fullmatch(cells[2]), f"no test in {row}"


@pytest.mark.parametrize(("file", "name"), NAMED.findall(DOCUMENT))
def test_every_named_test_exists(file: str, name: str) -> None:
    functions = ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
    assert name in {
        node.name for node in functions if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_no_part_is_without_threats() -> None:
    assert len(ROWS) > 30
