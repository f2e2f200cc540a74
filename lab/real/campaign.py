"""
Which methods solve which problems how often, and the table of what came out. Each cell is a
`stepspec eval` of its own.

A cell is a benchmark at a temperature with some methods; its folder keeps every sample, so that a
new run goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.tables import Sheet
from stepspec.evals.results import Interval
from stepspec.orchestrator.errors import ConfigurationError

BENCHMARKS = ("gsm8k", "math500")
TEMPERATURES = (0.0, 0.6)
MAIN = ("reading", "bild:scale=step,fallback=0,rollback=5", "reflective")
"""The methods that read probabilities, on most problems."""
REST = (
    "specreason",
    "bild",
    "cascade",
    "choose",
    "lookahead-reasoning",
    "glimpse",
    "speculative-thinking",
)
AUTO = "reading:auto=true"
TOKENS = 1024  # of a problem: hardly one needs more
MARKS = "<!-- lab.real: {} -->", "<!-- end of lab.real: {} -->"
COLUMNS = (
    "",
    "n",
    "accuracy",
    "seconds, mean",
    "time over large alone",
    "accepted",
    "tokens of the large model",
    "judge tokens",
)


@dataclass(frozen=True, slots=True)
class Cell:
    """
    *methods* on the first *limit* problems of a *benchmark* at a *temperature*, beside the large
    model alone.

    With *small*, the small model solves them alone, too.
    """

    benchmark: str
    temperature: float
    methods: tuple[str, ...]
    limit: int
    small: bool
    part: str

    @property
    def folder(self) -> str:
        return f"{self.benchmark}-{self.temperature:g}-{self.part}"

    def command(
        self, urls: Mapping[str, str], runs: Path, data: Path | None, concurrency: int
    ) -> list[str]:
        """The command that measures it."""
        words = [sys.executable, "-m", "stepspec", "eval", self.benchmark, "--json"]
        words += [word for role in ("small", "large") for word in (f"--{role}", urls[role])]
        words += [word for method in self.methods for word in ("-p", method)]
        words += [
            word
            for model in ("large", *(("small",) if self.small else ()))
            for word in ("--baseline", model)
        ]
        words += [
            "--temperature",
            f"{self.temperature:g}",
            "--max-tokens",
            str(TOKENS),
            "-n",
            str(self.limit),
        ]
        words += ["--concurrency", str(concurrency), "--output", str(runs / self.folder)]
        return [*words, *(["--data", str(data / f"{self.benchmark}.jsonl")] if data else [])]


def plan(problems: int, fewer: int, temperatures: Sequence[float] = TEMPERATURES) -> Iterator[Cell]:
    """
    The cells, the most telling first: *problems* for the main methods, and *fewer* for the rest.
    """
    for temperature in temperatures:
        for benchmark in BENCHMARKS:
            yield Cell(benchmark, temperature, (*MAIN, AUTO), problems, True, "main")
    for temperature in temperatures:
        for benchmark in BENCHMARKS:
            yield Cell(benchmark, temperature, REST, fewer, False, "rest")


def measure(cell: Cell, command: Sequence[str]) -> list[dict[str, Any]]:
    """
    Measure *cell*, or what is missing of it; its progress goes to standard error. Return a summary
    for each arm.

    Raise `ConfigurationError` if the evaluation fails; what it measured stays.
    """
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 130 or done.returncode < 0:
        raise KeyboardInterrupt
    if done.returncode:
        raise ConfigurationError(
            f"{cell.folder}: stepspec eval failed with exit code {done.returncode} (its message"
            " stands above); what was measured stays, and a new run goes on from there"
        )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def table(cells: Mapping[Cell, Sequence[Mapping[str, Any]]]) -> str:
    """The figures of *cells* in Markdown, one table for each benchmark and temperature."""
    groups: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for cell, summaries in cells.items():
        known = groups.setdefault((cell.benchmark, cell.temperature), [])
        for each in summaries:
            if cell.part == "rest" and each["result"]["name"] == "large alone":
                each = {**each, "result": {**each["result"], "name": "large alone, on these"}}
            known.append(each)
    return "\n\n".join(
        Sheet(COLUMNS, [*map(_row, rows)], f"{benchmark}, {how(temperature)}").markdown()
        for (benchmark, temperature), rows in groups.items()
    )


def how(temperature: float) -> str:
    return "greedy" if temperature == 0 else f"temperature {temperature:g}"


def _row(summary: Mapping[str, Any]) -> tuple[str, ...]:
    result = summary["result"]
    accepted = result["accept_rate"]
    return (
        result["name"],
        str(result["n"]),
        f"{Interval(result['accuracy'], *result['accuracy_interval']):.1%}",
        f"{result['seconds']:.2f}",
        f"{Interval(result['ratio'], *result['ratio_interval']):.2f}",
        "" if accepted is None else f"{accepted:.0%}",
        f"{result['share_large_tokens']:.0%}",
        f"{result['judge_tokens']:.0f}",
    )


def write_section(page: Path, name: str, title: str, text: str) -> None:
    """
    Put *text* under *title* between the marks of *name* in *page*; without marks, before its first
    section.
    """
    begin, end = (mark.format(name) for mark in MARKS)
    section = f"{begin}\n## {title}\n\n{text}\n{end}"
    old = page.read_text(encoding="utf-8")
    if begin in old and end in old:
        new = f"{old[: old.index(begin)]}{section}{old[old.index(end) + len(end) :]}"
    else:
        places = [
            place
            for mark in ("\n## ", f"\n{MARKS[0].partition('{')[0]}")
            if (place := old.find(mark)) >= 0
        ]
        at = min(places, default=len(old))
        new = f"{old[:at]}\n{section}\n{old[at:]}"
    fresh = page.with_name(f".{page.name}.new")
    fresh.write_text(new, encoding="utf-8")
    fresh.rename(page)
