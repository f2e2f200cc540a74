"""
The charts of a report: what they say, in words and in marks, and that they follow the page's theme
and policy.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from stepspec.evals.arms import LARGE, SHIPPED, SMALL
from stepspec.evals.report import charts
from stepspec.evals.report.formats import to_html, with_code
from stepspec.evals.results import Result
from stepspec.evals.sample import Arm

from ..scripted import compared
from .made import ARMS, crowd, make_section, mixed, parsed, samples

HOSTILE = "<script>alert(1)</script>&$x$"


@pytest.fixture
def arms() -> list[Result]:
    return compared(samples(), ARMS)


def drawings(page: str) -> list[ElementTree.Element]:
    """The time of a problem, and accuracy against latency."""
    return [each for each in parsed(page).iter("div") if each.get("class") == "drawing"]


@pytest.fixture
def drawn(tmp_path: Path) -> list[ElementTree.Element]:
    return drawings(to_html([(make_section(tmp_path), {})], "made"))


def texts(drawing: ElementTree.Element) -> list[str]:
    return [text.strip() for text in drawing.itertext() if text.strip()]


def marks(drawing: ElementTree.Element) -> list[str]:
    return [str(each.get("href")) for each in drawing.iter("use")]


def test_the_front_has_the_arms_that_no_other_arm_dominates(arms: list[Result]) -> None:
    # as accurate as large, and faster
    assert [f.name for f in charts.front(arms)] == [SMALL.name, SHIPPED.name]
    slow = {**samples(), **{(n, SHIPPED.name): mixed(9.0) for n in range(4)}}
    assert [f.name for f in charts.front(compared(slow, ARMS))] == [
        SMALL.name,
        LARGE.name,
        SHIPPED.name,
    ]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 1.04, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.5, 1.04, [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        (0.0, 2.5, [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]),
        (0.0, 71.0, [0.0, 20.0, 40.0, 60.0]),
        (0.97, 1.04, [0.98, 1.0, 1.02, 1.04]),
    ],
)
def test_ticks_are_round_values(low: float, high: float, ticks: list[float]) -> None:
    axis = charts.Axis(low, high)
    assert axis.ticks == pytest.approx(ticks)
    assert (axis.from_left(low), axis.from_left(high)) == ("0.00%", "100.00%")
    assert (axis.from_top(low), axis.from_top(high)) == ("100.00%", "0.00%")


def test_accuracy_and_time_of_every_arm_are_drawn_and_said(
    drawn: list[ElementTree.Element], arms: list[Result]
) -> None:
    _, scatter = drawn
    (plot,) = [each for each in scatter.iter("svg") if each.get("role") == "img"]
    assert len(marks(plot)) == len(arms)
    assert "small alone: 50.0%, 1.00 s" in str(plot.get("aria-label"))
    assert {f.name for f in arms} <= {*texts(scatter)}
    assert "seconds per problem" in texts(scatter)
    (small,) = [each for each in plot.iter("use") if each.get("class") == "mark small"]
    longest = 1.12 * 4.0
    assert small.get("x") == f"{1 / longest:.2%}"


def test_no_two_methods_have_the_same_mark() -> None:
    arms, done = crowd(10)
    found = charts.shapes(compared(done, arms))
    methods = [shape for name, shape in found.items() if name not in (LARGE.name, SMALL.name)]
    assert len({*methods}) == len(methods)
    assert (found[LARGE.name], found[SMALL.name]) == ("square", "circle")
    assert set(found.values()) <= charts.SHAPES.keys()


def test_the_speed_chart_has_a_row_for_every_arm_that_ran_the_fastest_first(
    drawn: list[ElementTree.Element],
) -> None:
    speed, _ = drawn
    names = [str(each.text) for each in speed.iter("th")]
    assert names == [SMALL.name, SHIPPED.name, LARGE.name]
    assert texts(speed)[texts(speed).index(LARGE.name) + 1] == "1.00"
    assert len(marks(speed)) == 3


def test_a_drawing_follows_the_theme_and_the_policy_of_the_page(tmp_path: Path) -> None:
    section = make_section(tmp_path)
    page = to_html([(section, {})], "made")
    body = page.partition("<body>")[2].partition("<main")[2]
    assert "style=" not in body
    assert "<style" not in body
    assert "fill=" not in body
    assert "stroke=" not in body
    assert page == to_html([(section, {})], "made")  # byte for byte
    for name in re.findall(r'href="#(mark-\w+)"', body):
        assert f'id="{name}"' in body


def test_text_only_ever_becomes_text(tmp_path: Path) -> None:
    named = Arm.of(HOSTILE, "specreason")
    done = {**samples(), **{(n, HOSTILE): replace(mixed(3.0), arm=HOSTILE) for n in range(4)}}
    section = make_section(tmp_path, done=done, arms=[LARGE, SMALL, named])
    page = to_html([(section, {})], "made")
    for drawing in drawings(page):
        assert HOSTILE in texts(drawing)
    assert "<script" not in page


def test_words_between_backticks_are_code() -> None:
    assert with_code("a `b` <c>") == "a <code>b</code> &lt;c&gt;"
