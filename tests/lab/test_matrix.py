"""The matrix of worlds, judges and loads: its plan, its tables, the fields of its figures, and its command."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from lab import load as load_module
from lab import matrix
from lab.arms import AUTO, BILD, REFLECTIVE
from lab.crowd import TWO_LARGE, Block, Deployment, Timing
from lab.figures_file import write_rows
from lab.matrix import ARMS, main
from lab.matrix_plan import (
    LOADS,
    START,
    STEPS,
    Condition,
    Plan,
    Progress,
    Round,
    conditions,
    expected_seconds,
    make_plan,
)
from lab.matrix_tables import (
    Measured,
    auroc,
    auto_rows,
    auto_sheet,
    calibrate,
    json_rows,
    judged_drafts,
    method_rows,
    method_sheet,
    verdict,
)
from lab.worlds import accounts, long_tasks
from stepspec.evals.arms import LARGE, SHIPPED
from stepspec.evals.results import Result
from stepspec.evals.sample import Arm, Sample
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.solution import SolvedStep

from ..evals.scripted import solution
from .test_load import PacedSolver

EVERY = conditions(("long", "short"), (), LOADS)
USUAL = expected_seconds("paced")


def planned(minutes: float, wanted: Sequence[Condition] = EVERY) -> Plan:
    return make_plan(minutes, wanted, ARMS, USUAL)


def test_ninety_minutes_have_room_for_every_world_judge_and_load() -> None:
    plan = planned(90)
    assert plan.fits
    assert {each.condition for each in plan.rounds} == set(EVERY)
    assert {each.pairing for each in EVERY} == {
        ("long", "large"), ("long", "judge-90"), ("long", "judge-75"), ("short", "large"),
    }  # fmt: skip
    alone = [each for each in plan.rounds if (each.condition.world, each.condition.concurrency) == ("long", 1)]
    assert min([alone.count(each) for each in alone], default=0) == 1
    assert len(alone) >= 2 * 3
    assert [pairing for pairing, _ in plan.pairings()] == list(dict.fromkeys(each.pairing for each in EVERY))


def test_more_minutes_are_more_problems_where_there_are_fewest_and_too_few_do_not_fit() -> None:
    def problems(minutes: float) -> dict[Condition, int]:
        rounds = planned(minutes).rounds
        return {one: sum(each.condition.problems for each in rounds if each.condition == one) for one in EVERY}

    few, many = problems(90), problems(240)
    assert all(few[one] <= many[one] for one in EVERY)
    assert sum(many.values()) > sum(few.values())
    assert max(many.values()) == max(few.values())  # where there are many already, none are added
    assert set(problems(20).values()) == {one.problems for one in EVERY}
    assert not planned(20).fits
    assert planned(20).seconds == sum(each.seconds for each in planned(20).rounds) + 4 * START


def test_large_alone_on_two_servers_and_reflective_verification_have_their_places() -> None:
    def names(judge: str, at_once: int) -> set[str]:
        return next(
            {a.name for a in e.arms} for e in planned(90).rounds if e.condition == Condition("long", judge, at_once)
        )

    usual = {LARGE.name, *(arm.name for arm in ARMS)}
    assert names("large", 1) == names("judge-75", 1) == usual
    assert names("large", 4) == usual | {TWO_LARGE.name}
    assert names("judge-75", 4) == usual - {REFLECTIVE.name}


def test_one_problem_is_expected_to_take_the_pace_of_its_tokens() -> None:
    one, slow = Condition("long", "large", 1), expected_seconds("slow")
    assert USUAL(one, LARGE) == pytest.approx(2310 * 0.03006 * 1.18)
    assert USUAL(one, SHIPPED) < USUAL(one, LARGE) < slow(one, LARGE)
    assert USUAL(Condition("long", "large", 32), LARGE) > USUAL(one, LARGE)
    with pytest.raises(ConfigurationError, match="no pacing profile 'fast'"):
        expected_seconds("fast")


@pytest.mark.parametrize(
    ("worlds", "judges", "loads", "complaint"),
    [
        (("wide",), (), LOADS, "no world 'wide'"),
        (("short",), ("judge-75",), LOADS, "the world 'short' has no judge 'judge-75'; it has: large"),
        (("long", "short"), ("judge-7",), LOADS, "no judge 'judge-7'"),
        (("long",), (), (), "no condition"),
    ],
)
def test_what_there_is_not_is_named(
    worlds: Sequence[str], judges: Sequence[str], loads: Sequence[int], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        conditions(worlds, judges, loads)


def test_a_judge_of_one_world_leaves_the_others_out() -> None:
    assert conditions(("long", "short"), ("judge-90",), (4,)) == [Condition("long", "judge-90", 4)]


FIRST = Round(Condition("long", "large", 1), 0, (LARGE,), 100.0)
FURTHER, NEXT = (
    dataclasses.replace(FIRST, number=1),
    dataclasses.replace(FIRST, condition=Condition("short", "large", 1)),
)


def test_further_rounds_give_way_to_first_ones_that_are_still_missing() -> None:
    rest = [FURTHER, NEXT]
    assert not Progress(200.0, [(FIRST, 100.0)]).left_out(FURTHER, rest, minutes=8)  # 200 + 100 + 100 + 75 = 475
    assert Progress(206.0, [(FIRST, 100.0)]).left_out(FURTHER, rest, minutes=8)
    assert not Progress(206.0, [(FIRST, 100.0)]).left_out(FURTHER, [FURTHER], minutes=8)
    assert Progress(200.0, [(FIRST, 110.0)]).left_out(FURTHER, rest, minutes=8)  # the other one takes longer, too
    assert not Progress(9999.0, [(FIRST, 100.0)]).left_out(NEXT, [NEXT], minutes=8)


def step(index: int, text: str, fate: Any = "kept", author: Any = "small", grade: float | None = 8.0) -> SolvedStep:
    return SolvedStep(index, author, text, grade, fate, "", 0.0)


def test_drafts_are_judged_by_the_worked_reasoning_until_a_mistake_is_committed() -> None:
    (task,) = long_tasks(1, 3, STEPS)
    problem = next(islice(accounts.generate(3, "test", STEPS), 1))
    right = accounts.worked_steps(problem)
    assert task.reference == "".join(right)
    steps = (
        step(0, right[0]),
        step(1, "wrong\n\n", "rejected", grade=3.0),
        step(2, right[2], "lost", grade=None),
        step(1, right[1], author="large", grade=None),
        step(2, right[2], grade=6.0),
        step(3, "wrong\n\n", grade=9.0),
        step(4, right[4]),
    )
    made = dataclasses.replace(solution("7"), steps=steps)
    assert judged_drafts(made, task) == ((8.0, True), (3.0, False), (6.0, True), (9.0, False))
    whole = tuple(step(number, text) for number, text in enumerate([*right, "\\boxed{7}"]))
    assert judged_drafts(dataclasses.replace(made, steps=whole), task) == ((8.0, True),) * len(right)


def test_grades_separate_right_from_wrong() -> None:
    assert auroc(((9.0, True), (8.0, True), (8.0, False), (1.0, False))) == 7 / 8
    assert auroc(((9.0, True),)) is None


def test_a_threshold_is_found_that_loses_few() -> None:
    pytest.importorskip("scipy")
    fine = (((9.0, True), (4.5, False)), True, True)
    assert calibrate([fine] * 40) == 5
    assert calibrate([fine] * 20) is None  # too few for the limit
    careless = (((9.0, True), (8.7, False)), False, True)
    assert calibrate([fine] * 30 + [careless] * 10) is None
    unsolved = (((9.0, True), (8.7, False)), False, False)
    assert calibrate([fine] * 40 + [unsolved] * 5) == 5


def block(arm: Arm, seconds: float, n: int, wrong: int = 0, large: int = 10) -> Block:
    made = solution("7", seconds=seconds, large=large)

    def timing(correct: bool) -> Timing:
        sample = Sample(arm.name, correct, seconds, made.ledger, {"large": 0.03})
        drafts = ((9.0, True), (2.0, False)) if arm == SHIPPED else ()
        return Timing(seconds, 0.5, seconds, 40, correct, sample=sample, drafts=drafts)

    timings = tuple(timing(number >= wrong) for number in range(n))
    return Block(timings, seconds * n, {"stepspec": 0.1}, seconds * n)


def blocks(n: int, seconds: Mapping[str, float], wrong: int = 0) -> dict[str, list[Block]]:
    arms = {arm.name: arm for arm in (LARGE, TWO_LARGE, *ARMS)}
    return {name: [block(arms[name], each, n, wrong if name == BILD.name else 0)] for name, each in seconds.items()}


ALONE, FOUR = Condition("long", "large", 1), Condition("long", "large", 4)
TIMES = {LARGE.name: 4.0, SHIPPED.name: 2.0, BILD.name: 1.0, REFLECTIVE.name: 3.0, AUTO.name: 1.02}
UNDER_LOAD = {LARGE.name: 4.0, TWO_LARGE.name: 3.0, SHIPPED.name: 6.0, BILD.name: 5.0, AUTO.name: 4.4}
MEASURED: Measured = {ALONE: blocks(2, TIMES), FOUR: blocks(4, UNDER_LOAD)}


def test_auto_is_compared_with_the_better_of_large_alone_and_the_best_fixed_method() -> None:
    alone, four = auto_rows(MEASURED)
    assert (alone.better, alone.auto_to_better.value, alone.above) == (BILD.name, 1.02, False)
    assert (four.better, four.above) == (LARGE.name, True)
    assert four.auto_to_large.value == pytest.approx(1.1)
    assert verdict([alone]) == "auto is within 1.05 under 1 of 1 conditions"
    assert verdict([alone, four]).endswith("1 of 2 conditions; above: long, large, 4 at once (1.10)")
    assert "above 1.05" in auto_sheet([alone, four]).markdown().splitlines()[-1]


def test_a_method_that_loses_problems_is_not_the_better_one() -> None:
    careless: Measured = {ALONE: blocks(2, TIMES, wrong=1), FOUR: blocks(4, UNDER_LOAD)}
    assert auto_rows(careless)[0].better == SHIPPED.name
    rows = {row.name: row for row in method_rows(careless)}
    assert rows[BILD.name].lost == pytest.approx(1 / 6)


def test_methods_are_summed_over_loads_and_timed_one_at_a_time() -> None:
    rows = {row.name: row for row in method_rows(MEASURED)}
    ours = rows[SHIPPED.name]
    assert (ours.n, ours.accuracy.value, ours.alone, ours.drafts, ours.auroc) == (6, 1.0, 2, 12, 1.0)
    assert ours.to_large is not None
    assert (ours.to_large.value, ours.accepted, ours.threshold) == (0.5, 0.8, None)
    assert rows[REFLECTIVE.name].n == 2
    assert rows[TWO_LARGE.name].to_large is None
    lines = method_sheet(list(rows.values())).markdown().splitlines()
    assert lines[4] == "| long | large | large alone | 6 | 100% [61%, 100%] |  | 1.00 [1.00, 1.00] | 2 | 80% |  |  |"
    assert lines[5].endswith("| 80% | 1.000 of 12 | none |")


def test_figures_have_the_fields_of_every_arm_and_the_condition() -> None:
    rows = json_rows(MEASURED, ARMS, {"profile": "paced"})
    fields = {field.name for field in dataclasses.fields(Result)}
    for row in orjson.loads(orjson.dumps(rows)):
        assert fields | {"world", "concurrency", "judge", "profile", "problems_per_second", "cpu"} <= row.keys()
    assert [(row["name"], row["world"], row["judge"], row["concurrency"]) for row in rows[:2]] == [
        (LARGE.name, "long", "large", 1),
        (SHIPPED.name, "long", "large", 1),
    ]
    by_place = {(row["concurrency"], row["name"]): row for row in rows}
    assert by_place[4, SHIPPED.name]["ratio"] == 1.5
    assert by_place[4, AUTO.name]["auto"]["above"] is True
    assert by_place[4, SHIPPED.name]["auto"] is None
    assert by_place[1, SHIPPED.name]["over_all_loads"]["n"] == 6


def test_rows_of_other_tables_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "build" / "bench.json"
    write_rows(path, "methods", [{"name": "a"}])
    write_rows(path, "matrix", [{"name": "b"}])
    write_rows(path, "methods", [{"name": "c"}])
    assert orjson.loads(path.read_bytes()) == [{"name": "b", "table": "matrix"}, {"name": "c", "table": "methods"}]


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> tuple[PacedSolver, list[tuple[str, str, bool]]]:
    """A scripted solver in the place of the miniature pairs, and what was started."""
    solver, started = PacedSolver(lambda policy, problem: 0.004), list[tuple[str, str, bool]]()

    @asynccontextmanager
    async def miniature(
        profile: str, world: str, judge: str, *, two: bool, console: Console
    ) -> AsyncGenerator[Deployment]:
        started.append((world, judge, two))
        yield Deployment(solver.solver, solver.solver if two else None)

    monkeypatch.setattr(load_module, "miniature_deployment", miniature)
    return solver, started


def test_the_command_writes_its_figures_beside_others_and_resumes(
    deployed: tuple[PacedSolver, list[tuple[str, str, bool]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solver, started = deployed
    output = tmp_path / "bench.json"
    write_rows(output, "methods", [{"name": "large alone", "world": "short"}])
    options: dict[str, Any] = {"world": ["short"], "concurrency": "1,4", "output": output, "minutes": 3.8}
    patient: dict[str, Any] = {**options, "minutes": 20.0}
    main(**options, show_plan=True)
    assert started == []
    assert "minutes expected" in capsys.readouterr().out
    main(**options, as_markdown=True)
    rows = orjson.loads(output.read_bytes())
    assert rows[0] == {"name": "large alone", "world": "short", "table": "methods"}
    assert {(row["world"], row["judge"], row["concurrency"]) for row in rows[1:]} == {
        ("short", "large", 1),
        ("short", "large", 4),
    }
    assert started == [("short", "large", True)]
    printed = capsys.readouterr().out
    assert "| short | large | BiLD, steps | 16 |" in printed
    assert "auto is within 1.05 under" in printed
    path = tmp_path / "bench.short-large.blocks.jsonl"
    assert orjson.loads(path.read_bytes().splitlines()[0])["caches"] == "separate"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    solver.solved.clear()
    main(**options)
    assert len({problem for problem in solver.solved if problem}) >= 8
    assert len(started) == 2
    main(**options)
    assert len(started) == 2
    with pytest.raises(ConfigurationError, match="other: profile"):
        main(**patient, profile="slow")


def test_too_little_time_is_refused_before_any_server_starts(
    deployed: tuple[PacedSolver, list[tuple[str, str, bool]]], tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r"--minutes 2: one round under each condition takes 5"):
        main(minutes=2, world=["short"], output=tmp_path / "bench.json")
    assert deployed[1] == []
    assert list(tmp_path.iterdir()) == []


def test_judges_without_weights_are_left_out_by_name_unless_they_are_asked_for(
    deployed: tuple[PacedSolver, list[tuple[str, str, bool]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def short_only(name: str, world: str) -> bool:
        return world == "short"

    monkeypatch.setattr(matrix, "is_trained", short_only)
    options: dict[str, Any] = {"concurrency": "4", "output": tmp_path / "bench.json", "minutes": 5.0}
    main(**options)
    assert {pairing[:2] for pairing in deployed[1]} == {("short", "large")}
    named = "no weights: long, large; long, judge-90; long, judge-75"
    assert named in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr(matrix, "weights_digest", weights_of_nothing)
    with pytest.raises(ConfigurationError, match="no miniature model"):
        main(**options, judge=["judge-75"])


def weights_of_nothing(*names: str, world: str) -> str:
    raise ConfigurationError(f"no miniature model at {names[0]}")


def test_the_rounds_of_every_judge_have_the_same_problems() -> None:
    conduct = matrix.Conduct("paced", USUAL)
    first = conduct.tasks(Condition("long", "large", 4), 1)
    assert conduct.tasks(Condition("long", "judge-75", 4), 1) == first
    assert conduct.tasks(Condition("long", "judge-75", 4), 9)[0] not in first
    assert conduct.tasks(Condition("long", "large", 4), 1) == first
    assert conduct.tasks(Condition("long", "large", 1), 0)[0] not in first
