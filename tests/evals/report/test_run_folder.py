"""Run folders are read back, and the limits of their figures are stated."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from stepspec.evals.arms import LARGE, SHIPPED, SMALL
from stepspec.evals.report.run_folder import read_folder
from stepspec.evals.report.section import build_section
from stepspec.orchestrator.errors import ConfigurationError

from .made import folder, make_section, notices, samples


def test_written_folders_are_read(tmp_path: Path) -> None:
    found = read_folder(folder(tmp_path))
    assert found.done == samples()
    assert list(found.arms) == [LARGE.name, SMALL.name, SHIPPED.name]
    assert list(found.problems[:2]) == ["What is 1 + 1?", "What is 1 + 2?"]


def test_a_folder_that_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"no run in .*: expected a folder of `stepspec eval`"
    ):
        read_folder(tmp_path)
    (folder(tmp_path / "a") / "run.json").unlink()
    with pytest.raises(ConfigurationError, match=r"run\.json: No such file"):
        read_folder(tmp_path / "a")
    (folder(tmp_path / "b") / "problems.jsonl").write_text('{"number": 0}\n')
    with pytest.raises(ConfigurationError, match="not a run folder of this version"):
        read_folder(tmp_path / "b")


def test_an_unfinished_run_is_marked_and_counts_complete_problems(tmp_path: Path) -> None:
    done = {place: sample for place, sample in samples().items() if place != (3, SHIPPED.name)}
    found = make_section(tmp_path, done=done)
    assert found.problems == 3
    assert any(remark.startswith("Unfinished: 3 of 4 problems") for remark in notices(found))
    with pytest.raises(ConfigurationError, match="no problem was solved by all arms yet"):
        make_section(tmp_path / "none", done={})


def test_a_remark_of_several_folders_is_shown_once(tmp_path: Path) -> None:
    path = folder(tmp_path / "a") / "run.json"
    record = orjson.loads(path.read_bytes())
    record["sessions"] = [{**record["sessions"][0], "remarks": ["Beware."]}] * 2
    path.write_bytes(orjson.dumps(record))
    assert notices(build_section(read_folder(path.parent))) == ["Beware."]


def test_the_baseline_is_that_of_the_run_or_another_arm_of_it(tmp_path: Path) -> None:
    run = read_folder(folder(tmp_path / "a"))
    assert build_section(run).baseline == LARGE.name
    section = build_section(run, baseline=SHIPPED.name)
    assert {f.name: f.ratio.value for f in section.figures}[SHIPPED.name] == 1.0
    assert [case.baseline.seconds for case in section.cases["slowest"]] == [
        case.sample.seconds for case in section.cases["slowest"]
    ]
    with pytest.raises(
        ConfigurationError,
        match="--baseline medium: the run has no such arm; its arms: large alone",
    ):
        build_section(run, baseline="medium")


def test_the_limits_of_the_figures_are_stated(tmp_path: Path) -> None:
    assert notices(make_section(tmp_path / "a")) == []
    assert any(
        "5 runs were executed at the same time" in r
        for r in notices(make_section(tmp_path / "b", concurrency=5))
    )
    assert any(
        "an arm is slower beside a demanding one" in r
        for r in notices(make_section(tmp_path / "i", concurrency=5))
    )
    assert any(
        "half" in r and "report" in r for r in notices(make_section(tmp_path / "c", half="report"))
    )
    testbed = {"small": "testbed-small", "large": "testbed-large"}
    assert notices(make_section(tmp_path / "d", models=testbed))[0].startswith("The miniature pair")
    assert "miniature" in make_section(tmp_path / "d2", models=testbed).stamp
    assert "n = 4; huge with tiny; 2026-11-21" in make_section(tmp_path / "e").stamp
