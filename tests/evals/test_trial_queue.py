"""The distribution of trials: each once, in order, also with lost workers."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepspec.evals.cli import arms
from stepspec.evals.grading.graders import Answer
from stepspec.evals.plan import Plan, Trial, trials
from stepspec.evals.runner import MAX_LOST, AcceptRates, TrialQueue
from stepspec.evals.sample import Sample, Task
from stepspec.evals.store import Place
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import WorkersLost
from stepspec.orchestrator.ledger import Account, Ledger

ARMS = arms(["specreason", "bild:scale=step"], ["large", "small"], ["specreason"])
CONTROL = ARMS[-1]


def todo(problems: int = 3) -> list[Trial]:
    tasks = tuple(Task(f"problem {number}", Answer(str(number), "exact")) for number in range(problems))
    return list(trials(Plan(tasks, ARMS, GREEDY, Budget(512))))


def sample(arm: str, accepted: int, drafts: int) -> Sample:
    return Sample(arm, True, 1.0, Ledger(Account("small"), Account("large"), drafts, accepted), {})


def waiting(wanted: list[Trial]) -> tuple[TrialQueue, set[Place]]:
    """Deal *wanted*; a control is ready once what it is like is among the places that are returned."""
    done: set[Place] = set()
    return TrialQueue(wanted, lambda each: not each.arm.like or (each.number, each.arm.like) in done), done


def test_trials_are_dealt_in_their_order_and_each_once() -> None:
    wanted = todo()
    dealer = TrialQueue(wanted)
    assert [dealer.take(f"worker {number % 3}") for number in range(len(wanted))] == wanted
    assert dealer.take("worker 0") is None
    assert not dealer.finished
    for trial in wanted:
        assert not dealer.finished_for("worker 0")
        dealer.done(trial)
    assert dealer.finished
    assert dealer.finished_for("worker 0")
    assert TrialQueue([]).finished


def test_a_control_waits_for_its_method_and_then_precedes_new_trials() -> None:
    dealer, done = waiting(todo(2))
    first = [dealer.take("one") for _ in range(6)]
    assert [trial and trial.place for trial in first] == [
        (0, "large alone"), (0, "small alone"), (0, "specreason"), (0, "bild:scale=step"),
        (1, "small alone"), (1, "specreason"),
    ]  # fmt: skip
    done |= {(0, "specreason"), (1, "specreason")}
    rest = [dealer.take("one") for _ in range(4)]
    assert [trial and trial.place for trial in rest] == [
        (0, CONTROL.name), (1, "bild:scale=step"), (1, "large alone"), (1, CONTROL.name)
    ]  # fmt: skip
    assert dealer.take("one") is None


def test_arms_that_are_kept_apart_follow_each_other() -> None:
    plan = Plan((Task("a", Answer("1")), Task("b", Answer("2"))), ARMS[:3], GREEDY, Budget(512), apart=True)
    wanted = list(trials(plan))
    assert [trial.arm.name for trial in wanted] == [arm.name for arm in ARMS[:3] for _ in range(2)]
    dealer = TrialQueue(wanted, apart=True)
    first = [dealer.take("one") for _ in range(3)]
    assert first == [*wanted[:2], None]
    dealer.done(wanted[0])
    assert dealer.take("one") is None
    dealer.done(wanted[1])
    assert [dealer.take("one") for _ in range(2)] == wanted[2:4]


def test_the_trials_of_a_lost_worker_precede_new_ones_and_it_gets_no_more() -> None:
    wanted = todo()
    dealer = TrialQueue(wanted)
    held = [dealer.take("lost") for _ in range(3)]
    for trial in reversed(held):
        assert trial is not None
        dealer.give_back(trial)
    assert dealer.finished_for("lost")
    assert dealer.take("lost") is None
    assert [dealer.take("other") for _ in range(4)] == wanted[:4]


def test_a_trial_may_be_lost_with_two_workers_and_not_with_three() -> None:
    (trial, *_) = wanted = todo()
    dealer = TrialQueue(wanted)
    for number in range(MAX_LOST - 1):
        assert dealer.take(f"worker {number}") is trial
        dealer.give_back(trial)
    assert dealer.take("the last") is trial
    with pytest.raises(WorkersLost, match=r"3 workers .* problem 0 as 'large alone': worker 0, worker 1, the last"):
        dealer.give_back(trial)


MOVES = st.lists(st.tuples(st.sampled_from(["deal", "deal", "solve", "die"]), st.integers(0, 3), st.integers(0, 99)))


class Table:
    """A game of four seats: who holds what, and how often each trial was lost."""

    def __init__(self, wanted: list[Trial]) -> None:
        self.dealer, self.done = waiting(wanted)
        self.held: list[list[Trial]] = [[], [], [], []]
        self.lost = Counter[Place]()
        self.deaths = 0
        self.names = list("abcd")

    def deal(self, seat: int, _: int) -> None:
        trial = self.dealer.take(self.names[seat])
        if trial is None:
            return
        assert trial.place not in self.done
        assert all(trial not in others for others in self.held)
        self.held[seat].append(trial)

    def solve(self, seat: int, which: int) -> None:
        if mine := self.held[seat]:
            trial = mine.pop(which % len(mine))
            self.done.add(trial.place)
            self.dealer.done(trial)

    def die(self, seat: int, _: int) -> None:
        """Lose a worker, unless that would end the run; another takes its seat."""
        mine = self.held[seat]
        if mine and all(self.lost[trial.place] < MAX_LOST - 1 for trial in mine):
            while mine:
                self.lost[mine[-1].place] += 1
                self.dealer.give_back(mine.pop())
            self.deaths += 1
            assert self.dealer.finished_for(self.names[seat])
            self.names[seat] = f"{seat}/{self.deaths}"


@settings(deadline=None)
@given(st.integers(0, 4), MOVES)
def test_whoever_dies_every_trial_is_done_once_and_the_last_worker_is_never_stuck(
    problems: int, moves: list[tuple[str, int, int]]
) -> None:
    wanted = todo(problems)
    table = Table(wanted)
    for move, seat, which in moves:
        getattr(table, move)(seat, which)
    for seat in (0, 1, 2):  # These end what they have, and leave.
        while table.held[seat]:
            table.solve(seat, 0)
    while not table.dealer.finished:
        table.deal(3, 0)
        assert table.held[3], "there is something to do, and it cannot be begun"
        table.solve(3, 0)
    assert table.done == {trial.place for trial in wanted}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1), st.randoms(use_true_random=False))
def test_a_rate_covers_all_samples_up_to_one_in_any_order_of_arrival(
    counts: list[tuple[int, int]], random: Random
) -> None:
    found: dict[Place, Sample] = {}
    rates, order = AcceptRates(found), list(range(len(counts)))
    random.shuffle(order)
    for number in order:
        accepted, more = counts[number]
        found[number, "a"] = sample("a", accepted, accepted + more)
        for upto in range(len(counts)):
            known = all((at, "a") in found for at in range(upto + 1))
            drafts = sum(sum(counts[at]) for at in range(upto + 1))
            expected = sum(counts[at][0] for at in range(upto + 1)) / drafts if drafts else 0.0
            assert rates.over("a", upto) == (expected if known else None)
    assert rates.over("b", 0) is None
