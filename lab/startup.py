"""
Measure the CPU time of ``stepspec --version``, of an interpreter that does nothing, and of the
imports of aiohttp and pydantic, each in fresh interpreters. Exit with 1 above the goal.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated

import typer

from stepspec.cli.program import script

GOAL_SECONDS = 0.4  # user and system, for `stepspec --version`
VERSION = "stepspec --version"
COMMANDS: Mapping[str, Sequence[str]] = {
    "an empty program": ("-c", "pass"),
    "import aiohttp, pydantic": ("-c", "import aiohttp, pydantic"),
    "import stepspec": ("-c", "import stepspec"),
    VERSION: ("-m", "stepspec", "--version"),
    "stepspec --help": ("-m", "stepspec", "--help"),
}
EXAMPLES = """
Examples:

  python -m lab.startup

  python -m lab.startup --runs 21
"""


def cpu_seconds(arguments: Sequence[str]) -> float:
    """Run Python with these *arguments*; return its user and system seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(
    runs: Annotated[int, typer.Option(min=1, help="Interpreters for each command.")] = 9,
) -> None:
    """Print the median CPU time of each start, and whether the goal is met."""
    seconds = {
        name: median(cpu_seconds(command) for _ in range(runs))
        for name, command in COMMANDS.items()
    }
    for name, value in seconds.items():
        print(f"{name:<26} {value:.2f} s")
    met = seconds[VERSION] <= GOAL_SECONDS
    print(f"goal for {VERSION}: {GOAL_SECONDS} s, {'met' if met else 'missed'}")
    if not met:
        raise typer.Exit(1)


if __name__ == "__main__":
    script(measure, EXAMPLES)
