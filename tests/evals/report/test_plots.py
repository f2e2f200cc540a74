"""The plots, checked by their geometry."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from stepspec.evals.experiments.arms import LARGE, SHIPPED, SMALL
from stepspec.evals.report import plots
from stepspec.evals.report.figures import ArmFigures, compute_figures
from stepspec.evals.report.judging import JudgeReport, ScoredVerdict, separate
from stepspec.evals.report.plots import Box, front, place_labels, scatter
from stepspec.evals.report.svg import NARROW, WIDE, Markup, Scale, element
from stepspec.evals.sample import Arm

from .made import ARMS, large, mixed, samples, small

widths = pytest.mark.parametrize("width", [WIDE, NARROW])


@pytest.fixture
def arms() -> list[ArmFigures]:
    return compute_figures(samples(), ARMS)


def parsed(drawn: Markup) -> ElementTree.Element:
    return ElementTree.fromstring(drawn)


def numbers(tree: ElementTree.Element, kind: str, *names: str) -> list[tuple[float, ...]]:
    found = (one for one in tree.iter() if kind in one.get("class", "").split())
    return [tuple(float(one.get(name, "nan")) for name in names) for one in found]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0.013), (-33, 17), (0.2, 1.0), (0, 7200)])
def test_ticks_are_round_few_and_within(low: float, high: float) -> None:
    ticks = Scale(low, high, 0, 100).ticks(6)
    assert 2 <= len(ticks) <= 7
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)
    steps = {round(b - a, 9) for a, b in itertools.pairwise(ticks)}
    assert len(steps) == 1
    assert re.fullmatch(r"[125]0*", f"{steps.pop():.9f}".replace(".", "").strip("0"))


def test_the_front_has_the_arms_that_no_other_arm_dominates(arms: list[ArmFigures]) -> None:
    assert [f.arm.name for f in front(arms)] == [SMALL.name, SHIPPED.name]  # as accurate as large, and faster
    slow = {**samples(), **{(n, SHIPPED.name): mixed(9.0) for n in range(4)}}
    assert [f.arm.name for f in front(compute_figures(slow, ARMS))] == [SMALL.name, LARGE.name, SHIPPED.name]


@widths
def test_the_faster_is_further_left_and_the_better_higher(arms: list[ArmFigures], width: float) -> None:
    tree = parsed(scatter(arms, width))
    dots = numbers(tree, "mark", "cx", "cy")
    squares = numbers(tree, "mark", "x", "y", "width")
    (small_x, small_y), (shipped_x, shipped_y) = (dot for dot in dots if dot[0] == dot[0])
    large_x, large_y, side = next(square for square in squares if square[0] == square[0])
    assert small_x < shipped_x < large_x + side / 2
    assert small_y > shipped_y == pytest.approx(large_y + side / 2, abs=0.2)
    assert tree.get("role") == "img"
    assert "small alone: 50.0%, 1.00 s" in tree.get("aria-label", "")


@widths
def test_everything_is_within_the_drawing(arms: list[ArmFigures], width: float) -> None:
    height = float(parsed(scatter(arms, width)).get("height", 0))
    for line in numbers(parsed(scatter(arms, width)), "whisker", "x1", "y1", "x2", "y2"):
        assert all(0 <= x <= width for x in line[::2])
        assert all(0 <= y <= height for y in line[1::2])


@pytest.mark.parametrize("seed", range(20))
def test_labels_cover_neither_each_other_nor_a_dot(seed: int) -> None:
    rng = random.Random(seed)
    dots = [(rng.uniform(120, 460), rng.uniform(60, 120)) for _ in range(9)]
    names = [rng.choice(["bild", "specreason", "random like specreason"]) for _ in dots]
    placed = place_labels(names, dots, Box(0, 0, WIDE, 340))
    for one, other in itertools.combinations(placed, 2):
        assert one.box.overlap(other.box) == 0
    for label in placed:
        assert all(label.box.overlap(Box(x - 5, y - 5, x + 5, y + 5)) == 0 for x, y in dots)
        assert label.box.overlap(Box(0, 0, WIDE, 340)) == pytest.approx(
            (label.box.right - label.box.left) * (label.box.bottom - label.box.top)
        )


def test_labels_stand_to_the_right_where_there_is_room_and_above_where_there_is_none() -> None:
    area = Box(0, 0, WIDE, 340)
    (alone,) = place_labels(["bild"], [(200, 200)], area)
    assert alone.label_x > 210
    assert alone.label_y == 200
    middle = place_labels(["bild"] * 3, [(185, 200), (200, 200), (215, 200)], area)[1]
    assert middle.label_x == pytest.approx(200)
    assert middle.label_y < 190


def test_a_label_far_from_its_dot_is_led_to_it() -> None:
    crowd = [Arm.of(f"a method of a long name, {n}", "specreason") for n in range(9)]
    done = {(n, LARGE.name): large(4.0) for n in range(4)}
    done |= {(n, arm.name): mixed(2.0 + place / 100, arm=arm) for n in range(4) for place, arm in enumerate(crowd)}
    tree = parsed(scatter(compute_figures(done, (LARGE, *crowd)), WIDE))
    led = numbers(tree, "leader", "x1", "x2")
    assert led
    assert {round(start) for start, _ in led} <= {round(x) for (x,) in numbers(tree, "mark", "cx") if x == x}


@widths
def test_the_length_of_a_bar_is_its_value(arms: list[ArmFigures], width: float) -> None:
    shipped = next(f for f in arms if f.arm is SHIPPED)
    tree = parsed(plots.stacked([("one", plots.token_parts(shipped), "")], "tokens", width))
    lengths = [w + 1 for (w,) in numbers(tree, "part", "width")]
    assert lengths == pytest.approx([width * 0.6, width * 0.2, width * 0.2], abs=0.2)  # 60, 20, and 20 in vain
    assert [one.get("data-wasted") for one in tree.iter() if one.get("class") == "part"] == [None, None, ""]
    starts = [x for (x,) in numbers(tree, "part", "x")]
    assert starts == pytest.approx([0, width * 0.6, width * 0.8], abs=0.2)
    assert "100.0 tokens" in "".join(tree.itertext())


@widths
def test_differences_stand_on_their_side_of_the_line(arms: list[ArmFigures], width: float) -> None:
    shown = [f for f in arms if f.arm in (SMALL, SHIPPED)]
    tree = parsed(plots.differences(shown, width))
    (small_x,), (shipped_x,) = numbers(tree, "mark", "cx")
    (zero,) = {x for (x,) in numbers(tree, "zero", "x1")}
    assert small_x < zero == shipped_x
    assert all(0 <= x <= width for line in numbers(tree, "span-line", "x1", "x2") for x in line)


def made(*graded: ScoredVerdict, policy: str = "specreason") -> JudgeReport:
    return JudgeReport("an arm", policy, graded, separate(graded, "step", doubt=policy == "bild"))


def test_scores_are_counted_above_the_line_if_right_and_below_if_wrong() -> None:
    right = [ScoredVerdict(8.6, True, True, n) for n in range(6)] + [ScoredVerdict(6.1, False, True, 7)]
    wrong = [ScoredVerdict(1.2, False, False, n) for n in range(3)]
    tree = parsed(plots.histogram(made(*right, *wrong, ScoredVerdict(9.0, True, False, 0, decided=False))))
    columns = numbers(tree, "column", "x", "y", "height")
    make_section = [title.text for title in tree.iter("title")]
    assert make_section == ["right, 6 to 6.5: 1", "right, 8.5 to 9: 6", "wrong, 1 to 1.5: 3"]
    middle = columns[2][1]
    assert [y + height for _, y, height in columns[:2]] == pytest.approx([middle, middle], abs=0.2)
    assert "wrong, n = 3" in "".join(tree.itertext())


def test_without_truth_scores_are_grouped_by_the_verdict() -> None:
    tree = parsed(plots.histogram(made(ScoredVerdict(0.2, True), ScoredVerdict(3.5, False), policy="bild")))
    assert [title.text for title in tree.iter("title")] == ["accepted, 0.175 to 0.35: 1", "rejected, 3.33 to 3.5: 1"]


def test_scores_may_be_negative() -> None:
    tree = parsed(plots.histogram(made(ScoredVerdict(-1.0, False), ScoredVerdict(1.0, True), policy="reward")))
    assert [title.text for title in tree.iter("title")] == ["accepted, 0.9 to 1: 1", "rejected, -1 to -0.9: 1"]


def test_the_curve_ends_in_its_corners() -> None:
    judge = made(*(ScoredVerdict(score, score > 5, score > 4, n) for n, score in enumerate((1.0, 2, 3, 6, 7, 8, 4.5))))
    assert judge.separation is not None
    tree = parsed(plots.curve(judge, judge.separation))
    path = next(one.get("d", "") for one in tree.iter() if one.get("class") == "curve")
    points = [tuple(map(float, pair.split())) for pair in path[1:].split("L")]
    (left, bottom), (right, top) = points[0], points[-1]
    assert left < right
    assert bottom > top
    assert len(numbers(tree, "mark", "cx")) == 1
    assert "AUROC 1.000" in "".join(tree.itertext())


def test_text_only_ever_becomes_text() -> None:
    hostile = '</title><script>alert("1")</script>&'
    tree = parsed(element("text", hostile, x=1.25, class_=hostile, hidden=False, data_wasted=True))
    assert (tree.text, tree.get("class"), tree.get("x"), tree.get("hidden")) == (hostile, hostile, "1.2", None)
    renamed = replace(SHIPPED, name=hostile)
    done = {(n, arm): sample for n in range(4) for arm, sample in ((LARGE.name, large(4.0)), (SMALL.name, small(1.0)))}
    done |= {(n, hostile): mixed(2.0, arm=Arm.of(hostile, "specreason")) for n in range(4)}
    tree = parsed(scatter(compute_figures(done, (LARGE, SMALL, renamed)), WIDE))
    assert not list(tree.iter("script"))
