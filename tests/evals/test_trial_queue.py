"""The distribution of trials: each once, in order, also with lost workers."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from stepspec.cli.eval import arms
from stepspec.evals.grading.graders import Answer
from stepspec.evals.plan import Plan, Trial, trials
from stepspec.evals.runner import MAX_LOST, TrialQueue
from stepspec.evals.sample import Task
from stepspec.evals.store import Place
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints import GREEDY

ARMS = arms(["specreason", "bild:scale=step"], ["large", "small"], ["specreason"])
CONTROL = ARMS[-1]


def todo(problems: int = 3) -> list[Trial]:
    tasks = tuple(
        Task(f"problem {number}", Answer(str(number), "exact")) for number in range(problems)
    )
    return list(trials(Plan(tasks, ARMS, GREEDY, Budget(512))))


def waiting(wanted: list[Trial]) -> tuple[TrialQueue, set[Place]]:
    """
    Deal *wanted*; a control is ready once what it is like is among the places that are returned.
    """
    done: set[Place] = set()
    return (
        TrialQueue(wanted, lambda each: not each.arm.like or (each.number, each.arm.like) in done),
        done,
    )


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


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["deal", "deal", "solve", "die"]), st.integers(0, 3), st.integers(0, 99)
    )
)


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


@settings(deadline=None, max_examples=40)
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
