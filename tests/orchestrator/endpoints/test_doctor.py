"""What the doctor finds, and what he says about it."""

from __future__ import annotations

from dataclasses import asdict, replace
from io import StringIO
from typing import Any

import orjson
import pytest
from rich.console import Console

from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.endpoints.doctor import COSTS, Diagnosis, Examined, conclude, diagnose, render
from stepspec.orchestrator.endpoints.probe import Capabilities

from .server import FakeVllm

ALL = Capabilities("0.32.0", True, True, True, True, True, True, True, True, False)
GOOD = Examined("large", "http://l", "", "big", 4096, "v", True, True, 0.97, 0.1, 0.03, ALL)
FAST = replace(GOOD, role="small", url="http://s", model="tiny", between=0.006)


def without(name: str, value: bool | None) -> Capabilities:
    fields: dict[str, Any] = {name: value}
    return replace(ALL, **fields)


def shown(diagnosis: Diagnosis) -> str:
    console = Console(width=160, file=StringIO())
    with console.capture() as capture:
        console.print(render(diagnosis))
    return capture.get()


def test_nothing_is_said_about_a_pair_that_lacks_nothing() -> None:
    diagnosis = conclude(FAST, GOOD)
    assert diagnosis.same_vocabulary
    assert diagnosis.notes == ()
    assert "Nothing is missing." in shown(diagnosis)
    assert "0.32.0" in shown(diagnosis)


@pytest.mark.parametrize("name", COSTS)
def test_what_is_missing_is_named_with_its_cost(name: str) -> None:
    lacking = replace(GOOD, can=without(name, False))
    assert conclude(FAST, lacking).notes == (f"large: no {name.replace('_', ' ')}: {COSTS[name]}",)
    unknown = replace(GOOD, can=without(name, None))
    assert conclude(FAST, unknown).notes == ()


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"vocabulary": "w"}, "the vocabularies differ"),
        ({"digits": 0.1}, "puts 10% on digits"),
        ({"between": 0.007}, "speculation cannot pay"),
        ({"thinks": False}, "opens no thinking block"),
        ({"faithful": False}, "does not survive encoding"),
    ],
)
def test_what_does_not_fit_is_said(change: dict[str, Any], note: str) -> None:
    (said,) = conclude(FAST, replace(GOOD, **change)).notes
    assert note in said


async def test_a_server_that_is_not_there_is_a_finding() -> None:
    endpoints = (Endpoint(role=role, url="http://127.0.0.1:9", retries=0) for role in ("small", "large"))
    diagnosis = await diagnose(*endpoints)
    assert [note.split(":")[0] for note in diagnosis.notes] == ["small", "large"]
    assert "no connection" in diagnosis.notes[0]
    assert not diagnosis.same_vocabulary
    assert "cannot be used" in shown(diagnosis)
    assert orjson.loads(orjson.dumps(asdict(diagnosis)))["small"]["problem"]


async def test_a_server_that_knows_few_fields_is_found_out() -> None:
    lacks = frozenset({"logprob_token_ids", "prompt_logprobs"})
    server = FakeVllm(("So", " it", " is", "\n\n", "</think>"), digits={"9": -0.1}, lacks=lacks)
    async with server.serve("small") as small, server.serve("large") as large:
        diagnosis = await diagnose(small, large)
    can = diagnosis.small.can
    assert can is not None
    assert (can.chosen_logprobs, can.prompt_logprobs, can.metrics, can.version) == (False, False, False, None)
    assert (can.speculation, can.prefix_cache, can.cached_tokens) == (None, None, False)
    assert diagnosis.same_vocabulary
    assert diagnosis.large.digits == pytest.approx(0.905, abs=0.001)
