"""A solver whose threshold and depth follow its runs, and the settings file with the result."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from stepspec import Solver, settings
from stepspec.api import Models
from stepspec.cli.tune import learn_from
from stepspec.evals.cli import arm
from stepspec.evals.sample import Arm, solve_once
from stepspec.orchestrator import Accept, Step
from stepspec.orchestrator.errors import ConfigurationError, EndpointUnavailable
from stepspec.orchestrator.events import Adapted, Committed, Drafted, Event, Judged, Started
from stepspec.orchestrator.feedback.adaptation import Adaptable
from stepspec.orchestrator.feedback.learning import Learnings, start_learning
from stepspec.orchestrator.interfaces import Policy
from stepspec.orchestrator.lookahead import LookaheadControl
from stepspec.orchestrator.trace import Moment, read, write
from stepspec.policies import THRESHOLDS, adaptable, options
from stepspec.settings import Settings

from .orchestrator.endpoints.server import Refuse
from .test_solver import CALIBRATION, PROBLEM, calibrated, serving

SPECREASON, REWARD = (Adaptable(THRESHOLDS[name], default) for name, default in (("specreason", 7.0), ("reward", 0.7)))


def learnings(chosen: Settings) -> Learnings:
    return Learnings(chosen, adaptable, chosen.calibration)


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)


def moments(grade: float, drafts: int, *, policy: str = "specreason") -> list[Moment]:
    """A run whose drafts all have the *grade*, and are accepted: 1 s to draft, 3 s to judge."""
    found, at = [Moment(0.0, Started((), policy))], 0.0
    for index in range(drafts):
        draft = Step("a.\n\n", "small")
        found += [Moment(at + 1, Drafted(index, draft)), Moment(at + 4, Judged(index, draft, Accept(grade)))]
        found.append(Moment(at + 4, Committed(index, draft, grade)))
        at += 4
    return found


async def solved(solver: Solver, **choices: Any) -> Adapted | None:
    """What a run of *solver* was given; None if it was not adapted."""
    events: list[Event] = []
    await solver.solve(PROBLEM, observe=events.append, **choices)
    kinds = [type(event) for event in events]
    assert Adapted not in kinds or kinds.index(Adapted) == 1
    return next((event for event in events if isinstance(event, Adapted)), None)


async def test_a_run_uses_the_adaptation_of_earlier_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[float, int]] = []
    async with serving() as servers, servers.solver(options={"threshold": 9}, adapt=0.3, ahead=4) as solver:
        made, ahead = solver._policy, solver._ahead  # pyright: ignore[reportPrivateUsage]

        def policy(models: Models, settings: Settings) -> Policy:
            used.append((settings.options["threshold"], -1))
            return made(models, settings)

        def depth(settings: Settings) -> LookaheadControl:
            used[-1] = used[-1][0], settings.ahead
            return ahead(settings)

        monkeypatch.setattr(solver, "_policy", policy)
        monkeypatch.setattr(solver, "_ahead", depth)
        assert solver.adaptation is not None
        adapted = list[Adapted | None]()
        for _ in range(5):
            adapted.append(await solved(solver))
            solver.adaptation.learn(moments(8.0, 40))
    assert [(one.option, one.value, one.ahead) for one in adapted if one] == [
        ("threshold", value, depth) for value, depth in used
    ]
    assert [value for value, _ in used] == [9, 9, 9, 8, 8]  # the judge says 8, and three tenths may be bad
    assert [one.runs for one in adapted if one] == [0, 2, 4, 6, 8]


async def test_without_adapt_nothing_is_reported_and_nothing_learnt() -> None:
    async with serving() as servers, servers.solver() as solver:
        assert solver.adaptation is None
        assert await solved(solver) is None
        assert (await solved(solver, adapt=0.1)) == Adapted("threshold", 7.0, 2, 0)
        assert (await solved(solver, adapt=0.1)) == Adapted("threshold", 7.0, 2, 1)
        assert (await solved(solver, adapt=0.1, ahead=1)) == Adapted("threshold", 7.0, 1, 0)


async def test_baselines_have_nothing_to_adapt() -> None:
    async with serving() as servers, servers.solver(adapt=0.1) as solver:
        assert [await solved(solver, policy=policy) for policy in ("large", "small")] == [None, None]


async def test_a_run_that_fails_is_learnt_from_and_fails_as_it_would() -> None:
    async with serving() as servers, servers.solver(adapt=0.1) as solver:
        for each in servers.large:
            each.faults.extend([Refuse(500, "dead")] * 99)
        with pytest.raises(EndpointUnavailable):
            await solver.solve(PROBLEM)
        assert solver.adaptation is not None
        assert solver.adaptation.adaptation.runs == 1


async def test_the_next_run_reports_the_findings_of_shadow_checks() -> None:
    async with serving() as servers, servers.solver(adapt=0.1, shadow=1.0) as solver:
        first = await solved(solver)
        await solver.shadows.settled()
        second = await solved(solver)
    assert first is not None
    assert second is not None
    assert first.checks == ()
    assert second.checks == ((9.0, True),) * 3
    assert second.own == (True,) * 3


async def test_the_load_reduces_the_learnt_depth() -> None:
    async with serving() as servers, servers.solver(adapt=0.1, ahead=4) as solver:
        solver.large_load.share = 0.5
        adapted = await solved(solver)
        assert adapted is not None
        settings = solver.settings.with_overrides({"ahead": adapted.ahead})
        assert solver._ahead(settings).depth() == 2  # pyright: ignore[reportPrivateUsage]


async def test_runs_with_sure_bets_make_only_sure_bets() -> None:
    async with serving() as servers, servers.solver() as solver:
        doubt = solver.sure_bets.doubt
        await solver.solve(PROBLEM)
        assert solver.sure_bets.doubt == doubt
        await solver.solve(PROBLEM, sure_bets=True)
        assert solver.sure_bets.doubt > doubt


async def test_an_arm_of_an_evaluation_never_adapts() -> None:
    plain, sure = Arm.of("plain", "specreason"), Arm.of("sure", "specreason", sure_bets=True)
    async with serving() as servers, servers.solver(adapt=0.1) as solver:
        events: list[Event] = []
        doubts: list[float] = []
        for arm in (plain, sure):
            await solve_once(solver, arm, PROBLEM, observe=events.append)
            doubts.append(solver.sure_bets.doubt)
    assert not any(isinstance(event, Adapted) for event in events)
    assert doubts[0] < doubts[1]


def test_only_thresholds_of_scores_are_adapted() -> None:
    assert start_learning("specreason", {}, 2, 0.1, SPECREASON).option == "threshold"
    assert start_learning("reward", {"threshold": 0.75}, 2, 0.1, REWARD).adaptation.choice.threshold == 0.75
    for policy in ("bild", "cascade", "reflective"):
        found = start_learning(policy, {}, 2, 0.1, adaptable(policy, {}) or Adaptable())
        assert (found.option, found.adaptation.thresholds) == ("", ())


def test_adaptation_never_loosens_a_calibrated_threshold(tmp_path: Path) -> None:
    (tmp_path / "stepspec.toml").write_text(calibrated())
    covered = settings.load(options={"threshold": 6.0}, adapt=0.5)
    other = settings.load(options={"threshold": 5.0}, adapt=0.5)
    assert CALIBRATION["value"] == 6.0
    promised, free = (learnings(each).of(each) for each in (covered, other))
    assert promised is not None
    assert free is not None
    assert (min(promised.adaptation.thresholds), min(free.adaptation.thresholds)) == (6.0, 0.0)
    for _ in range(9):
        for each in (promised, free):
            each.learn(moments(9.0, 20))
            each.learn(moments(5.5, 20))
    assert (promised.adaptation.choice.threshold, free.adaptation.choice.threshold) == (6.0, 5.0)


def test_options_of_a_request_are_not_adapted() -> None:
    """As a client of the service may; what it repeats of the settings is not of its own."""
    chosen = settings.load(options={"threshold": 8, "read": "greedy"}, adapt=0.1)
    known = learnings(chosen)
    same = known.of(chosen.with_overrides({"options": {"threshold": 8, "read": "greedy"}}))
    assert same is known.of(chosen)
    own, without, explicit = (
        known.of(chosen.with_overrides({"options": {"threshold": 9}})),
        known.of(chosen.with_overrides({"options": {}})),
        known.of(chosen.with_overrides({"options": {"threshold": 9}}), limited=True),
    )
    assert [one.option if one else None for one in (same, own, without, explicit)] == ["threshold", "", "", "threshold"]
    assert own is not None
    assert own.options(own.begin()) == {"threshold": 9}


def test_the_adaptations_of_the_oldest_settings_are_dropped() -> None:
    chosen = settings.load(adapt=0.1)
    known = learnings(chosen)
    first = known.of(chosen)
    variants = [chosen.with_overrides({"ahead": ahead}) for ahead in range(100, 164)]
    for each in variants:
        known.of(each)
    assert known.of(variants[-1]) is known.of(variants[-1])
    assert known.of(chosen) is not first


def test_a_limit_that_cannot_be_kept_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    found = start_learning("specreason", {}, 2, 0.05, SPECREASON)
    with caplog.at_level(logging.WARNING, "stepspec"):
        for _ in range(9):
            found.learn(moments(7.0, 40))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert "no threshold of specreason that accepts anything keeps the share of bad steps at 0.05" in messages[0]
    assert found.frozen()["options"]["threshold"] > 7  # at which nothing is accepted


def recorded(folder: Path, *grades: float, policy: str = "specreason") -> list[Path]:
    paths = [folder / f"{policy}-{number}.jsonl" for number in range(len(grades))]
    for path, grade in zip(paths, grades, strict=True):
        write(path, moments(grade, 40, policy=policy))
    return paths


def test_traces_give_the_adaptation_of_their_runs_as_a_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings.load(options={"threshold": 9, "read": "greedy"}, adapt=0.3, ahead=4)
    traces = recorded(tmp_path, *[8.0] * 8)
    found = learn_from(chosen, [*recorded(tmp_path, 9.0, policy="bild"), *traces])
    live = learnings(chosen).of(chosen)
    assert live is not None
    for path in traces:
        live.learn(read(path))
    assert found.frozen() == live.frozen()
    assert found.frozen() == {"policy": "specreason", "ahead": 3, "options": {"threshold": 8.0, "read": "greedy"}}
    (tmp_path / "learnt.toml").write_text(found.toml())
    assert "# Learnt from 8 runs of specreason: at most " in found.toml()
    monkeypatch.setenv("STEPSPEC_CONFIG", str(tmp_path / "learnt.toml"))
    again = settings.load()
    assert (again.policy, again.ahead, again.options, again.adapt) == (*found.frozen().values(), 0.0)
    assert arm(str(tmp_path / "learnt.toml")).options == again.options
    assert set(again.options) <= set(options("specreason"))


def test_a_file_with_only_a_learnt_depth_has_a_comment(tmp_path: Path) -> None:
    found = learn_from(settings.load(policy="bild", adapt=0.1), recorded(tmp_path, 1.0, policy="bild"))
    assert "only the depth is adapted" in found.toml()
    assert found.frozen() == {"policy": "bild", "ahead": 2, "options": {}}


@pytest.mark.parametrize(
    ("chosen", "complaint"),
    [
        ({}, "nothing to adapt with adapt = 0 .*--adapt"),
        ({"adapt": 0.1, "policy": "large"}, "nothing to adapt .*policy 'large'"),
        ({"adapt": 0.1, "policy": "bild"}, "no trace of 'bild' among 1, which are of: specreason"),
    ],
)
def test_traces_that_teach_nothing_are_refused(chosen: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        learn_from(settings.load(**chosen), recorded(tmp_path, 9.0))


def test_a_file_that_is_no_trace_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text("{}\n")
    for name, complaint in (("broken", "not a line of a trace"), ("missing", "No such file")):
        with pytest.raises(ConfigurationError, match=rf"{name}\.jsonl: {complaint}"):
            learn_from(settings.load(adapt=0.1), [tmp_path / f"{name}.jsonl"])


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ConfigurationError, match="adapt: Input should be"):
        settings.load(adapt=share)
