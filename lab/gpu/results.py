"""
Grade what the campaign brought back, and print its tables: ``python -m lab.gpu.results RESULTS
--data DATA``.

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
from stepspec.evals.results import Interval, bootstrap_ratio, wilson

from .kit.targets import TARGETS

BENCHES = ("gsm8k", "math500")
PLAIN = "plain"
SCRIPTED = [phase.name for phase in TARGETS["floor"].phases]
# seconds a token, of a Qwen3-32B and a 1.7B alone on an H200
FLOOR_PACES = {"large": 0.0202, "small": 0.00307}


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of one problem; *right* is None if the grader ran out of time."""

    index: int
    right: bool | None
    row: Mapping[str, Any]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


async def grade(
    rows: Iterable[Mapping[str, Any]], bench: str, golds: Sequence[Gold], graders: Graders
) -> list[Answer]:
    mine = [row for row in rows if row["bench"] == bench and "error" not in row]

    async def one(row: Mapping[str, Any]) -> Answer:
        index: int = row["index"]
        mark = await golds[index].grade(row["text"], graders)
        return Answer(index, None if mark == "ungraded" else mark == "right", row)

    return await asyncio.gather(*map(one, mine))


def accuracy_line(name: str, answers: Sequence[Answer], plain: Mapping[int, Answer]) -> str:
    """
    One row of the table: a method on one benchmark, beside the large model alone on the same
    problems.
    """
    graded = [answer for answer in answers if answer.right is not None]
    if not graded:
        return f"| {name} | 0 |"
    right = sum(bool(answer.right) for answer in graded)
    share = wilson(right, len(graded))
    pairs = [
        (a.right, plain[a.index].right)
        for a in graded
        if a.index in plain and plain[a.index].right is not None
    ]
    gained = sum(bool(a and not b) for a, b in pairs)
    lost = sum(bool(b and not a) for a, b in pairs)
    rows = [answer.row for answer in graded]
    drafts, accepted = (sum(row.get(key, 0) for row in rows) for key in ("drafts", "accepted"))
    small, large = (fmean(row.get(key, 0) for row in rows) for key in ("small", "large"))
    wasted, judging, alone = (
        fmean(row.get(key, 0) for row in rows) for key in ("wasted", "judging", "alone")
    )
    cells = [
        name,
        f"{len(graded)}",
        f"{share:.1%}",
        f"+{gained} -{lost} of {len(pairs)}",
        f"{accepted / drafts:.0%}" if drafts else "",
        f"{small:.0f}",
        f"{large:.0f}",
        f"{wasted:.0f}",
        f"{judging:.0f}",
        f"{alone:.0%}" if alone else "",
    ]
    return f"| {' | '.join(cells)} |"


COLUMNS = (
    "",
    "n",
    "right",
    "against plain",
    "accepted",
    "small",
    "large",
    "wasted",
    "judging",
    "aside",
)
POSITIONS = (
    "",
    "seconds",
    "first",
    "second",
    "third",
    "third and later",
    "all",
    "all, a token",
    "accepted",
)
ESTIMATED = ("", "places accepted", "expected", "measured", "n", "off")
NAMES = ("reading", "bild-step", "specreason")
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
                graded = {
                    name: await grade(rows, bench, golds, graders) for name, rows in methods.items()
                }
                plain = {answer.index: answer for answer in graded.get(PLAIN, [])}
                print(f"\n{bench}, {answers.name}\n\n{head(COLUMNS)}")
                for name, found in graded.items():
                    print(accuracy_line(name, found, plain))
            errors = [
                (name, row["error"])
                for name, rows in methods.items()
                for row in rows
                if "error" in row
            ]
            for name, error in errors[:5]:
                print(f"{len(errors)} errors; {name}: {error}")


def timing_lines(
    rows: Sequence[Mapping[str, Any]], paces: Mapping[str, float] | None
) -> Iterator[str]:
    """
    The rows of a table of timings; a chain's floor is each kept token at its author's pace alone.
    """
    cases = list(dict.fromkeys(row["case"] for row in rows))
    by_case = {name: [row for row in rows if row["case"] == name] for name in cases}
    for name, mine in by_case.items():
        at_once = next((word for word in name.split("-") if word.isdigit()), "")
        beside = by_case.get(f"{PLAIN}-{at_once}" if at_once else PLAIN, [])
        seconds = fmean(row["seconds"] for row in mine)
        ratio = seconds / fmean(row["seconds"] for row in beside) if beside else 0.0
        drafts, accepted = (sum(row.get(key, 0) for row in mine) for key in ("drafts", "accepted"))
        share = f"{accepted / drafts:.0%}" if drafts else ""
        floors = [
            sum(row.get(role, 0) * pace for role, pace in (paces or {}).items()) for row in mine
        ]
        over = f"{seconds / fmean(floors):.2f}" if paces else ""
        yield f"| {name} | {len(mine)} | {share} | {seconds:.2f} | {ratio:.2f} | {over} |"


def timing_tables(folder: Path) -> None:
    for path in sorted(folder.glob("timings*/timings.jsonl")):
        name = path.parent.name
        rows = rows_of(path)
        if alone := [row for row in rows if "of" not in row]:
            print(f"\n{name}\n\n{head(TIMED)}")
            print("\n".join(timing_lines(alone, FLOOR_PACES if name in SCRIPTED else None)))
        for case in dict.fromkeys(row["of"] for row in rows if "of" in row):
            print(
                f"\n{case}: seconds over plain, by position after the start of a"
                f" solver\n\n{head(POSITIONS)}"
            )
            print("\n".join(position_lines([row for row in rows if row.get("of") == case])))


def over_plain(
    rows: Sequence[Mapping[str, Any]], method: str, positions: range, *, token: bool = False
) -> tuple[Interval, int] | None:
    """
    Seconds of *method* over those of `plain` for the same problems at these *positions*, and their
    number.

    With *token*, of seconds per token, because sampled chains differ in length.
    """
    seconds = {
        (row["case"], row["round"], row["position"]): (
            row["seconds"] / (token_count(row) if token else 1)
        )
        for row in rows
    }
    places = [
        key[1:]
        for key in seconds
        if key[0] == method and key[2] in positions and (PLAIN, *key[1:]) in seconds
    ]
    ours, theirs = ([seconds[name, *place] for place in places] for name in (method, PLAIN))
    return (bootstrap_ratio(ours, theirs), len(places)) if places else None


def token_count(row: Mapping[str, Any]) -> int:
    tokens: int = row.get("large", 0) + row.get("small", 0)
    return max(1, tokens)


def position_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for name in dict.fromkeys(row["case"] for row in rows):
        mine = [row for row in rows if row["case"] == name]
        ranges = (range(1), range(1, 2), range(2, 3), range(2, 99), range(99))
        ratios = [over_plain(rows, name, positions) for positions in ranges]
        ratios.append(over_plain(rows, name, ranges[-1], token=True))
        cells = [f"{ratio[0]:.2f}, n {ratio[1]}" if ratio else "" for ratio in ratios]
        drafts, accepted = (sum(row.get(key, 0) for row in mine) for key in ("drafts", "accepted"))
        seconds = f"{fmean(row['seconds'] for row in mine):.2f}"
        yield (
            f"| {' | '.join((name, seconds, *cells, f'{accepted / drafts:.0%}' if drafts else ''))} |"
        )


def estimate_tables(folder: Path) -> None:
    """Print what `stepspec tune` expected beside what was measured, at each temperature."""
    for path in sorted(folder.glob("estimate-*.txt")):
        lines = [
            line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("{")
        ]
        measured = folder / "timings-ratio" / "timings.jsonl"
        if not lines or not measured.exists():
            print(f"\n{path.name}: no estimate, or nothing measured")
            continue
        rows = [
            row for row in rows_of(measured) if row["of"] == path.stem.replace("estimate", "ratio")
        ]
        print(f"\n{path.stem}: plain's seconds over those of a method\n\n{head(ESTIMATED)}")
        for method in json.loads(lines[0])["methods"]:
            name = next(n for n in NAMES if n.startswith(method["policy"]))
            expected = Interval(**method["alone"])
            if ratio := over_plain(rows, name, range(99)):
                found, n = ratio
                real = Interval(1 / found.value, 1 / found.high, 1 / found.low)
                drafts = f"{method['accepted']['value']:.0%} in {method['drafts']}"
                off = f"{expected.value / real.value - 1:+.0%}"
                cells = (
                    name,
                    drafts,
                    f"{expected:.2f}",
                    f"{real:.2f}",
                    str(n),
                    off,
                )
                print(f"| {' | '.join(cells)} |")


def main(
    folder: Annotated[Path, typer.Argument(help="The folder `results` of what came back.")],
    data: Annotated[Path, typer.Option(help="Folder with gsm8k.jsonl and math500.jsonl.")],
) -> None:
    """Grade the answers and print every table as Markdown."""
    timing_tables(folder)
    estimate_tables(folder)
    asyncio.run(accuracy_tables(sorted(folder.glob("answers*")), data))


if __name__ == "__main__":
    typer.run(main)
