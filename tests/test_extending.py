"""A solver with things of a user's own: a policy as a class, and prompts from a folder."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from stepspec import Solver, prompts
from stepspec.evals import provenance
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Event, Started
from stepspec.policies import BUILT_IN, METHODS, SpecReason
from stepspec.settings import load

from .stand_in import FakeVllm
from .test_solver import PROBLEM, Servers, serving

GRADE = "specreason.grade"
MINE = "How good is it, of 9? \\boxed{x} {braces}\n---\nIt is {"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and a registry that forgets what a test adds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(METHODS, "_added", {})
    return tmp_path


class Lenient(SpecReason):
    """Accept every draft that has a grade."""

    __slots__ = ()


def folder(at: Path, **files: str) -> Path:
    at.mkdir(exist_ok=True)
    for name, text in files.items():
        (at / f"{name.replace('__', '.')}.txt").write_text(text)
    return at


def questions(servers: Iterable[FakeVllm]) -> list[str]:
    """What the judges read."""
    return [
        server.decode(body["prompt"])
        for server in servers
        for _, body in server.requests
        if body.get("logprob_token_ids")
    ]


async def test_a_class_is_a_policy_of_all_runs_or_of_one() -> None:
    started: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, Started):
            started.append(event.policy)

    async with serving() as servers:
        async with servers.solver(policy=Lenient, options={"threshold": 0}) as solver:
            assert solver.settings.policy == "Lenient"
            solution = await solver.solve(PROBLEM, observe=note)
            assert solution.ledger.accept_rate == 1
        async with servers.solver() as solver:
            await solver.solve(PROBLEM, policy=Lenient, observe=note)
            await solver.solve(PROBLEM, observe=note)
            resolved = solver.resolve(policy=Lenient, options={"threshold": 3})
            assert (resolved.policy, resolved.options) == ("Lenient", {"threshold": 3})
            with pytest.raises(ConfigurationError, match="policy 'Lenient', option 'threshold'"):
                await solver.solve(PROBLEM, policy=Lenient, options={"threshold": 11})
    assert started == ["Lenient", "Lenient", "specreason"]


async def judged(servers: Servers, solver: Solver) -> set[bool]:
    """Whether the judges of a run read the replacing prompt."""
    for server in servers.large:
        server.requests.clear()
    await solver.solve(PROBLEM)
    texts = questions(servers.large)
    assert texts
    return {
        "How good is it, of 9? \\boxed{x} {braces}" in text and text.endswith("It is {")
        for text in texts
    }


async def test_a_prompt_of_a_folder_replaces_the_one_of_its_name_for_the_runs_of_one_solver(
    nowhere: Path,
) -> None:
    mine = folder(nowhere / "mine", specreason__grade=MINE)
    async with serving() as servers:
        async with servers.solver(prompts_dir=mine) as own, servers.solver() as usual:
            assert await judged(servers, own) == {True}
            assert await judged(servers, usual) == {False}
            both = await asyncio.gather(own.solve(PROBLEM), usual.solve(PROBLEM))
        assert both[0].answer == both[1].answer
        assert {"How good is it" in text for text in questions(servers.large)} == {True, False}
    assert not prompts.load(GRADE).text.startswith("How good")


def test_the_hash_of_a_replaced_prompt_is_what_reports_quote(nowhere: Path) -> None:
    settings = load(prompts_dir=folder(nowhere / "mine", specreason__grade=MINE))
    usual = provenance.prompt_hashes()
    with prompts.replacing(settings.prompts):
        replaced = provenance.prompt_hashes()
    assert {name for name in usual if usual[name] != replaced[name]} == {GRADE}
    assert provenance.prompt_hashes() == usual


def test_the_hash_of_a_prompt_from_a_file_or_a_plugin_is_quoted_too(nowhere: Path) -> None:
    (nowhere / "mine.txt").write_text("Solve {problem}")
    prompt = prompts.load_file(nowhere / "mine.txt")
    assert provenance.prompt_hashes()[str(nowhere / "mine.txt")] == prompt.sha256


async def test_a_calibration_does_not_hold_for_another_prompt(
    nowhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = folder(nowhere / "mine", specreason__grade=MINE)
    about: dict[str, Any] = {
        "policy": "specreason",
        "option": "threshold",
        "value": 7.0,
        "max_loss": 0.01,
        "confidence": 0.95,
    }
    usual = load().conditions()
    del usual["options"]["threshold"]
    assert set(usual["prompts"]) == set(METHODS["specreason"].prompts)
    async with serving() as servers:
        for told, folder_of_prompts, differs in ((usual, None, False), (usual, mine, True)):
            settings = load(
                calibration={**about, "conditions": told}, prompts_dir=folder_of_prompts
            )
            small, large = servers.endpoints
            with caplog.at_level(logging.WARNING, "stepspec"):
                async with Solver(
                    settings.model_copy(update={"small": small, "large": large})
                ) as solver:
                    assert solver.settings.calibration is not None
                    run = solver.conditions(solver.settings.run)
                    assert bool(solver.settings.calibration.differences(run)) == differs
            warned = any(
                f"(other: prompts.{GRADE})" in record.getMessage() for record in caplog.records
            )
            assert warned == differs
            caplog.clear()


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({}, "holds no prompt: name a file as the one it replaces"),
        (
            {"specreason__grad": "x"},
            r"there is no prompt 'specreason.grad'; did you mean specreason.grade.txt\?",
        ),
        ({"zzz": "x"}, "there is no prompt 'zzz'; the prompts: check, "),
        ({"specreason__grade": " \n"}, "is empty"),
        (
            {"lookahead-reasoning__same": "Are they alike?"},
            r"the text needs \{step\}, as the original has",
        ),
    ],
)
def test_a_folder_that_replaces_nothing_is_refused(
    files: dict[str, str], complaint: str, nowhere: Path
) -> None:
    with pytest.raises(ConfigurationError, match=f"^prompts_dir: .*{complaint}"):
        load(prompts_dir=folder(nowhere / "mine", **files))


def test_a_folder_that_is_not_there_is_refused_from_a_variable_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STEPSPEC_PROMPTS_DIR", "gone")
    with pytest.raises(ConfigurationError, match="STEPSPEC_PROMPTS_DIR: gone is not a folder"):
        load()


@pytest.mark.parametrize(
    "name", sorted({each for method in BUILT_IN.values() for each in method.prompts})
)
def test_a_policy_reads_its_prompts_when_it_sends_them(name: str) -> None:
    replaced = prompts.PromptFile.parse("another text {step} {count}\n---\nso")
    found = [each for module in vars_of_policies() for each in module if each.name == name]
    assert found
    with prompts.replacing({name: replaced}):
        assert {(each.text, each.opening) for each in found} == {(replaced.text, "so")}


def vars_of_policies() -> list[list[prompts.Prompt]]:
    """The prompts that the modules of policies hold; none of them holds a text of one."""
    found: list[list[prompts.Prompt]] = []
    for name, module in sys.modules.items():
        if name.startswith("stepspec.policies."):
            values: list[object] = []
            for value in vars(module).values():
                values += (
                    cast("dict[str, object]", value).values()
                    if isinstance(value, dict)
                    else [value]
                )
            texts = {each.text for each in prompts.known().values()}
            assert not [value for value in values if isinstance(value, str) and value in texts], (
                name
            )
            found.append([value for value in values if isinstance(value, prompts.Prompt)])
    return found
