"""Every flag and every variable for vLLM exists, by its own parser and its own list."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from .files import COMPOSED, Tree, composed


def test_vllm_takes_every_command_line(parsed: Mapping[str, str]) -> None:
    refusals = dict(parsed)
    assert "--no-such-flag" in refusals.pop("a wrong one")
    assert len(refusals) > 10
    assert not {name: why for name, why in refusals.items() if why}


@pytest.fixture(scope="module")
def known() -> set[str]:
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    return set(re.findall(r'"(VLLM_\w+)"', (Path(found.origin).parent / "envs.py").read_text()))


def test_vllm_knows_every_variable(known: set[str], rendered: Mapping[str, list[Tree]]) -> None:
    named = {
        variable
        for name in COMPOSED
        for one in composed(name)["services"].values()
        for variable in one.get("environment", ())
    } | {
        variable["name"]
        for objects in rendered.values()
        for each in objects
        if each["kind"] == "StatefulSet"
        for container in each["spec"]["template"]["spec"]["containers"]
        for variable in container["env"]
    }
    of_vllm = {name for name in named if name.startswith("VLLM_")}
    assert of_vllm == {"VLLM_NO_USAGE_STATS", "VLLM_API_KEY"}
    assert of_vllm <= known
