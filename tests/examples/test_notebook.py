"""The notebook draws a trace. It runs as it is, in an environment of its own."""

from __future__ import annotations

import base64
import io
import json
import shutil
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from stepspec import Solver

from ..integration.clients.environments import EXAMPLES as PINNED
from ..integration.clients.environments import installed
from .running import EXAMPLES, StandInPair, run_program

NOTEBOOK = EXAMPLES / "trace.ipynb"
PINS = PINNED / "notebook" / "requirements.txt"
# matplotlib's
GREEN = (44, 160, 44)
ORANGE = (255, 127, 14)
BLUE = (31, 119, 180)
RED = (214, 39, 40)
FATES = {"kept": GREEN, "discarded": RED, "judging": ORANGE}


def cells(notebook: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(notebook.read_text())["cells"]
    return found


def pixels(output: dict[str, Any]) -> Counter[object]:
    """Count the pixels of each colour of a picture."""
    picture = Image.open(io.BytesIO(base64.b64decode(output["data"]["image/png"]))).convert("RGB")
    return Counter(
        {colour: count for count, colour in picture.getcolors(picture.width * picture.height) or []}
    )


def shares(counts: Sequence[int]) -> list[float]:
    return [count / sum(counts) for count in counts]


async def test_it_draws_the_trace_beside_it(pair: StandInPair, tmp_path: Path) -> None:
    small = pair.settings["STEPSPEC_SMALL"]
    large = pair.settings["STEPSPEC_LARGE"]
    async with Solver(small, large, sampling={"temperature": 0}, auto=False) as solver:
        solution = await solver.solve("What is |6 x 7|?", trace_to=tmp_path / "run.jsonl")
    ledger = solution.ledger
    shutil.copy(NOTEBOOK, tmp_path)
    await run_program(
        str(installed("notebook", folder=PINNED) / "jupyter-execute"),
        *("--output=drawn", NOTEBOOK.name),
        variables={
            "PYTHONPATH": str(EXAMPLES.parent / "src"),
            "IPYTHONDIR": str(tmp_path),
            "MPLCONFIGDIR": str(tmp_path),
        },
        folder=tmp_path,
    )
    outputs = [
        output for cell in cells(tmp_path / "drawn.ipynb") for output in cell.get("outputs", [])
    ]
    head, time_line, bars, rates, table = outputs

    assert (
        "".join(head["text"])
        == f"specreason: What is |6 x 7|?\n42, after {solution.seconds:.2f} s\n"
    )
    drawn = pixels(time_line)
    # the legend alone has a few hundred
    assert min(drawn[colour] for colour in (GREEN, ORANGE, BLUE)) > 1000
    fates = [sum(getattr(each, fate) for each in (ledger.small, ledger.large)) for fate in FATES]
    assert shares([pixels(bars)[colour] for colour in FATES.values()]) == pytest.approx(
        shares(fates), abs=0.04
    )
    assert "".join(rates["text"]).startswith(f"{ledger.accept_rate:.0%} of the drafts accepted, ")
    rows = [
        row.strip("| ").split(" | ")
        for row in "".join(table["data"]["text/markdown"]).splitlines()[2:]
    ]
    shown = [(int(step), author, fate, text) for _, step, author, _, fate, text in rows]
    assert shown == [
        (step.index, step.author, step.fate, " ".join(step.text.split())) for step in solution.steps
    ]
    assert {step.fate for step in solution.steps} >= {"kept", "rejected"}


def test_it_is_kept_without_outputs() -> None:
    assert [
        cell for cell in cells(NOTEBOOK) if cell.get("outputs") or cell.get("execution_count")
    ] == []


def test_its_environment_pins_what_it_and_stepspec_need() -> None:
    pins = PINS.read_text().splitlines()
    assert all("==" in pin for pin in pins)
    wanted = PINS.with_suffix(".in").read_text().splitlines()
    assert {name.partition("[")[0] for name in wanted} <= {pin.partition("==")[0] for pin in pins}
    project = tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text())["project"]
    assert {each.partition(">=")[0] for each in project["dependencies"]} <= set(wanted)
