"""
The plan of the matrix of worlds, judges and loads: which arms solve how many problems, and how long that takes.

A *condition* is what all arms have in common: world, judge and load. In a *round*, every arm solves the same problems
under one condition. The plan has a round for every condition, and then further ones while there is time. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil
from typing import TypeAlias

from rich.table import Table

from lab.crowd import TWO_LARGE, Load
from stepspec.evals.arms import LARGE
from stepspec.evals.sample import Arm
from stepspec.evals.testbed.servers import JUDGE, read_pace
from stepspec.orchestrator.errors import ConfigurationError

from .arms import REFLECTIVE
from .worlds import LONG, SHORT, TOOLS, WORLDS, accounts, find_world

LOADS = (1, 4, 16, 32)  # problems at once
STEPS = accounts.Difficulty(steps=(36, 52))  # so that the problems of a round end at nearly the same time
START = 75.0  # seconds to start the servers of a pairing on two cores
RESERVE = 0.05  # of the time, which is not planned


@dataclass(frozen=True, slots=True)
class Length:
    """The mean number of *tokens* of a world's chains with their answers, and the *longest* one over the mean."""

    tokens: int
    longest: float


LENGTHS: Mapping[str, Length] = {SHORT: Length(90, 1.5), LONG: Length(2310, 1.18), TOOLS: Length(16, 1.2)}
# Seconds that two cores take for a pass with one sequence of 1,800 tokens, and for each further one; measured roughly.
COMPUTING: Mapping[str, tuple[float, float]] = {"large": (0.0070, 0.0014), "small": (0.0030, 0.0005)}
DRAFTED, REPAIRED = 1.2, 0.2  # what a method's models write, over the length of the chain
SHARED = 1.2  # from 16 at once on, both models compute all the time, besides this program
CROWDED = 16


@dataclass(frozen=True, slots=True)
class Condition:
    """What all arms of a round have in common: the *world*, the large weights of *judge*, and the problems at once."""

    world: str
    judge: str
    concurrency: int

    @property
    def load(self) -> Load:
        return Load(concurrency=self.concurrency)

    @property
    def pairing(self) -> tuple[str, str]:
        """What the servers depend on."""
        return self.world, self.judge

    @property
    def problems(self) -> int:
        """
        The number of counted problems of a round.

        Long chains all begin at once, as many as there may be: the time at which they began does not show in their
        length. Short ones need others before them.
        """
        return self.concurrency if self.world == LONG else max(8, 2 * self.concurrency)

    @property
    def warm_up(self) -> int:
        """The number of problems before the counted ones."""
        return 0 if self.world == LONG else self.concurrency

    def __str__(self) -> str:
        return f"{self.world}, {self.judge}, {self.load.name}"


@dataclass(frozen=True, slots=True)
class Round:
    """All *arms* solve the problems of round *number* under a *condition*, in so many *seconds* as expected."""

    condition: Condition
    number: int
    arms: tuple[Arm, ...]
    seconds: float

    @property
    def places(self) -> list[tuple[str, str, int]]:
        """The places of its blocks in their store."""
        return [(self.condition.load.name, arm.name, self.number) for arm in self.arms]


def conditions(worlds: Sequence[str], judges: Sequence[str], loads: Sequence[int]) -> list[Condition]:
    """
    Every combination; without *judges*, with all that a world has.

    Raise `ConfigurationError` for an unknown world, for a judge that no world has, and if there is no combination.
    """
    known = {name for world in worlds for name in find_world(world).judges}
    for judge in judges:
        if judge not in known:
            find_world(worlds[0]).judged_by(judge)
    pairings = [(world, judge) for world in worlds for judge in WORLDS[world].judges if not judges or judge in judges]
    if not pairings or not loads:
        raise ConfigurationError("no condition: name a world, a judge that it has, and a load")
    return [Condition(world, judge, load) for world, judge in pairings for load in loads]


def arms_under(condition: Condition, arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """
    The *arms* under *condition*: with several problems at once, large alone on two servers as well.

    With other judges than the usual one, neither that nor reflective verification is measured under load: there is not
    the time.
    """
    if condition.concurrency == 1:
        return (LARGE, *arms)
    if condition.judge == JUDGE:
        return (LARGE, TWO_LARGE, *arms)
    return (LARGE, *(arm for arm in arms if arm != REFLECTIVE))


Expected: TypeAlias = Callable[[Condition, Arm], float]


def expected_seconds(profile: str) -> Expected:
    """
    Return a function that expects how long a block takes: an arm, under a condition.

    Raise `ConfigurationError` for an unknown profile.
    """
    paces = {role: read_pace(profile, role) for role in COMPUTING}

    def one_pass(role: str, sequences: int) -> float:
        first, each = COMPUTING[role]
        computing, pace = first + each * (sequences - 1), paces[role]
        return computing if pace is None else max(computing, pace.seconds_per_pass + pace.seconds_per_token * sequences)

    def expected(condition: Condition, arm: Arm) -> float:
        n, length = condition.concurrency, LENGTHS[condition.world]
        if arm.policy == "large":
            token = one_pass("large", ceil(n / 2) if arm.name == TWO_LARGE.name else n)
        else:
            token = DRAFTED * one_pass("small", n) + REPAIRED * one_pass("large", n)
        if n >= CROWDED and (arm.policy != "large" or arm.name == TWO_LARGE.name):
            token *= SHARED
        after = (condition.problems + condition.warm_up) / n - 1  # how often each place is filled again
        return length.tokens * token * (after + length.longest)

    return expected


@dataclass(frozen=True, slots=True)
class Plan:
    """*rounds* in their order, those of the same servers together, for at most so many *minutes*."""

    rounds: tuple[Round, ...]
    minutes: float

    @property
    def fits(self) -> bool:
        return self.seconds <= 60 * self.minutes

    @property
    def seconds(self) -> float:
        """How long all rounds take, with the starts of the servers."""
        return sum(each.seconds for each in self.rounds) + START * len(list(self.pairings()))

    def pairings(self) -> Iterator[tuple[tuple[str, str], list[Round]]]:
        """The rounds of each world and judge."""
        for pairing, rounds in groupby(self.rounds, lambda each: each.condition.pairing):
            yield pairing, list(rounds)

    def table(self) -> Table:
        """The plan, condition by condition."""
        rendered = Table(box=None, padding=(0, 2, 0, 0))
        for name in ("world", "judge", "at once", "arms", "rounds", "n", "minutes"):
            rendered.add_column(name, justify="left" if name in ("world", "judge") else "right")
        for pairing, rounds in self.pairings():
            for load in dict.fromkeys(each.condition.concurrency for each in rounds):
                mine = [each for each in rounds if each.condition.concurrency == load]
                n, seconds = len(mine) * mine[0].condition.problems, sum(each.seconds for each in mine)
                words = str(load), str(len(mine[0].arms)), str(len(mine)), str(n), f"{seconds / 60:.1f}"
                rendered.add_row(*pairing, *words)
        return rendered

    def __str__(self) -> str:
        starts = len(list(self.pairings()))
        return (
            f"{self.seconds / 60:.0f} of {self.minutes:g} minutes expected, with {starts} starts of servers; "
            "further rounds are left out if it takes longer"
        )


def make_plan(minutes: float, wanted: Sequence[Condition], arms: Sequence[Arm], expected: Expected) -> Plan:
    """
    A round for every condition, and further rounds where the fewest problems are, as long as there is time.

    A plan whose first rounds take too long has no others, and does not fit.
    """
    firsts = [_round(condition, 0, arms, expected) for condition in wanted]
    plan = Plan(tuple(firsts), minutes)
    room = 60 * minutes * (1 - RESERVE) - plan.seconds
    rounds = {first.condition: [first] for first in firsts}
    while fitting := [condition for condition, made in rounds.items() if made[0].seconds <= room]:
        fewest = min(fitting, key=lambda condition: len(rounds[condition]) * condition.problems)
        made = rounds[fewest]
        made.append(replace(made[0], number=len(made)))
        room -= made[0].seconds
    every = [each for made in rounds.values() for each in made]
    order = {condition.pairing: place for place, condition in reversed(list(enumerate(wanted)))}
    every.sort(key=lambda each: (order[each.condition.pairing], each.number))
    return replace(plan, rounds=tuple(every))


def _round(condition: Condition, number: int, arms: Sequence[Arm], expected: Expected) -> Round:
    there = arms_under(condition, arms)
    return Round(condition, number, there, sum(expected(condition, arm) for arm in there))


@dataclass(frozen=True, slots=True)
class Progress:
    """
    How far a plan is: *spent* seconds, and what the *done* rounds took over what was expected of them.

    Both lists of *done* have the same rounds.
    """

    spent: float
    done: Sequence[tuple[Round, float]] = ()

    @property
    def factor(self) -> float:
        """What rounds take, over what is expected of them."""
        expected = sum(each.seconds for each, _ in self.done)
        return sum(took for _, took in self.done) / expected if expected else 1.0

    def takes(self, wanted: Round) -> float:
        """The seconds of a round that is not done yet: as many as the last one under its condition, if there is one."""
        alike = [took for each, took in self.done if each.condition == wanted.condition]
        return alike[-1] if alike else wanted.seconds * self.factor

    def left_out(self, wanted: Round, rest: Sequence[Round], minutes: float) -> bool:
        """
        Whether the round *wanted* is left out, so that the first rounds of the *rest* are measured in time.

        First rounds are never left out.
        """
        if wanted.number == 0:
            return False
        firsts = [each for each in rest if each.number == 0 and each is not wanted]
        starts = len({each.condition.pairing for each in firsts} - {wanted.condition.pairing})
        needed = sum(map(self.takes, firsts)) + START * starts
        return self.spent + self.takes(wanted) + needed > 60 * minutes
