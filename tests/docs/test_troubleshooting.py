"""
The part on troubleshooting has every row of the doctor's table, and every line that it may print
below.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from stepspec.servers.doctor import advice, probes, report
from stepspec.servers.doctor.report import ROWS

from .reference import DOCS

QUESTIONS = {
    probes.QUESTION,
    probes.PROBLEM.messages[0].content,
    probes.STEP.text,
    probes.WRONG.text,
}
"""What the doctor sends to the servers, and does not print."""

WORDS = 4  # in a clause that has to be on the page; shorter ones are parts of sentences


def clauses(source: str) -> Iterator[str]:
    """The clauses of all texts in *source* but docstrings."""
    tree = ast.parse(source)
    docstrings = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if (
            not isinstance(node, ast.Constant)
            or not isinstance(node.value, str)
            or id(node) in docstrings
        ):
            continue
        if node.value not in QUESTIONS:
            yield from (part.strip(" :;,()[]") for part in re.split(r": |; |, |\(|\)", node.value))


def plain(text: str) -> str:
    return " ".join(text.replace("`", "").replace("\\|", "|").split())


def test_every_line_of_the_doctor_is_explained() -> None:
    page = plain((DOCS / "security.md").read_text(encoding="utf-8"))
    sources = [
        Path(str(each.__file__)).read_text(encoding="utf-8") for each in (advice, probes, report)
    ]
    found = [clause for source in sources for clause in clauses(source)]
    assert [
        clause for clause in found if len(clause.split()) >= WORDS and plain(clause) not in page
    ] == []


def test_every_row_of_the_doctor_is_explained() -> None:
    page = (DOCS / "security.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| row \|.*\n\|-.*\n((?:\|.*\n)*)", page, re.MULTILINE)
    rows = {name.strip() for line in table.splitlines() for name in line.split("|")[1].split(",")}
    assert rows == {*ROWS, "one vocabulary"}
