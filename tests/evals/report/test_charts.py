"""
The charts of a report: what they say, in words and in marks, and that they follow the page's theme
and policy.
"""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from lab.charts import standalone
from stepspec.evals.arms import LARGE, SHIPPED, SMALL
from stepspec.evals.report import canvas, charts
from stepspec.evals.results import Result, compare_arms
from stepspec.evals.sample import Arm

from .made import ARMS, crowd, mixed, samples

HOSTILE = "<script>alert(1)</script>&$x$"


@pytest.fixture
def arms() -> list[Result]:
    return compare_arms(samples(), ARMS)


def parsed(drawn: Markup) -> ElementTree.Element:
    return ElementTree.fromstring(standalone(drawn))


def texts(drawn: Markup) -> list[str]:
    return [
        "".join(one.itertext()) for one in parsed(drawn).iter("{http://www.w3.org/2000/svg}text")
    ]


def label(drawn: Markup) -> str:
    return parsed(drawn).get("aria-label", "")


def test_the_front_has_the_arms_that_no_other_arm_dominates(arms: list[Result]) -> None:
    # as accurate as large, and faster
    assert [f.name for f in charts.front(arms)] == [SMALL.name, SHIPPED.name]
    slow = {**samples(), **{(n, SHIPPED.name): mixed(9.0) for n in range(4)}}
    assert [f.name for f in charts.front(compare_arms(slow, ARMS))] == [
        SMALL.name,
        LARGE.name,
        SHIPPED.name,
    ]


def test_accuracy_and_time_of_every_arm_are_drawn_and_said(arms: list[Result]) -> None:
    drawn = charts.scatter(arms)
    assert drawn.count('class="mark"') >= len(arms)
    assert "small alone: 50.0%, 1.00 s" in label(drawn)
    assert {f.name for f in arms} <= {*texts(drawn)}
    assert "seconds per problem" in texts(drawn)
    assert (parsed(drawn).get("role"), parsed(drawn).get("width")) == ("img", f"{canvas.WIDTH:g}")


def test_no_two_methods_have_the_same_mark() -> None:
    arms, done = crowd(10)
    found = charts.shapes(compare_arms(done, arms))
    methods = [shape for name, shape in found.items() if name not in (LARGE.name, SMALL.name)]
    assert len({*methods}) == len(methods)
    assert (found[LARGE.name], found[SMALL.name]) == ("s", "o")


def test_the_speed_chart_has_a_row_for_every_arm_that_ran_the_fastest_first(
    arms: list[Result],
) -> None:
    drawn = charts.speed_chart(arms)
    names = [text for text in texts(drawn) if text in {f.name for f in arms}]
    assert names[:3] == [SMALL.name, SHIPPED.name, LARGE.name]
    assert names[3:] == [LARGE.name]  # of the line at 1
    assert "1.00" in texts(drawn)
    assert "large alone: 1.00" in label(drawn)
    assert drawn.count('class="mark"') == 3


def test_a_drawing_follows_the_theme_and_the_policy_of_the_page(arms: list[Result]) -> None:
    drawn = charts.scatter(arms)
    assert "style=" not in drawn
    assert "<style" not in drawn
    assert "<metadata" not in drawn
    assert not re.search("#0102[0-9a-f]{2}", drawn)
    assert drawn == charts.scatter(arms)  # byte for byte
    assert not re.findall('(?:fill|stroke)="#', drawn.replace("#000000", ""))
    for name, colour in canvas.VARIABLES.items():
        assert f"--{name}:{colour};" in standalone(drawn)


def test_text_only_ever_becomes_text(arms: list[Result]) -> None:
    named = Arm.of(HOSTILE, "specreason")
    done = {**samples(), **{(n, HOSTILE): replace(mixed(3.0), arm=HOSTILE) for n in range(4)}}
    figures = compare_arms(done, [LARGE, SMALL, named])
    for drawn in (charts.scatter(figures), charts.speed_chart(figures)):
        assert HOSTILE in texts(drawn)
        assert "<script" not in drawn
