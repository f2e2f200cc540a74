"""Runs find the fastest of several methods, and follow when another one gets faster: on the virtual clock."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log

import pytest

from stepspec.orchestrator.events import Selected
from stepspec.orchestrator.feedback.auto import SPAN, Auto
from stepspec.orchestrator.feedback.method_selection import (
    FIRST,
    FRESH,
    LEAST,
    LONGEST,
    MethodSelection,
    Pace,
    relative_length,
    select,
)

from .test_auto import World

WORLD = World(steps=8)
SLOWER = replace(WORLD, small=0.2)
WORLDS = {"usual": WORLD, "slower": SLOWER, "slow": replace(WORLD, verdict=20.0), "third": replace(WORLD, small=0.3)}


class Runs:
    """Runs of one solver, one after the other, each by a method that stands for a world; *now* says which."""

    def __init__(self, now: Mapping[str, World]) -> None:
        self.auto = Auto()
        self.selection = MethodSelection(self.auto)
        self.now = dict(now)
        self.selected: list[Selected] = []
        self.seconds: list[float] = []

    def solve(self, problems: Sequence[int]) -> None:
        for problem in problems:
            records = {name: self.auto.record(name, {}) for name in self.now}
            selected = self.selection.select(records)
            moments = self.now[selected.policy].solve(problem, "auto", self.auto, name=selected.policy)
            self.selected.append(selected)
            self.seconds.append(moments[-1].at)

    @property
    def probes(self) -> list[int]:
        return [place for place, event in enumerate(self.selected) if event.probe]


def fixed(world: World, problems: Sequence[int]) -> float:
    """The seconds of a world's method with `auto`, on all *problems*."""
    auto = Auto()
    return sum(world.solve(problem, "auto", auto)[-1].at for problem in problems)


@pytest.mark.parametrize("names", [("slower", "usual"), ("usual", "slower"), ("third", "slower", "usual")])
def test_runs_take_at_most_a_twentieth_longer_than_by_the_best_method(names: tuple[str, ...]) -> None:
    problems = range(160)
    runs = Runs({name: WORLDS[name] for name in names})
    runs.solve(problems)
    assert {event.policy for event in runs.selected[-20:] if not event.probe} == {"usual"}
    assert sum(runs.seconds[40:]) <= 1.05 * fixed(WORLD, problems[40:])


def test_before_anything_is_known_the_first_method_is_used_and_then_each_other_one_probed() -> None:
    runs = Runs({name: WORLDS[name] for name in ("usual", "slower", "third")})
    runs.solve(range(3 * FIRST))
    assert runs.probes == [*range(FIRST, FIRST + LONGEST), *range(2 * FIRST, 2 * FIRST + LONGEST)]  # chains of 8 steps
    assert [runs.selected[place].policy for place in runs.probes] == ["slower"] * LONGEST + ["third"] * LONGEST
    assert runs.selected[0] == Selected("usual", reason="the pace of usual is not known yet")
    assert all(event.policy == "usual" for event in runs.selected if not event.probe)


def test_probes_are_a_fiftieth_of_the_runs_and_rarer_the_more_they_cost() -> None:
    few = Runs({name: WORLDS[name] for name in ("usual", "slower")})
    few.solve(range(420))
    assert few.probes == [FIRST + at + run for at in (0, 203, 406) for run in range(LONGEST)]
    # A slow method steps aside, and is as slow as the large model alone.
    costly = Runs({name: WORLDS[name] for name in ("usual", "slow")})
    costly.solve(range(420))
    assert costly.probes[0] == FIRST
    assert len(costly.probes) < len(few.probes)


def test_one_run_of_a_long_chain_is_a_probe() -> None:
    runs = Runs({"usual": replace(WORLD, steps=40), "slower": replace(SLOWER, steps=40)})
    runs.solve(range(FIRST + 53))
    assert runs.probes == [FIRST, FIRST + 50]


def test_a_method_that_gets_faster_is_found_by_a_probe() -> None:
    runs = Runs({"usual": WORLD, "slower": SLOWER})
    runs.solve(range(70))
    runs.now = {"usual": replace(WORLD, small=0.4), "slower": WORLD}
    runs.solve(range(70, 240))
    assert {event.policy for event in runs.selected[-5:]} == {"slower"}
    last = runs.selected[-1]
    assert last.reason.startswith("slower: ")
    assert "usual" not in dict(last.seconds)  # what is known of it is old


def test_the_same_events_give_the_same_selections() -> None:
    once, again = (Runs({name: WORLDS[name] for name in ("slower", "usual")}) for _ in range(2))
    for runs in (once, again):
        runs.solve(range(40))
    assert once.selected == again.selected


def test_what_is_known_of_a_method_is_compared_until_others_have_ended_runs() -> None:
    runs = Runs({"usual": WORLD, "slower": SLOWER})
    runs.solve(range(40))
    compared = [place for place, event in enumerate(runs.selected) if "slower" in dict(event.seconds)]
    assert compared == list(range(FIRST + 1, FIRST + LONGEST + FRESH))


def test_a_method_that_is_not_offered_any_more_is_left() -> None:
    runs = Runs({"slower": SLOWER, "usual": WORLD})
    runs.solve(range(20))
    assert runs.selection.now == "usual"
    runs.now = {"slower": SLOWER}
    runs.solve(range(20, 22))
    assert [event.policy for event in runs.selected[-2:]] == ["slower", "slower"]


def lengths(mean: float, count: int = SPAN, spread: float = 0.5) -> tuple[int, ...]:
    draw = random.Random(1)
    return tuple(round(draw.lognormvariate(log(mean), spread)) for _ in range(count))


@pytest.mark.parametrize(
    ("ours", "theirs", "relative"),
    [
        (lengths(1000), lengths(1000)[::-1], 1.0),
        (lengths(1000), lengths(1100), 1.0),  # a tenth is within the error of 64 runs
        (lengths(3000), lengths(1000), 3.0),
        (lengths(500), lengths(1000), 0.5),
        (lengths(3000, LEAST - 1), lengths(1000), 1.0),
        ((), (), 1.0),
    ],
)
def test_lengths_count_if_they_differ_for_sure(ours: tuple[int, ...], theirs: tuple[int, ...], relative: float) -> None:
    assert relative_length(Pace(1.0, ours), Pace(1.0, theirs)) == pytest.approx(relative, rel=0.01)


@pytest.mark.parametrize(
    ("other", "policy", "seconds"),
    [
        (Pace(0.0098, lengths(1000)), "a", 0.98),
        (Pace(0.0096, lengths(1000)), "b", 0.96),
        (Pace(0.005, lengths(3000)), "a", 1.5),  # faster tokens, but more of them
        (Pace(0.005, lengths(1500)), "b", 0.75),
        (Pace(None, lengths(1000)), "a", None),
    ],
)
def test_a_change_of_the_method_has_to_save_3_percent_of_a_run(other: Pace, policy: str, seconds: float | None) -> None:
    used = Pace(0.01, lengths(1000))
    selected = select({"a": used, "b": other}, "a")
    assert selected.policy == policy
    expected = dict(selected.seconds)
    if seconds is None:
        assert "b" not in expected
    else:
        assert expected["b"] / expected["a"] == pytest.approx(seconds, rel=0.01)
        assert expected["a"] == pytest.approx(0.01 * sum(used.lengths) / len(used.lengths))
