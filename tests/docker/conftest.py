from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml

from stepspec.servers.launcher.commands import servers
from stepspec.servers.launcher.pair import load

from .charts import BAD, GOOD
from .files import CHART, COMPOSED, ROOT, Tree, composed, outside, run


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without the settings that a developer might have in it, to put others into."""
    for variable in set(os.environ) - set(outside()):
        monkeypatch.delenv(variable)
    return monkeypatch


def _run_script(module: str, cases: Mapping[str, Any], *arguments: str) -> Any:
    """Run one of this folder's programs on *cases*."""
    environment = {**outside(), "VLLM_LOGGING_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}
    command = (sys.executable, "-m", f"tests.docker.{module}", *arguments)
    done = run(*command, input=json.dumps(cases), cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def outcomes() -> Mapping[str, Tree]:
    """What Helm makes of each set of values."""
    result: Mapping[str, Tree] = _run_script(
        "rendering", GOOD | {name: bad for name, (bad, _) in BAD.items()}, str(CHART)
    )
    return result


@pytest.fixture(scope="session")
def rendered(outcomes: Mapping[str, Tree]) -> Mapping[str, list[Tree]]:
    """The objects of each good set of values."""
    return {
        name: [
            each
            for path, text in outcomes[name]["files"].items()
            if not path.endswith("NOTES.txt")
            for each in yaml.safe_load_all(text)
            if each
        ]
        for name in GOOD
    }


@pytest.fixture(scope="session")
def parsed(rendered: Mapping[str, list[Tree]]) -> Mapping[str, str]:
    """
    What vLLM's parser says of the command lines of compose files, charts and recipes, by where they
    stand.
    """
    lines: dict[str, Sequence[str]] = {"a wrong one": ["model", "--no-such-flag"]}
    for name in COMPOSED:
        for service, one in composed(name)["services"].items():
            if one.get("entrypoint") == ["vllm", "serve"]:
                lines[f"{name} {service}"] = one["command"]
    for name, objects in rendered.items():
        for each in objects:
            if each["kind"] == "StatefulSet":
                (container,) = each["spec"]["template"]["spec"]["containers"]
                assert 'exec vllm serve "$@"' in container["command"][2]
                lines[f"chart {name} {each['metadata']['name']}"] = container["args"]
    for recipe in sorted((ROOT / "recipes").glob("*.toml")):
        for server in servers(load(recipe)):
            lines[f"recipe {recipe.stem} {server.name}"] = server.command(8000)[
                len(server.program) :
            ]
    refused: Mapping[str, str] = _run_script("vllm_flags", lines)
    return refused
