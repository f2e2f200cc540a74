"""
Grade what the campaign brought back, and print its tables: ``python -m lab.gpu.results RESULTS --data DATA``.

RESULTS is the folder ``results`` of the archive; DATA holds gsm8k.jsonl and math500.jsonl.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from stepspec.evals.benchmarks import find
from stepspec.evals.grading.graders import Gold, Graders
from stepspec.orchestrator.stats import wilson

BENCHES = ("gsm8k", "math500")
PLAIN = "plain"
FLOOR_PACES = {"large": 0.0202, "small": 0.00307}  # seconds a token, of a Qwen3-32B and a 1.7B alone on an H200


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of one problem; *right* is None if the grader ran out of time."""

    index: int
    right: bool | None
    row: Mapping[str, Any]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


async def grade(rows: Iterable[Mapping[str, Any]], bench: str, golds: Sequence[Gold], graders: Graders) -> list[Answer]:
    mine = [row for row in rows if row["bench"] == bench and "error" not in row]

    async def one(row: Mapping[str, Any]) -> Answer:
        index: int = row["index"]
        mark = await golds[index].grade(row["text"], graders)
        return Answer(index, None if mark == "ungraded" else mark == "right", row)

    return await asyncio.gather(*map(one, mine))


def accuracy_line(name: str, answers: Sequence[Answer], plain: Mapping[int, Answer]) -> str:
    """One row of the table: a method on one benchmark, beside the large model alone on the same problems."""
    graded = [answer for answer in answers if answer.right is not None]
    if not graded:
        return f"| {name} | 0 |"
    right = sum(bool(answer.right) for answer in graded)
    low, high = wilson(right, len(graded))
    pairs = [(a.right, plain[a.index].right) for a in graded if a.index in plain and plain[a.index].right is not None]
    gained, lost = sum(bool(a and not b) for a, b in pairs), sum(bool(b and not a) for a, b in pairs)
    rows = [answer.row for answer in graded]
    drafts, accepted = (sum(row.get(key, 0) for row in rows) for key in ("drafts", "accepted"))
    small, large = (fmean(row.get(key, 0) for row in rows) for key in ("small", "large"))
    wasted, judging, alone = (fmean(row.get(key, 0) for row in rows) for key in ("wasted", "judging", "alone"))
    cells = [
        name,
        f"{len(graded)}",
        f"{right / len(graded):.1%} [{low:.1%}, {high:.1%}]",
        f"+{gained} -{lost} of {len(pairs)}",
        f"{accepted / drafts:.0%}" if drafts else "",
        f"{small:.0f}",
        f"{large:.0f}",
        f"{wasted:.0f}",
        f"{judging:.0f}",
        f"{alone:.0%}" if alone else "",
    ]
    return f"| {' | '.join(cells)} |"


COLUMNS = ("", "n", "right", "against plain", "accepted", "small", "large", "wasted", "judging", "aside")
TIMED = ("", "chains", "accepted", "seconds", "over plain", "over the floor")


def head(columns: Sequence[str]) -> str:
    return f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"


async def accuracy_tables(folders: Sequence[Path], data: Path) -> None:
    """Print a table of each benchmark, for each temperature: tokens are means of a problem."""
    async with Graders(2) as graders:
        for answers in folders:
            methods = {path.stem: rows_of(path) for path in sorted(answers.glob("*.jsonl"))}
            for bench in BENCHES:
                tasks = [find(bench).read(row, 0) for row in rows_of(data / f"{bench}.jsonl")]
                golds = [task.gold for task in tasks]
                graded = {name: await grade(rows, bench, golds, graders) for name, rows in methods.items()}
                plain = {answer.index: answer for answer in graded.get(PLAIN, [])}
                print(f"\n{bench}, {answers.name}\n\n{head(COLUMNS)}")
                for name, found in graded.items():
                    print(accuracy_line(name, found, plain))
            errors = [(name, row["error"]) for name, rows in methods.items() for row in rows if "error" in row]
            for name, error in errors[:5]:
                print(f"{len(errors)} errors; {name}: {error}")


def timing_lines(rows: Sequence[Mapping[str, Any]], paces: Mapping[str, float] | None) -> Iterator[str]:
    """The rows of a table of timings; a chain's floor is each kept token at its author's pace alone."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    by_case = {name: [row for row in rows if row["case"] == name] for name in cases}
    for name, mine in by_case.items():
        beside = by_case.get("plain-8" if "-8" in name else PLAIN, [])
        seconds = fmean(row["seconds"] for row in mine)
        ratio = seconds / fmean(row["seconds"] for row in beside) if beside else 0.0
        drafts, accepted = (sum(row.get(key, 0) for row in mine) for key in ("drafts", "accepted"))
        share = f"{accepted / drafts:.0%}" if drafts else ""
        floors = [sum(row.get(role, 0) * pace for role, pace in (paces or {}).items()) for row in mine]
        over = f"{seconds / fmean(floors):.2f}" if paces else ""
        yield f"| {name} | {len(mine)} | {share} | {seconds:.2f} | {ratio:.2f} | {over} |"


def timing_tables(folder: Path) -> None:
    for name, paces in (("timings", FLOOR_PACES), ("timings-real", None)):
        path = folder / name / "timings.jsonl"
        if path.exists():
            print(f"\n{name}\n\n{head(TIMED)}")
            print("\n".join(timing_lines(rows_of(path), paces)))


def main(
    folder: Annotated[Path, typer.Argument(help="The folder `results` of what came back.")],
    data: Annotated[Path, typer.Option(help="Folder with gsm8k.jsonl and math500.jsonl.")],
) -> None:
    """Grade the answers and print every table as Markdown."""
    timing_tables(folder)
    asyncio.run(accuracy_tables(sorted(folder.glob("answers*")), data))


if __name__ == "__main__":
    typer.run(main)
