"""
The example plugin, installed as users install it: chosen by name wherever the built-in things are.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from math import exp
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stepspec import policies
from stepspec.evals.benchmarks import BUILT_IN as BENCHMARKS
from stepspec.evals.benchmarks import load, read_benchmark
from stepspec.orchestrator.registry import Registry
from stepspec.policies.method import read_method

from .. import program
from ..stand_in import stand_in_process

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the plugin in it."""
    folder = tmp_path_factory.mktemp("site")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
    ]
    flags = ["--no-build-isolation", "--no-deps", "--target", str(folder)]
    subprocess.run([*install, *flags, str(PLUGIN)], check=True)
    return folder


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str]]:
    with (
        stand_in_process("--model", "tiny", "--steps", "4") as small,
        stand_in_process("--model", "big", "--steps", "4") as large,
    ):
        yield small, large


def stepspec(site: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in an environment with the packages of *site*."""
    command = [sys.executable, "-m", "stepspec", *arguments]
    return subprocess.run(
        command, env=environment(site), cwd=cwd, capture_output=True, text=True, check=False
    )


def environment(site: Path) -> dict[str, str]:
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "120"}


def printed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_listed_and_explained_like_a_built_in_policy(site: Path, tmp_path: Path) -> None:
    listed = json.loads(printed(stepspec(site, "policies", "--json", cwd=tmp_path)))
    assert set(listed) == {*policies.BUILT_IN, "confident"}
    options = listed["confident"]["options"]
    assert {name: option["default"] for name, option in options.items()} == {
        "threshold": 0.5,
        "agreement": 0.5,
    }
    explained = json.loads(printed(stepspec(site, "policies", "confident", "--json", cwd=tmp_path)))
    assert explained["options"]["threshold"]["values"] == "a number from 0 to 1"
    assert explained["options"]["threshold"]["means"].startswith(
        "The small model is sure of a draft if"
    )


def test_it_solves(site: Path, servers: tuple[str, str], tmp_path: Path) -> None:
    small, large = servers
    both = ("--small", small, "--large", large)
    chosen = ("--policy", "confident", "--option", "threshold=1", "--no-auto", "--json")
    solution = json.loads(
        printed(stepspec(site, "solve", "What is 6 x 7?", *both, *chosen, cwd=tmp_path))
    )
    assert solution["answer"] == "42"
    assert solution["ledger"]["accepted"] == solution["ledger"]["drafts"] > 0
    # the large model's yes
    assert [step["grade"] for step in solution["steps"]] == pytest.approx([exp(-0.1)] * 4)


def test_an_arm_of_it_is_measured_on_its_benchmark(
    site: Path, servers: tuple[str, str], tmp_path: Path
) -> None:
    both = ("--small", servers[0], "--large", servers[1])
    arm = ("--policy", "confident:threshold=0.7", "--baseline", "large", "--limit", "2")
    summaries = json.loads(
        printed(stepspec(site, "eval", "units", *both, *arm, "--json", cwd=tmp_path))
    )
    assert [summary["name"] for summary in summaries] == [
        "large alone",
        "confident:threshold=0.7",
    ]
    about = json.loads((tmp_path / "runs/units/run.json").read_text())
    assert about["benchmark"]["name"] == "units"
    assert about["benchmark"]["prompt"] == "eval.boxed"


async def test_the_service_offers_it_as_a_model(
    site: Path, servers: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", environment(site)["PYTHONPATH"])
    async with (
        program.serve(*servers, tmp_path / "log") as service,
        aiohttp.ClientSession(service.base) as client,
    ):
        models = await (await client.get("/v1/models")).json()
        assert "confident" in [model["id"] for model in models["data"]]
        body = {"model": "confident", "messages": [{"role": "user", "content": "What is 6 x 7?"}]}
        reply = await (await client.post("/v1/chat/completions", json=body)).json()
        assert reply["model"] == "confident"
        assert reply["choices"][0]["message"]["content"] == r"The answer is \boxed{42}."
        wrong = await client.post(
            "/v1/chat/completions", json={**body, "stepspec": {"options": {"threshold": 2}}}
        )
        assert wrong.status == 400
        assert "a number from 0 to 1" in await wrong.text()


def test_its_parts_are_what_the_registries_take(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    methods = Registry("policy", "policies", "stepspec.policies", policies.BUILT_IN, read_method)
    method = methods.find("confident")
    assert method.threshold is not None
    assert method.threshold.option == "threshold"
    assert method.prompts == ("confident.check",)
    benchmarks = Registry(
        "benchmark", "benchmarks", "stepspec.benchmarks", BENCHMARKS, read_benchmark
    )
    tasks = load(benchmarks.find("units"))
    assert [str(task.gold) for task in tasks] == ["205", "2800", "6000", "900", "72", "80"]
    assert "boxed" in tasks[0].problem
    assert methods.broken == benchmarks.broken == {}


def test_a_broken_plugin_is_named_and_disturbs_nothing_else(site: Path, tmp_path: Path) -> None:
    package = tmp_path / "site" / "stepspec_broken-2.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: stepspec-broken\nVersion: 2.0\n"
    )
    (package / "entry_points.txt").write_text(
        "[stepspec.policies]\ngone = stepspec_gone:Gone\nspecreason = json:dumps\ntext ="
        " json:__name__\n"
    )
    both = Path(os.pathsep.join([str(site), str(package.parent)]))
    done = stepspec(both, "policies", "--json", cwd=tmp_path)
    assert set(json.loads(printed(done))) == {*policies.BUILT_IN, "confident"}
    said = " ".join(done.stderr.split())
    assert "the policy 'gone' of stepspec-broken 2.0 cannot be used: ModuleNotFoundError" in said
    assert (
        "the policy 'specreason' of stepspec-broken 2.0 cannot be used: stepspec has this name"
        " itself" in said
    )
    assert "the policy 'text' of stepspec-broken 2.0 cannot be used: 'json' is neither" in said
    done = stepspec(
        both,
        "solve",
        "1 + 1?",
        "--policy",
        "gone",
        "--small",
        "http://a",
        "--large",
        "http://b",
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "No module named 'stepspec_gone'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_entry_points_of_its_project_file_are_those_that_stepspec_reads() -> None:
    project: dict[str, Any] = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    assert set(project["entry-points"]) == {"stepspec.policies", "stepspec.benchmarks"}


def test_the_code_in_the_documents_is_that_of_the_example() -> None:
    page = (ROOT / "docs" / "extend.md").read_text()
    sources = [
        path.read_text() for path in [PLUGIN / "pyproject.toml", *sorted(PLUGIN.rglob("*.py"))]
    ]
    blocks = re.findall(r"^```(?:python|toml)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    shown = [block for block in blocks if any(block in source for source in sources)]
    assert len(shown) == 4
    assert [block.splitlines()[0] for block in blocks if block not in shown] == [
        "from functools import partial",
        "from stepspec import Candidate, Rating, solve",
        "[critic]",  # of verifiers, which examples/verifier shows
        "import httpx",
        (
            'prompts_dir = "my-prompts"    # my-prompts/specreason.grade.txt replaces the question'
            " of SpecReason"
        ),
    ]


def test_its_threshold_is_calibrated_with_its_prompt_among_the_conditions(
    site: Path, servers: tuple[str, str], tmp_path: Path
) -> None:
    both = ("--small", servers[0], "--large", servers[1])
    # what so few problems can promise
    loose = ("--max-loss", "0.9", "--confidence", "0.5", "--output", "policy.toml")
    printed(
        stepspec(site, "calibrate", "units", "--policy", "confident", *both, *loose, cwd=tmp_path)
    )
    file = tomllib.loads((tmp_path / "policy.toml").read_text())
    assert (file["policy"], file["calibration"]["option"]) == ("confident", "threshold")
    assert set(file["calibration"]["conditions"]["prompts"]) == {"confident.check"}
    served = stepspec(
        site, "solve", "What is 6 x 7?", "--config", "policy.toml", *both, "--json", cwd=tmp_path
    )
    assert json.loads(printed(served))["answer"] == "42"
    assert "its promise does not hold" not in served.stderr
    own = tmp_path / "prompts"
    own.mkdir()
    (own / "confident.check.txt").write_text("Is it right? Yes or No.\n")
    environ = environment(site) | {"STEPSPEC_PROMPTS_DIR": str(own)}
    command = [
        sys.executable,
        "-m",
        "stepspec",
        "solve",
        "What is 6 x 7?",
        "--config",
        "policy.toml",
        *both,
    ]
    other = subprocess.run(
        command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "(other: prompts.confident.check): its promise does not hold" in " ".join(
        other.stderr.split()
    )
