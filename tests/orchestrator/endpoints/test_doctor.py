"""The findings of the doctor, and its report."""

from __future__ import annotations

from dataclasses import asdict, replace
from io import StringIO
from typing import Any

import orjson
import pytest
from rich.console import Console

from stepspec.orchestrator.endpoints import Endpoint, probe
from stepspec.orchestrator.endpoints.doctor import (
    COSTS,
    Diagnosis,
    EndpointReport,
    Reading,
    conclude,
    diagnose,
    render,
)
from stepspec.orchestrator.endpoints.metrics import CacheConfig
from stepspec.orchestrator.endpoints.probe import Capabilities

from .server import GENERATE, FakeVllm
from .test_caching import info

ALL = Capabilities("0.32.0", True, True, True, True, True, True, True, True, False, suffix_scoring=True)
GOOD = EndpointReport("large", "http://l", "", "big", 4096, "v", True, True, 0.97, 0.1, 0.03, ALL)
FAST = replace(GOOD, role="small", url="http://s", model="tiny", between=0.006)


@pytest.fixture(autouse=True)
def few_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send small crowds: whether a server orders by priority is another file's subject."""
    monkeypatch.setattr(probe, "CROWDS", (8,))


def without(name: str, value: bool | None) -> Capabilities:
    fields: dict[str, Any] = {name: value}
    return replace(ALL, **fields)


def shown(diagnosis: Diagnosis) -> str:
    console = Console(width=160, file=StringIO())
    with console.capture() as capture:
        console.print(render(diagnosis))
    return capture.get()


def test_a_complete_pair_has_no_notes() -> None:
    diagnosis = conclude(FAST, GOOD)
    assert diagnosis.same_vocabulary
    assert diagnosis.notes == ()
    assert "Nothing is missing." in shown(diagnosis)
    assert "0.32.0" in shown(diagnosis)


@pytest.mark.parametrize("name", COSTS)
def test_missing_features_are_named_with_their_cost(name: str) -> None:
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
        ({"faithful": False}, "does not survive encoding"),
        ({"model": "large"}, "it is served as 'large': a calibration cannot tell when another model takes its place"),
    ],
)
def test_mismatches_are_reported(change: dict[str, Any], note: str) -> None:
    (warning,) = conclude(FAST, replace(GOOD, **change)).notes
    assert note in warning


@pytest.mark.parametrize(
    ("found", "mark", "note"),
    [
        (True, "on", None),
        (None, "off", "reads the whole chain again, 145 ms after 400 tokens (a first token takes 100 ms): start vLLM"),
        (False, "refused", "suffix scoring is set, but the server does not do it"),
    ],
)
def test_the_cost_of_scoring_is_reported(found: bool | None, mark: str, note: str | None) -> None:
    large = replace(GOOD, can=without("suffix_scoring", found), scoring=0.145)
    diagnosis = conclude(FAST, large)
    assert len(diagnosis.notes) == (note is not None)
    assert (note or "") in "".join(diagnosis.notes)
    (row,) = [line for line in shown(diagnosis).splitlines() if line.startswith("suffix scoring")]
    assert row.split()[-1] == mark
    assert "145 ms" in shown(diagnosis)


@pytest.mark.parametrize(
    ("allowed", "scale_out", "found"), [(False, True, None), (True, True, True), (True, False, False)]
)
async def test_suffix_scoring_is_tried_only_where_it_is_allowed(
    allowed: bool, scale_out: bool, found: bool | None
) -> None:
    server = FakeVllm(("So", " it", " is", "\n\n", "</think>"), digits={"9": -0.1}, block=16, scale_out=scale_out)
    async with server.serve("small") as small, server.serve("large", suffix_scoring=allowed) as large:
        diagnosis = await diagnose(small, large)
    assert diagnosis.large.can is not None
    assert diagnosis.large.can.suffix_scoring is found
    assert any(path == GENERATE for path, _ in server.requests) is allowed
    assert (diagnosis.large.scoring > 0) is (found is not False)


async def test_a_server_that_scores_suffixes_wrongly_is_found_out() -> None:
    class Wrong(FakeVllm):
        def score(self, body: dict[str, Any]) -> dict[str, Any]:
            reply = super().score(body)
            for known in reply["prompt_logprobs"][-1].values():
                known["logprob"] -= 1
            return reply

    server = Wrong(("So", " it", " is", "\n\n", "</think>"), digits={"9": -0.1}, block=16, scale_out=True)
    async with server.serve("small") as small, server.serve("large", suffix_scoring=True) as large:
        diagnosis = await diagnose(small, large)
    assert diagnosis.large.can is not None
    assert diagnosis.large.can.suffix_scoring is False


async def test_a_server_that_is_not_there_is_a_finding() -> None:
    endpoints = (Endpoint(role=role, url="http://127.0.0.1:9", retries=0) for role in ("small", "large"))
    diagnosis = await diagnose(*endpoints)
    assert [note.split(":")[0] for note in diagnosis.notes] == ["small", "large"]
    assert "no connection" in diagnosis.notes[0]
    assert not diagnosis.same_vocabulary
    assert "cannot be used" in shown(diagnosis)
    assert orjson.loads(orjson.dumps(asdict(diagnosis)))["small"]["problem"]


def test_replicas_are_shown_with_notes_that_differ() -> None:
    dead = EndpointReport("large", "http://dead", problem="no connection")
    same, lacking = replace(GOOD, url="http://same"), replace(GOOD, url="http://lacking", can=without("metrics", False))
    diagnosis = conclude(FAST, GOOD, same, lacking, dead, replace(GOOD, url="http://else", model="else"))
    assert diagnosis.notes == (
        f"large at http://lacking: no metrics: {COSTS['metrics']}",
        "large at http://dead: no connection",
        "large at http://else: it does not serve what http://l does, and is refused",
    )
    assert all(one.url in shown(diagnosis) for one in diagnosis.others)


async def test_of_several_replicas_the_first_that_can_be_used_speaks_for_the_others() -> None:
    server = FakeVllm(("So", "</think>"), digits={"9": -0.1})
    async with server.serve("small") as small, server.serve("large") as up:
        large = up.model_copy(update={"url": "http://127.0.0.1:9", "replicas": (up.url,), "retries": 0})
        diagnosis = await diagnose(small, large)
    assert (diagnosis.large.url, diagnosis.large.problem) == (up.url, "")
    assert [other.url for other in diagnosis.others] == ["http://127.0.0.1:9"]
    assert any(note.startswith("large at http://127.0.0.1:9: ") for note in diagnosis.notes)


async def test_unsupported_fields_of_a_server_are_detected() -> None:
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


KNOWN = ("block_size", "enable_prefix_caching", "mamba_cache_mode", "prefix_match_unit")
LARGE_BLOCKS = CacheConfig(enabled=True, block=640, mode="align", known=KNOWN)
CURE = "--mamba-cache-mode align --prefix-match-unit 32"
READING = Reading(1014, 411, 0.084, 0.155)


def cached(found: bool, cache: CacheConfig, **fields: Any) -> EndpointReport:
    can = replace(ALL, prefix_cache=found, cache=cache, tried=1280, **fields)
    return replace(GOOD, can=can, reading=READING)


def test_a_cache_in_large_blocks_is_named_with_its_cost_and_the_flags_that_cure_it() -> None:
    (note,) = conclude(FAST, cached(True, LARGE_BLOCKS)).notes
    assert "the prefix cache is on, but works in blocks of 640 tokens" in note
    assert "411 of 1014 tokens" in note
    assert "84 ms" in note
    assert "155 ms" in note
    assert note.endswith(CURE)
    assert "411 of 1014 tokens" in shown(conclude(FAST, cached(True, LARGE_BLOCKS)))


def test_a_cache_in_small_units_needs_no_cure() -> None:
    assert conclude(FAST, cached(True, replace(LARGE_BLOCKS, unit=32))).notes == ()
    assert conclude(FAST, cached(True, CacheConfig(True, 128))).notes == ()


def test_a_version_without_the_flag_is_to_be_updated() -> None:
    older = replace(LARGE_BLOCKS, known=("block_size", "mamba_cache_mode"))
    (note,) = conclude(FAST, cached(True, older)).notes
    assert note.endswith("vLLM 0.32.0 has no --prefix-match-unit, which later versions have: update it")


def test_hits_that_vanish_under_speculation_are_not_taken_for_a_cache_that_is_off() -> None:
    known = (*KNOWN, "prefix_cache_retention_interval", "enable_mamba_shared_prefix_checkpoint")
    (note,) = conclude(FAST, cached(False, replace(LARGE_BLOCKS, known=known), speculation=True)).notes
    assert "--enable-prefix-caching" not in note
    assert "nothing of a prompt of 1280 tokens" in note
    assert "MTP" in note
    assert "without --speculative-config, or try --prefix-cache-retention-interval 640 or" in note
    assert "--enable-mamba-shared-prefix-checkpoint" in note
    (note,) = conclude(FAST, cached(False, LARGE_BLOCKS, speculation=True)).notes
    assert note.endswith("start vLLM without --speculative-config")


def test_a_context_shorter_than_a_block_is_not_taken_for_a_cache_that_is_off() -> None:
    (note,) = conclude(FAST, cached(False, LARGE_BLOCKS)).notes
    assert "cached in blocks of 640" in note
    assert note.endswith(CURE)


def test_a_cache_that_is_off_is_to_be_switched_on() -> None:
    (note,) = conclude(FAST, cached(False, CacheConfig(False, 640, None, None, KNOWN))).notes
    assert note == f"large: no prefix cache: {COSTS['prefix_cache']}"


@pytest.mark.parametrize(
    ("metrics", "block", "found", "tried"),
    [
        (info(block_size=640), 640, True, 1280),  # nothing of 400 tokens, as of any prompt shorter than a block
        (info(block_size=16), 16, True, 400),
        (info(block_size=640, enable_prefix_caching=False), 10_000, False, 400),
        (info(block_size=640), 10_000, False, 1280),
        (b"", 640, True, 1000),  # the size of the block is not reported and has to be measured
    ],
)
async def test_the_probe_repeats_prompts_beyond_the_block(metrics: bytes, block: int, found: bool, tried: int) -> None:
    server = FakeVllm(("So", " it", " is", "\n\n", "</think>"), digits={"9": -0.1}, block=block, metrics=metrics)
    async with server.serve("small") as small, server.serve("large") as large:
        can = (await diagnose(small, large)).large.can
    assert can is not None
    assert (can.prefix_cache, can.cached_tokens, can.tried) == (found, True, tried)


async def test_the_tokens_that_a_verdict_reads_are_measured() -> None:
    fine = info(block_size=640, prefix_match_unit=8)
    read: list[int] = []
    for metrics in (b"", fine):
        server = FakeVllm(("So", "</think>"), digits={"9": -0.1}, unit=8, metrics=metrics)
        async with server.serve("small") as small, server.serve("large") as large:
            reading = (await diagnose(small, large)).large.reading
        assert reading is not None
        assert reading.read is not None
        read.append(reading.read)
    full, since = read
    assert full > 400
    assert since < full / 2  # Less than the chain, whose state was saved.
