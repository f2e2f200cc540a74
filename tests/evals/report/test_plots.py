"""The plots, checked by their geometry."""

from __future__ import annotations

import itertools
import math
import random
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from stepspec.evals.arms import LARGE, SHIPPED, SMALL
from stepspec.evals.report import plots
from stepspec.evals.report.figures import ArmFigures, compute_figures
from stepspec.evals.report.interval_plots import differences, speed_chart
from stepspec.evals.report.judging import JudgeReport, ScoredVerdict, separate
from stepspec.evals.report.labels import Box, Label, overlapping, place_labels
from stepspec.evals.report.plots import front, scatter
from stepspec.evals.report.svg import NARROW, WIDE, Markup, Scale, element
from stepspec.evals.sample import Arm

from .made import ARMS, crowd, large, mixed, samples, small

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


def boxes(tree: ElementTree.Element) -> list[Box]:
    """The boxes of the labels of a drawing: DejaVu Sans is among the widest fonts, with 7.1 pixels for a character."""
    found = [one for one in tree.iter("text") if one.get("class") == "label"]
    places = [(float(one.get("x", 0)), float(one.get("y", 0)), 7.1 * len(one.text or "") / 2) for one in found]
    return [Box(x - half, y - 11, x + half, y + 3) for x, y, half in places]


@widths
@pytest.mark.parametrize("count", [10, 14])
def test_the_labels_of_a_crowd_cover_neither_each_other_nor_a_dot(count: int, width: float) -> None:
    arms, done = crowd(count)
    tree = parsed(scatter(compute_figures(done, arms), width))
    labels = boxes(tree)
    assert len(labels) == count + 1  # and the oracle
    dots = [(x, y) for x, y in numbers(tree, "mark", "cx", "cy") if x == x]
    dots += [(x + side / 2, y + side / 2) for x, y, side in numbers(tree, "mark", "x", "y", "width") if x == x]
    assert len(dots) == count + 1
    assert len(set(dots)) <= count - 1  # some are at the same place
    height = float(tree.get("height", 0))
    for one, other in itertools.combinations(labels, 2):
        assert one.overlap(other) == 0
    for label in labels:
        assert all(label.overlap(Box(x - 5, y - 5, x + 5, y + 5)) == 0 for x, y in dots)
        assert label.left >= 0
        assert label.right <= width
        assert 0 <= label.top < label.bottom <= height


def test_labels_that_are_moved_are_led_to_their_dots_and_no_leader_crosses_a_label() -> None:
    arms, done = crowd(10)
    tree = parsed(scatter(compute_figures(done, arms), WIDE))
    leaders = numbers(tree, "leader", "x1", "y1", "x2", "y2")
    assert len(leaders) >= 3
    discs = [(x, y) for x, y in numbers(tree, "mark", "cx", "cy") if x == x]
    squares = [(x + w / 2, y + w / 2) for x, y, w in numbers(tree, "mark", "x", "y", "width") if x == x]
    assert all(min(math.dist(leader[:2], dot) for dot in (*discs, *squares)) < 0.2 for leader in leaders)
    crossed = sum(box.crossed((x1, y1), (x2, y2)) for box in boxes(tree) for x1, y1, x2, y2 in leaders)
    assert crossed == 0


def test_the_drawing_gets_higher_if_there_is_no_room() -> None:
    arms, done = crowd(30)
    tree = parsed(scatter(compute_figures(done, arms), NARROW))
    assert float(tree.get("height", 0)) > 340
    labels = boxes(tree)
    assert not any(one.overlap(other) for one, other in itertools.combinations(labels, 2))


def test_labels_without_room_cover_as_little_as_possible() -> None:
    area = Box(0, 0, 120, 40)
    placed = place_labels(["a long label"] * 5, [(60.0, 20.0)] * 5, area)
    assert overlapping(placed)
    assert len(placed) == 5


def test_a_line_crosses_a_box_or_not() -> None:
    box = Box(10, 10, 20, 20)
    assert box.crossed((0, 0), (30, 30))
    assert box.crossed((15, 0), (15, 30))
    assert not box.crossed((0, 0), (9, 9))
    assert not box.crossed((0, 15), (0, 30))
    assert not box.crossed((0, 25), (30, 25))
    assert not box.crossed((0, 12), (12, 0))


def test_a_label_next_to_another_dot_is_led_to_its_own() -> None:
    def led(labels: list[Label]) -> list[bool]:
        return [label.led for label in labels]

    area = Box(0, 0, WIDE, 340)
    assert led(place_labels(["one", "two"], [(100.0, 200.0), (300.0, 200.0)], area)) == [False, False]
    assert any(led(place_labels(["one"] * 6, [(100.0 + 9 * at, 200.0) for at in range(6)], area)))


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


def texts(tree: ElementTree.Element, kind: str) -> list[str]:
    return ["".join(one.itertext()) for one in tree.iter("text") if kind in one.get("class", "").split()]


@widths
def test_the_speed_chart_has_a_row_for_every_arm_that_ran_the_fastest_first(
    arms: list[ArmFigures], width: float
) -> None:
    tree = parsed(speed_chart(arms, width))
    assert texts(tree, "label") == [SMALL.name, SHIPPED.name, LARGE.name]
    assert texts(tree, "value")[1:] == ["0.88 [0.62, 1.12]", "1.00"]
    (line,) = numbers(tree, "zero", "x1", "y1", "x2", "y2")
    bars = numbers(tree, "length", "x", "width", "y")
    zero = bars[0][0]
    unit = line[0] - zero  # pixels for the time of the large model alone
    assert [length / unit for _, length, _ in bars] == pytest.approx([0.25, 0.875, 1.0], abs=0.01)
    assert line[1] < bars[0][2] < bars[-1][2] < line[3]  # through all rows
    (low, high), *_ = [pair for pair in numbers(tree, "span-line", "x1", "x2") if pair[1] - pair[0] > 10]
    assert [(low - zero) / unit, (high - zero) / unit] == pytest.approx([0.62, 1.12], abs=0.02)
    assert tree.get("role") == "img"
    assert f"{SMALL.name}: 0.25" in tree.get("aria-label", "")


@widths
def test_differences_stand_on_their_side_of_one_line_in_the_order_of_the_speed_chart(
    arms: list[ArmFigures], width: float
) -> None:
    tree = parsed(differences(arms, width, 0.02))
    assert texts(tree, "label") == [SMALL.name, SHIPPED.name]
    (small_x,), (shipped_x,) = numbers(tree, "mark", "cx")
    ((zero, top, bottom),) = numbers(tree, "zero", "x1", "y1", "y2")
    ((limit, *_),) = numbers(tree, "limit", "x1", "y1", "y2")
    assert small_x < limit < zero == shipped_x
    assert (zero - limit) / (zero - small_x) == pytest.approx(2 / 25, abs=0.01)  # 2 points and 25 points
    assert all(top < y < bottom for (y,) in numbers(tree, "mark", "cy"))
    assert all(0 <= x <= width for line in numbers(tree, "span-line", "x1", "x2") for x in line)
    (farther,) = {x for (x,) in numbers(parsed(differences(arms, width, 0.3)), "limit", "x1")}
    assert farther < limit
    assert texts(tree, "axis")[-2:] == ["-2", "0"]


@widths
def test_what_is_outside_of_the_scale_of_the_methods_is_an_arrow(width: float) -> None:
    many = {(n, LARGE.name): large(4.0) for n in range(200)} | {(n, SHIPPED.name): mixed(2.0) for n in range(200)}
    many |= {(n, SMALL.name): small(1.0, correct=n < 40) for n in range(200)}
    tree = parsed(differences(compute_figures(many, ARMS), width, 0.02))
    assert len(numbers(tree, "arrow")) == len(numbers(tree, "mark")) == 1
    assert texts(tree, "value")[0].startswith("-80.0 [-85")


@widths
@pytest.mark.parametrize("count", [10, 14])
def test_rows_keep_apart(count: int, width: float) -> None:
    arms, done = crowd(count)
    figures = compute_figures(done, arms)
    for tree, rows in (
        (parsed(speed_chart(figures, width)), count),
        (parsed(differences(figures, width, 0.02)), count - 1),
    ):
        lines = [y for (y,) in numbers(tree, "label", "y")]
        assert len(lines) == rows
        assert all(below - above >= 14 for above, below in itertools.pairwise(lines))
        assert max(lines) < float(tree.get("height", 0))


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
