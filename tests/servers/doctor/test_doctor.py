"""The findings of the doctor, and its report."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import fields, replace
from io import StringIO
from typing import Any

import orjson
import pytest
from aiohttp import web
from rich.console import Console

from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.endpoints import CriticEndpoint, Endpoint
from stepspec.orchestrator.endpoints.capabilities import Capabilities
from stepspec.orchestrator.endpoints.metrics import Acceptance, CacheConfig
from stepspec.servers.doctor import diagnose, diagnose_critic, render, report_json
from stepspec.servers.doctor.advice import AGAIN, conclude, conclude_critic
from stepspec.servers.doctor.report import (
    LACKS,
    CriticReport,
    Diagnosis,
    EndpointReport,
    FindingOutcome,
    PairReport,
    Reading,
    WritePace,
)

from ...orchestrator.backends.test_reward_model import FakePooling
from ...orchestrator.endpoints.test_metrics import info
from ...stand_in import GENERATE, Break, FakeVllm, Refuse

ALL = Capabilities("0.32.0", True, True, True, True, True, True, False, suffix_scoring=True)
GOOD = EndpointReport(
    "large", "http://l", "", "big", 4096, "v", True, True, 0.97, WritePace(0.1, 0.03), ALL
)
FAST = replace(GOOD, role="small", url="http://s", model="tiny", pace=WritePace(0.1, 0.006))
GONE = Endpoint(role="small", url="http://127.0.0.1:9", retries=1000)


def without(name: str, value: bool | None) -> Capabilities:
    fields: dict[str, Any] = {name: value}
    return replace(ALL, **fields)


def serving(kind: type[FakeVllm] = FakeVllm, **fields: Any) -> Any:
    return kind(("So", " it", " is", "\n\n", "</think>"), digits={"9": -0.1}, **fields)


async def examined(server: FakeVllm, *, both: bool = False, **settings: Any) -> PairReport:
    """
    Diagnose a pair whose large model is at *server*; with *both* the small one is too, else it is
    not there.
    """
    async with server.serve("small") as small, server.serve("large", **settings) as large:
        return await diagnose(small if both else GONE, large)


def shown(diagnosis: PairReport) -> str:
    console = Console(width=160, file=StringIO())
    with console.capture() as capture:
        for part in render(Diagnosis.of(diagnosis)):
            console.print(part, soft_wrap=True)
    return capture.get()


def note(name: str) -> str:
    return f"no {name.replace('_', ' ')}: {LACKS[name].cost}: {LACKS[name].cure}"


def outcomes(diagnosis: PairReport) -> dict[str, FindingOutcome]:
    return {finding.check: finding.outcome for finding in diagnosis.findings}


def notes(diagnosis: PairReport, subject: str = "") -> list[str]:
    """The findings as text, those about *subject*, or all."""
    return [
        str(finding) for finding in diagnosis.findings if not subject or finding.subject == subject
    ]


def row(name: str, *diagnoses: PairReport) -> list[str]:
    """The words of the row called *name* in the table of *diagnoses*."""
    (found,) = [line for line in shown(*diagnoses).splitlines() if line.startswith(f"{name} ")]
    return found.split()


def test_a_complete_pair_has_no_notes() -> None:
    diagnosis = conclude(FAST, GOOD)
    assert diagnosis.same_vocabulary
    assert diagnosis.findings == ()
    assert shown(diagnosis).splitlines()[-1] == "It works. Nothing is missing."
    assert conclude(FAST, replace(GOOD, url=FAST.url)).findings == ()  # behind one gateway


@pytest.mark.parametrize("name", LACKS)
def test_missing_features_are_named_with_their_cost_and_unknown_ones_as_unknown(name: str) -> None:
    lacking = conclude(FAST, replace(GOOD, can=without(name, False)))
    assert notes(lacking) == [f"large: {note(name)}"]
    assert outcomes(lacking) == {name: LACKS[name].outcome}
    unknown = conclude(FAST, replace(GOOD, can=without(name, None)))
    assert outcomes(unknown) == {name: "unknown"}
    assert unknown.findings[0].cure
    for diagnosis, mark in ((lacking, "no"), (unknown, "unknown")):
        assert row(name.replace("_", " "), diagnosis)[-2:] == ["yes", mark]


def test_what_was_not_reported_or_timed_is_unknown() -> None:
    diagnosis = conclude(
        FAST, replace(GOOD, can=without("version", None), failures={"verdicts": "HTTP 500: no"})
    )
    assert outcomes(diagnosis) == {"version": "unknown", "verdicts": "unknown"}
    assert row("vLLM", diagnosis) == ["vLLM", "0.32.0", "unknown"]
    assert "HTTP 500: no" in notes(diagnosis)[1]


COSTS = ("costs", "It works: 1 costs speed or accuracy.")
FAILS = (
    "cannot work",
    "It cannot work like this: 1 thing",
)


@pytest.mark.parametrize(
    ("change", "outcome", "words"),
    [
        ({"vocabulary": "w"}, COSTS, "pair: the vocabularies differ"),
        (
            {"context": 1024},
            COSTS,
            "large: chains of thought end after 1024 tokens: start vLLM with a larger",
        ),
        ({"model": "tiny"}, COSTS, "pair: small and large both serve 'tiny'"),
        ({"url": "http://s", "model": "tiny"}, COSTS, "pair: small and large both serve 'tiny'"),
        (
            {"failures": {"scoring": "no"}},
            COSTS,
            "large: policies that score drafts (BiLD, reading, reflective)",
        ),
        ({"digits": 0.1}, COSTS, "large: asked for a grade, it puts 10% on digits"),
        (
            {"pace": WritePace(0.1, 0.007)},
            COSTS,
            "pair: the small model is hardly faster than the large one: speculation",
        ),
        (
            {"pace": WritePace(0.1, 0.004)},
            COSTS,
            "pair: the small model is slower than the large one: speculation cannot",
        ),
        ({"faithful": False}, COSTS, "large: its chat template does not survive encoding"),
        (
            {"context": 200},
            FAILS,
            "large: its context of 200 tokens has no room for a step and its verdict: start",
        ),
        (
            {"failures": {"judging": "no logprobs"}},
            FAILS,
            "large: it cannot judge: no logprobs: serve it",
        ),
        (
            {"failures": {"writing": "HTTP 500: no"}},
            FAILS,
            f"large: it cannot write a step: HTTP 500: no: {AGAIN}",
        ),
        (
            {"can": without("token_ids", False)},
            FAILS,
            "large: no token ids: no step can be written: serve the",
        ),
        (
            {"can": without("suffix_scoring", False)},
            FAILS,
            "large: suffix scoring is set, but the server does not",
        ),
        ({"problem": "no connection"}, FAILS, "large: no connection"),
    ],
)
def test_each_fault_is_a_finding_with_its_outcome_and_its_cure(
    change: dict[str, Any], outcome: tuple[FindingOutcome, str], words: str
) -> None:
    diagnosis = conclude(FAST, replace(GOOD, **change))
    (finding,) = diagnosis.findings
    assert finding.outcome == outcome[0]
    assert str(finding).startswith(words)
    assert finding.cure or "problem" in change
    report = Diagnosis.of(diagnosis)
    assert (report.ok, report.summary.startswith(outcome[1])) == (outcome == COSTS, True)


def test_a_pair_of_which_only_the_small_model_thinks_is_refused() -> None:
    refused = notes(conclude(FAST, replace(GOOD, thinks=False, thinks_by="template")), "pair")
    assert refused[0].startswith("pair: this pair is refused: the small model thinks in a block")


def test_a_small_model_that_cannot_judge_suits_most_policies() -> None:
    diagnosis = conclude(replace(FAST, failures={"judging": "no logprobs"}), GOOD)
    (finding,) = diagnosis.findings
    assert (finding.outcome, finding.subject) == ("costs", "small")


def test_the_summary_counts_every_outcome_once() -> None:
    weak = replace(
        GOOD,
        can=replace(ALL, metrics=False, cached_tokens=False, version=None),
        failures={"judging": "no"},
    )
    summary = Diagnosis.of(conclude(FAST, weak)).summary
    assert (
        summary
        == "It cannot work like this: 1 thing cannot work, 2 cost speed or accuracy, 1 is unknown."
    )


def test_what_cannot_work_is_printed_first_and_brackets_are_no_markup() -> None:
    weak = replace(GOOD, thinks=False, thinks_by="effect", can=without("metrics", False))
    lines = shown(conclude(FAST, weak)).splitlines()
    findings = [line for line in lines if line.startswith(("cannot work", "costs", "unknown"))]
    assert [line.partition("  ")[0] for line in findings] == ["cannot work", "costs", "costs"]
    assert "or set thinks = true in [large]" in findings[0]


@pytest.mark.parametrize(
    ("found", "mark", "note"),
    [
        (True, "on", None),
        (
            None,
            "off",
            "reads the whole chain again, 145 ms after 400 tokens: start vLLM",
        ),
        (False, "refused", "suffix scoring is set, but the server does not do it"),
    ],
)
def test_the_cost_of_scoring_is_reported(found: bool | None, mark: str, note: str | None) -> None:
    diagnosis = conclude(FAST, replace(GOOD, can=without("suffix_scoring", found), scoring=0.145))
    assert len(notes(diagnosis)) == (note is not None)
    assert (note or "") in "".join(notes(diagnosis))
    assert row("suffix scoring", diagnosis)[-1] == mark
    assert row("scoring a step", diagnosis)[-2:] == ["145", "ms"]


class Misreading(FakeVllm):
    """Scores suffixes wrongly."""

    def score(self, body: dict[str, Any]) -> dict[str, Any]:
        reply = super().score(body)
        for known in reply["prompt_logprobs"][-1].values():
            known["logprob"] -= 1
        return reply


@pytest.mark.parametrize(
    ("allowed", "server", "found"),
    [
        (False, serving(block=16, scale_out=True), None),
        (True, serving(block=16, scale_out=True), True),
        (True, serving(block=16, scale_out=False), False),
        (True, serving(Misreading, block=16, scale_out=True), False),
    ],
)
async def test_suffix_scoring_is_tried_only_where_it_is_allowed(
    allowed: bool, server: FakeVllm, found: bool | None
) -> None:
    large = (await examined(server, suffix_scoring=allowed)).large
    assert large.can is not None
    assert large.can.suffix_scoring is found
    assert any(path == GENERATE for path, _ in server.requests) is allowed
    assert (large.scoring is None) is (found is False)


async def test_a_server_that_is_not_there_is_a_finding_at_once() -> None:
    async with asyncio.timeout(30):  # A thousand retries would take hours.
        diagnosis = await diagnose(GONE, GONE.model_copy(update={"role": "large"}))
    assert [note.split(":")[0] for note in notes(diagnosis)] == ["small", "large"]
    assert "connection refused" in notes(diagnosis)[0]
    assert diagnosis.same_vocabulary is None
    lines = shown(diagnosis).splitlines()
    assert "cannot be used" in lines[2]
    assert not any(line.startswith("vLLM") for line in lines)
    assert lines[-1] == "It cannot work like this: 2 things cannot work."


async def test_the_other_server_is_examined_all_the_same() -> None:
    diagnosis = await examined(serving())
    assert (diagnosis.large.model, diagnosis.large.problem) == ("fake", "")
    assert diagnosis.small.problem
    assert row("token ids", diagnosis) == ["token", "ids", "unknown", "yes"]


class Dying(FakeVllm):
    async def stream(
        self, request: web.Request, body: dict[str, Any], fault: Any
    ) -> web.StreamResponse:
        await self.fail(request, Break(after=0))
        raise AssertionError("it lives on")


@pytest.mark.parametrize(
    "server",
    [serving(faults=deque([None] * 3 + [Break(after=0)] * 3)), serving(Dying)],
    ids=["early", "as it writes"],
)
async def test_a_server_that_dies_during_the_examination_is_a_finding(server: FakeVllm) -> None:
    problem = (await examined(server)).large.problem
    assert problem.startswith("it stopped answering while it was examined: no connection: ")


async def test_a_connection_that_is_reset_once_is_no_finding() -> None:
    server = serving()
    first = await examined(server)
    asked = [
        body
        for _, body in server.requests
        if "allowed_token_ids" in body and "return_token_ids" not in body
    ]
    # the grade, after the probe's own question
    before = server.requests.index(("/v1/completions", asked[1]))
    count = sum(path == "/v1/completions" for path, _ in server.requests[:before])
    server.faults.extend([None] * count + [Break(after=0)])
    again = await examined(server)
    assert not server.faults
    assert again.large.failures == {}
    assert [finding.check for finding in again.findings] == [
        finding.check for finding in first.findings
    ]


async def test_requests_that_fail_leave_what_they_would_have_shown_unknown() -> None:
    server = serving(block=16)
    server.faults.extend([Refuse(500, "busy")] * 400)
    diagnosis = await examined(server)
    can = diagnosis.large.can
    assert can is not None
    assert (can.token_ids, can.chosen_logprobs, can.prompt_logprobs) == (None,) * 3
    assert (can.prefix_cache, can.cached_tokens) == (None,) * 2
    assert (diagnosis.large.digits, diagnosis.large.pace) == (None, None)
    found = [finding for finding in diagnosis.findings if finding.subject == "large"]
    assert {finding.check for finding in found if finding.outcome == "cannot work"} == {
        "judging",
        "writing",
    }
    assert {"token_ids", "version"} <= {
        finding.check for finding in found if finding.outcome == "unknown"
    }


async def test_a_judge_without_log_probabilities_cannot_work() -> None:
    class Mute(FakeVllm):
        def answer(self, body: dict[str, Any]) -> dict[str, Any]:
            reply = super().answer(body)
            for choice in reply["choices"]:
                choice.pop("logprobs", None)
            return reply

    diagnosis = await examined(serving(Mute), both=True)
    judging = {
        finding.subject: finding.outcome
        for finding in diagnosis.findings
        if finding.check == "judging"
    }
    assert judging == {"small": "costs", "large": "cannot work"}


def check(report: Diagnosis) -> dict[str, Any]:
    """The JSON of *report*, as it is read again."""
    values: dict[str, Any] = orjson.loads(orjson.dumps(report_json(report)))
    return values


async def test_the_json_has_one_shape_in_every_situation() -> None:
    pairs = [
        await examined(serving(block=16, metrics=info(block_size=16)), both=both)
        for both in (True, False)
    ]
    weak = replace(
        GOOD,
        can=replace(ALL, version=None, metrics=None),
        digits=math.nan,
        failures={"verdicts": "no"},
    )
    made = [
        conclude(FAST, cached(True, LARGE_BLOCKS)),
        conclude(
            FAST, replace(GOOD, acceptance=Acceptance(10, 40, 20)), replace(GOOD, url="http://same")
        ),
        conclude(FAST, weak),
    ]
    critic = CriticReport("http://c", model="prm", right=0.9, wrong=0.1)
    every = [
        *(Diagnosis.of(pair) for pair in (*pairs, *made)),
        Diagnosis.of(pairs[0], critic),
        Diagnosis.of(pairs[0], CriticReport("http://c", "no connection")),
    ]
    shapes = [check(report) for report in every]
    assert {tuple(shape) for shape in shapes} == {("ok", "summary", "pair", "critic")}
    assert {tuple(shape["pair"]) for shape in shapes} == {
        ("small", "large", "same_vocabulary", "findings", "others")
    }
    assert {
        tuple(end) for shape in shapes for end in (shape["pair"]["small"], shape["pair"]["large"])
    } == {tuple(field.name for field in fields(EndpointReport))}
    assert [shape["ok"] for shape in shapes[:2]] == [True, False]


async def capabilities(server: FakeVllm) -> Capabilities:
    async with server.serve("small") as small, VllmEndpoint(small) as endpoint:
        return await endpoint.capabilities()


@pytest.mark.parametrize("counts", [True, False])
async def test_a_usage_that_counts_no_cached_tokens_where_the_metrics_do_is_found(
    counts: bool,
) -> None:
    class Priority(FakeVllm):
        hits = 0

        def answer(self, body: dict[str, Any]) -> dict[str, Any]:
            reply = super().answer(body)
            if (details := reply.get("usage", {}).get("prompt_tokens_details")) and details[
                "cached_tokens"
            ]:
                self.hits += details["cached_tokens"]
                self.metrics = f"vllm:prefix_cache_hits_total{{}} {self.hits}\n".encode()
                details["cached_tokens"] *= counts
            return reply

    can = await capabilities(
        serving(Priority, block=16, metrics=b"vllm:prefix_cache_hits_total{} 0\n")
    )
    assert (can.prefix_cache, can.cached_tokens, can.cached_counts) == (True, True, counts)
    said = notes(conclude(FAST, replace(GOOD, can=replace(ALL, cached_counts=counts))))
    assert [note.startswith("large: replies say that no prompt tokens") for note in said] == (
        [] if counts else [True]
    )


@pytest.mark.parametrize(
    ("small", "large", "outcome"),
    [
        (WritePace(0.1, 0.020, 0.01), WritePace(0.1, 0.030, 0.02), None),
        (WritePace(0.1, 0.020, 0.90), WritePace(0.1, 0.030, 0.02), None),
        (WritePace(0.1, 0.025, 0.05), WritePace(0.1, 0.030, 0.02), "costs"),
        (WritePace(0.1, 0.025, 0.05), WritePace(0.1, 0.030, 0.50), "unknown"),
        (WritePace(0.1, 0.025, 0.50), WritePace(0.1, 0.030, 0.02), "unknown"),
        (WritePace(0.1, 0.090, 0.50), WritePace(0.1, 0.030, 0.50), "costs"),
        (WritePace(0.1, 0.090, 0.50), WritePace(0.1, 0.0, 0.0), "unknown"),
    ],
)
def test_paces_are_compared_as_far_as_their_noise_allows(
    small: WritePace, large: WritePace, outcome: FindingOutcome | None
) -> None:
    found = outcomes(conclude(replace(FAST, pace=small), replace(GOOD, pace=large)))
    assert found == ({"speed": outcome} if outcome else {})


def rating(right: float, wrong: float) -> FakePooling:
    """A reward model that gives these logits to a right and to a wrong step."""
    return FakePooling(head=lambda text: [wrong if "7 + 7" in text else right])


@pytest.mark.parametrize(
    ("right", "wrong", "outcome", "words"),
    [
        (2.0, -2.0, None, ""),
        (
            -1.0,
            1.0,
            "costs",
            "it rates a right one 0.27 and an obviously wrong one 0.73: set delimiter, layout and",
        ),
    ],
)
async def test_a_reward_model_is_to_rate_a_right_step_above_a_wrong_one(
    right: float, wrong: float, outcome: FindingOutcome | None, words: str
) -> None:
    async with rating(right, wrong).critic() as settings:
        critic = await diagnose_critic(settings)
    assert (critic.problem, critic.model) == ("", "prm")
    assert [finding.outcome for finding in critic.findings] == ([outcome] if outcome else [])
    assert all(str(finding).startswith(f"critic: {words}") for finding in critic.findings)
    report = Diagnosis.of(conclude(FAST, GOOD), critic)
    assert report.ok
    check(report)


@pytest.mark.parametrize(
    ("value", "shown_as"), [(1.5, "1.5"), (-0.1, "-0.1"), (math.nan, "nan"), (math.inf, "inf")]
)
async def test_values_outside_of_0_to_1_are_no_ratings(value: float, shown_as: str) -> None:
    critic = conclude_critic(CriticReport("http://c", model="prm", right=value, wrong=0.5))
    (finding,) = critic.findings
    assert finding.outcome == "cannot work"
    assert finding.message == f"its ratings are not numbers from 0 to 1 but {shown_as} and 0.5"
    assert not check(Diagnosis.of(conclude(FAST, GOOD), critic))["ok"]


@pytest.mark.parametrize(
    "server",
    [FakePooling(pools=False), FakePooling(names=()), FakePooling(head=lambda text: "high")],
)
async def test_a_reward_model_that_cannot_be_used_is_a_finding(server: FakePooling) -> None:
    async with server.critic() as settings:
        critic = await diagnose_critic(settings)
    assert critic.problem
    assert not Diagnosis.of(conclude(FAST, GOOD), critic).ok
    gone = await diagnose_critic(CriticEndpoint(url="http://127.0.0.1:9", retries=1000))
    assert "connection refused" in gone.problem


async def test_of_several_replicas_the_first_that_can_be_used_speaks_for_the_others() -> None:
    async with serving().serve("large") as up:
        large = up.model_copy(update={"url": f"{GONE.url},{up.url}"})
        diagnosis = await diagnose(GONE, large)
    assert (diagnosis.large.url, diagnosis.large.problem) == (up.url, "")
    assert [other.url for other in diagnosis.others] == [GONE.url]
    assert notes(diagnosis, f"large at {GONE.url}")


async def test_unsupported_fields_of_a_server_are_detected() -> None:
    diagnosis = await examined(
        serving(lacks=frozenset({"logprob_token_ids", "prompt_logprobs"})), both=True
    )
    can = diagnosis.small.can
    assert can is not None
    assert (can.chosen_logprobs, can.prompt_logprobs, can.metrics, can.version) == (
        False,
        False,
        False,
        None,
    )
    assert (can.speculation, can.prefix_cache, can.cached_tokens) == (None, None, False)
    assert diagnosis.same_vocabulary
    assert diagnosis.large.digits == pytest.approx(0.905, abs=0.001)


KNOWN = ("block_size", "enable_prefix_caching", "mamba_cache_mode", "prefix_match_unit")
LARGE_BLOCKS = CacheConfig(enabled=True, block=640, known=KNOWN)
CURE = "--mamba-cache-mode align --prefix-match-unit 32"
READING = Reading(1014, 411, 0.084, 0.155)


def cached(found: bool, cache: CacheConfig, **fields: Any) -> EndpointReport:
    can = replace(ALL, prefix_cache=found, cache=cache, tried=1280, **fields)
    return replace(GOOD, can=can, reading=READING)


def test_a_cache_in_large_blocks_is_named_with_its_cost_and_the_flags_that_cure_it() -> None:
    diagnosis = conclude(FAST, cached(True, LARGE_BLOCKS))
    (said,) = notes(diagnosis)
    for words in (
        "is on, but works in blocks of 640 tokens",
        "411 of 1014 tokens",
        "84 ms",
        "155 ms",
    ):
        assert words in said
    assert said.endswith(CURE)
    assert row("a verdict reads", diagnosis)[-4:] == ["411", "of", "1014", "tokens"]


@pytest.mark.parametrize(
    ("found", "cache", "speculation", "words"),
    [
        (True, replace(LARGE_BLOCKS, unit=32), False, None),
        (True, CacheConfig(True, 128), False, None),
        (
            *(True, replace(LARGE_BLOCKS, known=("block_size", "mamba_cache_mode")), False),
            ("this vLLM has no --prefix-match-unit, which later versions have: update it",),
        ),
        (
            *(False, LARGE_BLOCKS, True),
            (
                "nothing of a prompt of 1280 tokens",
                "MTP",
                "start vLLM without --speculative-config",
            ),
        ),
        (False, LARGE_BLOCKS, False, ("nothing of a prompt", "cached in blocks of 640", CURE)),
        (False, CacheConfig(False, 640, known=KNOWN), False, (note("prefix_cache"),)),
    ],
)
def test_the_cure_of_a_cache_depends_on_what_the_server_says_of_it(
    found: bool, cache: CacheConfig, speculation: bool, words: tuple[str, ...] | None
) -> None:
    said = notes(conclude(FAST, cached(found, cache, speculation=speculation)))
    if words is None:
        assert said == []
        return
    (only,) = said
    assert all(word in only for word in words)
    assert only.endswith(words[-1])


@pytest.mark.parametrize(
    ("metrics", "block", "found", "tried"),
    [
        # nothing of 400 tokens, as of any prompt shorter than a block
        (info(block_size=640), 640, True, 1280),
        (info(block_size=16), 16, True, 400),
        (info(block_size=640, enable_prefix_caching=False), 10_000, False, 400),
        (info(block_size=640), 10_000, False, 1280),
        (b"", 640, True, 1000),  # the size of the block is not reported and has to be measured
    ],
)
async def test_the_probe_repeats_prompts_beyond_the_block(
    metrics: bytes, block: int, found: bool, tried: int
) -> None:
    can = await capabilities(serving(block=block, metrics=metrics))
    assert (can.prefix_cache, can.cached_tokens, can.tried) == (found, True, tried)


@pytest.mark.parametrize(
    ("version", "hybrid"),
    [
        ("0.32.0+cpu", "--mamba-cache-mode align --prefix-match-unit 32"),
        ("0.33.0", "with --prefix-match-unit 32"),
        ("dev", "with --prefix-match-unit 32"),
    ],
)
def test_the_cures_name_flags_of_the_version_that_was_found(version: str, hybrid: str) -> None:
    coarse = cached(True, LARGE_BLOCKS, version=version, suffix_scoring=None)
    said = notes(conclude(FAST, replace(coarse, scoring=0.2)))
    assert [hybrid in note for note in said if "prefix cache" in note] == [True]
    scoring = "with --enable-scale-out --enable-prompt-tokens-details"
    assert [scoring in note for note in said if "suffix scoring" in note] == [True]


async def test_the_tokens_that_a_verdict_reads_are_measured() -> None:
    read: list[int] = []
    for metrics in (b"", info(block_size=640, prefix_match_unit=8)):
        reading = (await examined(serving(unit=8, metrics=metrics))).large.reading
        assert reading is not None
        assert reading.read is not None
        read.append(reading.read)
    full, since = read
    assert full > 400
    assert since < full / 2  # Less than the chain, whose state was saved.
