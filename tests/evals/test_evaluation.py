"""One evaluation over servers with scripted models: its folder, and later sessions in it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from stepspec import Solver
from stepspec.cli.eval import arms
from stepspec.evals import provenance
from stepspec.evals.benchmarks import find
from stepspec.evals.evaluation import Evaluation, evaluate
from stepspec.evals.grading.graders import Answer
from stepspec.evals.plan import Plan
from stepspec.evals.runner import LocalWorker, WorkerSlot
from stepspec.evals.sample import Task
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import ConfigurationError, EndpointUnavailable
from stepspec.orchestrator.trace import read
from stepspec.settings import Settings
from tests.fakes import replay

from ..stand_in import FakeVllm, Refuse

TASKS = (
    Task("What is 1 + 1?", Answer("2", "exact"), "first"),
    Task("What is 1 + 2?", Answer("3", "exact"), "second"),
)
SCRIPT = ("So", " one", ".\n\n", "Then", " two", ".\n\n", "Done", "</think>", "\n\n\\boxed{2}")
QUIET = Console(quiet=True)


def evaluation(folder: Path, **changed: Any) -> Evaluation:
    competing = arms(["specreason"], ["large", "small"])
    plan = Plan(TASKS, competing, GREEDY, Budget(tokens=256))
    return replace(
        Evaluation(find("arithmetic"), plan, folder, provenance.digest(TASKS)), **changed
    )


@asynccontextmanager
async def solving() -> AsyncGenerator[tuple[Solver, FakeVllm]]:
    small = FakeVllm(SCRIPT, digits={"9": -0.1})
    large = replace(small, requests=[])
    async with (
        small.serve("small") as s,
        large.serve("large", retries=0) as one,
        Solver(s, one) as solver,
    ):
        yield solver, large


async def test_a_run_folder_records_the_measurement_its_conditions_and_its_results(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    async with solving() as (solver, _):
        standings = await evaluate(
            solver, evaluation(folder, traces=True, remarks=("Beware.",)), QUIET
        )
    assert [s.name for s in standings] == [
        "large alone", "small alone", "specreason", "oracle (bound)",
    ]  # fmt: skip
    assert {(s.n, s.accuracy.value) for s in standings} == {(2, 0.5)}
    record = orjson.loads((folder / "run.json").read_bytes())
    (session,) = record["sessions"]
    assert record["about"]["problems"] == provenance.digest(TASKS)
    assert record["about"]["models"] == {"small": "fake", "large": "fake"}
    assert record["benchmark"]["licence"] == "Apache-2.0"
    assert [server["role"] for server in session["servers"]] == ["small", "large"]
    assert all(server["url"].startswith("http") for server in session["servers"])
    assert session["prompts"] == provenance.prompt_hashes()
    assert session["remarks"] == ["Beware."]
    assert {"date", "command", "commit", "python", "versions", "ended"} <= session.keys()
    lines = (folder / "samples.jsonl").read_bytes().splitlines()
    assert len(lines) == 1 + 3 * len(TASKS)
    assert orjson.loads(lines[1])["outcome"] == "right"
    problems = [
        orjson.loads(line) for line in (folder / "problems.jsonl").read_bytes().splitlines()
    ]
    assert [(p["number"], p["name"], p["answer"]) for p in problems] == [
        (0, "first", "2"),
        (1, "second", "3"),
    ]
    traces = sorted(path.name for path in (folder / "traces").iterdir())
    assert len(traces) == 6
    chain = replay(moment.event for moment in read(folder / "traces" / "00000-specreason.jsonl"))
    assert chain.text.endswith(r"\boxed{2}")


async def test_the_same_evaluation_is_resumed_and_another_one_is_refused(tmp_path: Path) -> None:
    async with solving() as (solver, large):
        first = await evaluate(solver, evaluation(tmp_path), QUIET)
        before = len(large.requests)
        again = await evaluate(solver, evaluation(tmp_path), QUIET)
        writes = [path for path, _ in large.requests[before:] if path == "/v1/completions"]
        assert again == first
        assert writes == []  # nor is there anything to warm up for
        listed = (tmp_path / "problems.jsonl").read_bytes()
        fewer = evaluation(
            tmp_path,
            plan=replace(evaluation(tmp_path).plan, tasks=evaluation(tmp_path).plan.tasks[:1]),
        )
        await evaluate(solver, fewer, QUIET)
        # of all the samples that are there
        assert (tmp_path / "problems.jsonl").read_bytes() == listed
        other = evaluation(tmp_path, plan=replace(evaluation(tmp_path).plan, seed=1))
        with pytest.raises(
            ConfigurationError, match=r"holds another run \(other: seed\).*--output.*--fresh"
        ):
            await evaluate(solver, other, QUIET)
        await evaluate(solver, replace(other, fresh=True), QUIET)
    assert len(orjson.loads((tmp_path / "run.json").read_bytes())["sessions"]) == 1


async def test_samples_before_the_loss_of_a_server_are_kept_and_the_next_session_adds_the_rest(
    tmp_path: Path,
) -> None:
    console = Console(width=300)
    async with solving() as (solver, large):
        only = replace(evaluation(tmp_path).plan, tasks=TASKS[:1])
        await evaluate(solver, evaluation(tmp_path, plan=only), QUIET)
        large.faults.extend([None] * 10 + [Refuse(500, "dead")] * 99)
        with console.capture() as captured, pytest.raises(EndpointUnavailable, match="dead"):
            await evaluate(solver, evaluation(tmp_path), console)
        large.faults.clear()
        async with asyncio.timeout(10):
            while solver.down:  # noqa: ASYNC110  # The breaker sets no event for others.
                await asyncio.sleep(0.05)  # until a probe passes
        standings = await evaluate(solver, evaluation(tmp_path), QUIET)
    assert "the same command goes on from there" in captured.get()
    assert {s.n for s in standings} == {2}
    sessions = orjson.loads((tmp_path / "run.json").read_bytes())["sessions"]
    assert [("ended" in session) for session in sessions] == [True, False, True]
    assert sessions[1]["resumed"] == 3


async def test_problems_that_are_all_too_long_are_reported(tmp_path: Path) -> None:
    plan = replace(evaluation(tmp_path).plan, tasks=(Task("one " * 2000, Answer("1", "exact")),))
    async with solving() as (solver, _):
        with pytest.raises(ConfigurationError, match="no problem fits into the models' contexts"):
            await evaluate(solver, evaluation(tmp_path, plan=plan), QUIET)
    lines = (tmp_path / "samples.jsonl").read_bytes().splitlines()
    assert {orjson.loads(line)["outcome"] for line in lines[1:]} == {"failed"}


def test_the_commit_is_that_of_the_clone_with_a_plus_if_it_was_changed(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        named = ("-c", "user.name=nobody", "-c", "user.email=nobody@nowhere.invalid")
        run = subprocess.run(
            ["git", *named, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return run.stdout.strip()

    ours = tmp_path / "ours.py"
    others = tmp_path / "others.py"
    for file in (ours, others):
        file.write_text("1")
    assert provenance.commit(ours) is None
    git("init", "--quiet")
    git("add", "ours.py")
    git("commit", "--quiet", "--message", "one")
    assert provenance.commit(others) is None
    assert provenance.commit(ours) == git("rev-parse", "HEAD")
    ours.write_text("2")
    assert provenance.commit(ours) == git("rev-parse", "HEAD") + "+"


def test_the_digest_depends_on_problems_and_answers() -> None:
    digests = {
        provenance.digest(TASKS),
        provenance.digest(TASKS[::-1]),
        provenance.digest((TASKS[0], replace(TASKS[1], gold=Answer("4", "exact")))),
    }
    assert len(digests) == 3
    assert provenance.digest((replace(TASKS[0], name="other"), TASKS[1])) in digests


class Others:
    """A team of two, who in truth are this process."""

    def __init__(self) -> None:
        self.posted: list[Settings] = []

    def slots(self, settings: Settings, plan: Plan) -> list[WorkerSlot]:
        self.posted.append(settings)
        return [partial(self._hired, settings, plan, name) for name in ("one", "two")]

    @asynccontextmanager
    async def _hired(
        self, settings: Settings, plan: Plan, name: str
    ) -> AsyncGenerator[LocalWorker]:
        async with Solver(settings) as solver:
            yield LocalWorker(solver, plan, name)

    def record(self) -> dict[str, Any]:
        return {"workers": 2}


async def test_workers_add_samples_to_the_same_folder_and_the_session_records_them(
    tmp_path: Path,
) -> None:
    team = Others()
    plan = evaluation(tmp_path).plan
    async with solving() as (solver, _):
        await evaluate(solver, evaluation(tmp_path, plan=replace(plan, tasks=TASKS[:1])), QUIET)
        shared = await evaluate(solver, evaluation(tmp_path, traces=True), QUIET, team)
        alone = await evaluate(solver, evaluation(tmp_path / "alone"), QUIET)
        assert team.posted == [solver.settings]
    outcomes = [(each.name, each.n, each.accuracy.value, each.outcomes) for each in shared]
    assert outcomes == [(each.name, each.n, each.accuracy.value, each.outcomes) for each in alone]
    sessions = orjson.loads((tmp_path / "run.json").read_bytes())["sessions"]
    assert [session.get("ray") for session in sessions] == [None, {"workers": 2}]
    assert len(list((tmp_path / "traces").iterdir())) == 3


def test_the_record_of_a_command_has_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [
        "eval",
        "gsm8k",
        "--small-api-key",
        "secret",
        "--large-api-key=se=cret",
        "--critic-api-key",
        "--secret",
    ]
    monkeypatch.setattr("sys.argv", ["/bin/stepspec", *words, "--data=x=1", "--limit", "3"])
    assert provenance.program()["command"] == [
        *(
            "stepspec",
            "eval",
            "gsm8k",
            "--small-api-key",
            "***",
            "--large-api-key=***",
            "--critic-api-key",
            "***",
        ),
        *("--data=x=1", "--limit", "3"),
    ]
