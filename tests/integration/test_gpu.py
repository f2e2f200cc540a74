"""
The whole campaign for a GPU, here with tiny models: every program runs, and every result comes
back.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from lab.gpu import dry_run
from lab.gpu.kit.targets import TARGETS
from lab.gpu.results import estimate_tables, rows_of, timing_tables

from .vllm_forks import ENTRY, PROGRAM

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]
INTERPRETER = """#!/bin/sh
case "$2" in {}|kit.serve) export {}="$2"; shift 2; exec {} "$@";; *) exec {} "$@";; esac
"""


@pytest.fixture
def python(forked: tuple[str, ...], tmp_path: Path) -> str:
    """
    An interpreter that has vLLM's own program and the kit's forked, and runs everything else
    itself.
    """
    path = tmp_path / "python"
    path.write_text(INTERPRETER.format(ENTRY, PROGRAM, shlex.join(forked), sys.executable))
    path.chmod(0o755)
    return str(path)


def test_a_dry_run_brings_back_every_result(
    python: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dry_run.main(tmp_path, python)
    results = tmp_path / "k" / "results"
    log = (tmp_path / "out" / "campaign.log").read_text()
    assert (tmp_path / "out" / "results.tar.gz").stat().st_size > 1000
    cases = rows_of(results / "timings" / "timings.jsonl")
    assert [case["case"] for case in cases] == [case["name"] for case in TARGETS["cpu"].cases], log
    written = {case["large"] + case.get("small", 0) for case in cases}
    # the same chain each time; its last token may not be counted
    assert max(written) - min(written) <= 1
    assert next(case for case in cases if case["case"] == "accept68")["accepted"] > 0
    for method in TARGETS["cpu"].methods:
        folder = results / ("answers-0.6" if method["temperature"] else "answers")
        rows = rows_of(folder / f"{method['name']}.jsonl")
        assert [row.get("error") for row in rows] == [None, None], method["name"]
    shares = [
        sum(row[key] for row in rows_of(results / "answers-0.6" / "reading.jsonl"))
        for key in ("accepted", "drafts")
    ]
    rate = float((results / "answers-0.6" / "random-like-reading.rate").read_text())
    assert rate == round(shares[0] / shares[1], 4) > 0
    first = rows_of(results / "timings-first" / "timings.jsonl")
    assert sorted((row["case"], row["position"]) for row in first) == sorted(
        (method["name"], position)
        for method in TARGETS["cpu"].first[0]["turns"]
        for position in (0, 1)
    )
    capsys.readouterr()
    timing_tables(results)
    estimate_tables(results)
    printed = capsys.readouterr().out
    assert re.search(
        r"\| plain \| [\d.]+ \| 1.00 \[1.00, 1.00\], n 1 \| 1.00 \[1.00, 1.00\], n 1 \|", printed
    ), printed
    assert re.search(r"\| reading \| \d+% in \d+ \| [^|]+ \| [^|]+ \| 2 \| [+-]\d+% \|", printed), (
        printed
    )
    assert "done" in log
    assert "died" not in log
