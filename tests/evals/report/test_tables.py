"""
Tables that are going to be quoted: their figures, their definitions, and that no cell slips into
another column.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepspec.evals.arms import LARGE, SHIPPED, SMALL
from stepspec.evals.report.formats import to_html
from stepspec.evals.report.section import Section

from .made import folder, make_section, parsed, samples, tables

TOKENS = "Tokens of a problem, by model and fate"
STEPS = "Steps of a problem, by author and fate"
TIME = "Time of a problem, seconds"


@pytest.fixture
def section(tmp_path: Path) -> Section:
    return make_section(tmp_path)


def row(section: Section, title: str, name: str) -> dict[str, str]:
    return next(row for row in tables(section)[title] if row[""] == name)


def listed(section: Section) -> dict[str, str]:
    """How it was measured."""
    page = parsed(to_html([(section, {})], "made"))
    names, values = ([str(each.text) for each in page.iter(tag)] for tag in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def test_every_row_has_a_cell_for_every_column(section: Section) -> None:
    found = tables(section)
    assert list(found) == [
        "Accuracy",
        TIME,
        STEPS,
        TOKENS,
        "Slowest",
        "Lost: only large alone was right",
        "Gained: large alone was wrong",
    ]
    assert all(found.values())


def test_accuracy(section: Section) -> None:
    assert row(section, "Accuracy", SHIPPED.name) == {
        "": SHIPPED.name,
        "n": "4",
        "accuracy": "75.0% [30.1%, 95.4%]",
        "against large": "+0.0 [-60.4, +60.4]",
    }
    assert row(section, "Accuracy", LARGE.name)["against large"] == ""


def test_truncated_runs_are_shown(tmp_path: Path) -> None:
    cut = {(n, SHIPPED.name): replace(samples()[n, SHIPPED.name], finish="length") for n in (0, 2)}
    section = make_section(tmp_path, done={**samples(), **cut})
    assert row(section, "Accuracy", SHIPPED.name)["truncated"] == "2"
    assert row(section, "Accuracy", LARGE.name)["truncated"] == "0"
    assert "Truncated runs ran out" in to_html([(section, {})], "made")


def test_of_several_samples_a_problem_counts_once(tmp_path: Path) -> None:
    section = make_section(tmp_path, repeats=2, texts=["one", "two"])
    assert "n = 2 x 2 samples" in section.stamp
    assert [case.problem for case in section.cases["lost"]] == [1]


def test_a_session_that_was_interrupted_is_called_that(tmp_path: Path) -> None:
    section = make_section(tmp_path)
    assert listed(section)["measured"].endswith("to 2026-11-21T20:05:00+00:00")
    home = section.run
    open_ = {key: value for key, value in section.run.sessions[0].items() if key != "ended"}
    again = replace(home, record={**home.record, "sessions": [open_]})
    assert (
        listed(replace(section, run=again))["measured"]
        == "2026-11-21T20:00:00+00:00 to interrupted"
    )


def test_the_list_of_how_it_was_measured_has_every_condition(tmp_path: Path) -> None:
    found = listed(make_section(tmp_path))
    assert found["command"] == "stepspec eval sums"
    assert found["benchmark"] == "name sums, split test, licence MIT"
    assert found["budget"] == "tokens 512"
    assert found["small server"] == "vLLM 0.32.0 at http://small:1"
    assert found["versions"] == "stepspec 0.1.0"


def test_time_tokens_and_steps(section: Section) -> None:
    shipped = row(section, TIME, SHIPPED.name)
    assert [shipped[name] for name in ("mean", "median", "p95", "first step")] == [
        "3.50",
        "3.50",
        "5.00",
        "0.40",
    ]
    assert shipped["judging"] == "0.40"
    assert shipped["vs large alone"] == "0.88 [0.50, 1.25]"
    shipped = row(section, TOKENS, SHIPPED.name)
    assert (shipped["small kept"], shipped["small discarded"], shipped["large kept"]) == (
        "60.0",
        "20.0",
        "20.0",
    )
    assert (shipped["waste"], shipped["judging"], shipped["by large"]) == ("20%", "200", "25%")
    assert (shipped["small cached"], shipped["large cached"]) == ("50%", "75%")
    shipped = row(section, STEPS, SHIPPED.name)
    assert (shipped["share by small"], shipped["drafts accepted"]) == ("75%", "75%")
    assert [shipped[name] for name in ("by small", "by large", "rejected", "lost")] == [
        "3.0",
        "1.0",
        "1.00",
        "1.00",
    ]


def test_links_lead_from_the_problems_to_their_traces(section: Section) -> None:
    case = section.cases["lost"][0]
    links = {(case.number, case.sample.arm): "traces/2.html"}
    (lost,) = tables(section, links)["Lost: only large alone was right"]
    assert lost == {
        "problem": "3",
        "": "What is 1 + 3?",
        "arm": "SpecReason",
        "outcome": "wrong",
        "seconds": "4.00",
        "large alone, s": "4.00",
        "rejected": "1 of 4",
        "trace": "look",
    }
    assert '<a href="traces/2.html">look</a>' in to_html([(section, links)], "made")
    assert "keeps them" in to_html([(section, {})], "made")


def test_a_folder_without_the_small_model_alone_has_no_oracle(tmp_path: Path) -> None:
    done = {place: sample for place, sample in samples().items() if place[1] != SMALL.name}
    section = make_section(tmp_path, done=done, arms=(LARGE, SHIPPED))
    assert [f.name for f in section.figures] == [LARGE.name, SHIPPED.name]
    assert all(tables(section).values())
    assert folder(tmp_path / "again").is_dir()
