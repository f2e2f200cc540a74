"""
What the doctor's measurements mean: findings with their cost and their cure, in the flags of the
vLLM that was found.

`conclude` is about a pair, `conclude_critic` about the critic. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from stepspec.orchestrator.endpoints.capabilities import LONG, Capabilities
from stepspec.orchestrator.endpoints.chat_template import disagreement
from stepspec.orchestrator.endpoints.metrics import FINE, MATCH_UNIT, UNIT, CacheConfig
from stepspec.orchestrator.events import Fallback

from .report import (
    LACKS,
    CriticReport,
    Diagnosis,
    EndpointReport,
    Finding,
    Outcome,
    Pace,
    milliseconds,
    tokens_read,
)

LEAST_CONTEXT = 256  # tokens: a short problem, a judge's question and one step
SHORT_CONTEXT = 2048  # tokens; chains of thought are longer

UNKNOWN: Mapping[str, str] = {
    "version": "the server does not report its version: let a proxy forward /version",
    "speculation": (
        "without /metrics it is not known whether the server drafts tokens: let a proxy forward"
        " /metrics"
    ),
    "prefix_cache": (
        "neither replies nor /metrics tell what is read from the cache: start vLLM with "
        "--enable-prompt-tokens-details, or let a proxy forward /metrics"
    ),
}
"""
Why each of these may be unknown, and what helps; the others are unknown if their request failed.
"""

AGAIN = "look into the server's log, and run `stepspec doctor` again"
AGAIN_IDLE = "run `stepspec doctor` again when the servers are idle"
OTHER = "serve a smaller model for small"
WITHOUT_MODE = (0, 33)  # the first version of vLLM that ignores --mamba-cache-mode
SUFFIX_CURE = (
    "start vLLM with --enable-scale-out --enable-prompt-tokens-details and set suffix_scoring ="
    " true"
)
HARDLY_FASTER = 0.7  # of the large model's seconds for a token


def conclude(small: EndpointReport, large: EndpointReport, *others: EndpointReport) -> Diagnosis:
    """Make the diagnosis from the reports of both endpoints and of the *others*, their replicas."""
    known = small.vocabulary is not None and large.vocabulary is not None
    same = small.vocabulary == large.vocabulary if known else None
    findings = [*_findings(small), *_findings(large), *_about_pair(small, large, same)]
    for other in others:
        findings += _about_replica(other, small if other.role == "small" else large)
    return Diagnosis(small, large, same, tuple(findings), others)


def _findings(report: EndpointReport) -> Iterator[Finding]:
    can = report.can
    if report.problem or can is None:
        yield Finding("connection", report.role, "cannot work", report.problem)
        return
    for name, lack in LACKS.items():
        if getattr(can, name) is False and not (
            name == "prefix_cache" and can.cache and can.cache.enabled
        ):
            yield Finding(
                name,
                report.role,
                lack.outcome,
                f"no {name.replace('_', ' ')}: {lack.cost}",
                lack.cure,
            )
    yield from _about_unknowns(report, can)
    yield from _about_cache(report, can)
    yield from _about_model(report)
    yield from _about_scoring(report, can)
    yield from _about_counts(report, can)
    yield from _about_thinking(report)


def _before(version: tuple[int, int], can: Capabilities) -> bool:
    """Whether the server reports an older vLLM than *version*."""
    found = re.match(r"v?(\d+)\.(\d+)", can.version or "")
    return found is not None and (int(found[1]), int(found[2])) < version


def _about_unknowns(report: EndpointReport, can: Capabilities) -> Iterator[Finding]:
    for name in ("version", "speculation", *LACKS):
        if getattr(can, name) is None:
            default = (
                f"could not tell on this server whether it has {name.replace('_', ' ')}: {AGAIN}"
            )
            message, _, cure = UNKNOWN.get(name, default).partition(": ")
            yield Finding(name, report.role, "unknown", message, cure)
    if why := report.failures.get("verdicts"):
        message = f"the time of a verdict could not be measured ({why})"
        yield Finding("verdicts", report.role, "unknown", message, AGAIN)


def _about_model(report: EndpointReport) -> Iterator[Finding]:
    """
    Report a short context, and a model that cannot write, or cannot judge, which few policies let
    the small one.
    """
    role = report.role
    failures = report.failures
    longer = "start vLLM with a larger --max-model-len"
    if report.context is not None and report.context < LEAST_CONTEXT:
        message = f"its context of {report.context} tokens has no room for a step and its verdict"
        yield Finding("context", role, "cannot work", message, longer)
    elif report.context is not None and report.context < SHORT_CONTEXT:
        yield Finding(
            "context", role, "costs", f"chains of thought end after {report.context} tokens", longer
        )
    if "writing" in failures:
        yield Finding(
            "writing", role, "cannot work", f"it cannot write a step: {failures['writing']}", AGAIN
        )
    if "judging" in failures and role == "large":
        cure = "serve it with vLLM, or choose a policy without a judge"
        yield Finding(
            "judging", role, "cannot work", f"it cannot judge: {failures['judging']}", cure
        )
    elif "judging" in failures:
        message = (
            "policies in which the small model judges (cascade) cannot use it:"
            f" {failures['judging']}"
        )
        yield Finding("judging", role, "costs", message, "choose another policy")
    if report.faithful is False:
        message = (
            "its chat template does not survive encoding, so that judge prompts may differ a little"
        )
        yield Finding("faithful", role, "costs", message, "start vLLM with another --chat-template")


def _about_scoring(report: EndpointReport, can: Capabilities) -> Iterator[Finding]:
    if can.suffix_scoring is False:
        message = "suffix scoring is set, but the server does not do it, or wrongly"
        cure = f"{SUFFIX_CURE}, or set it to false"
        yield Finding("suffix_scoring", report.role, "cannot work", message, cure)
    elif why := report.failures.get("scoring"):
        message = f"policies that score drafts (BiLD, reading, reflective) cannot use it: {why}"
        yield Finding(
            "scoring", report.role, "costs", message, "choose a policy that scores nothing"
        )


def _about_counts(report: EndpointReport, can: Capabilities) -> Iterator[Finding]:
    """Report numbers that are wrong only in a batch with other requests, or with some flags."""
    if can.shared_batch is False:
        message = (
            "questions by token ids and the likeliest tokens of other requests break each other in"
            " one batch, as in vLLM's V1 runner, so that stepspec has only one of the two there at"
            " a time: beside requests for likeliest tokens, judges read the 20 likeliest tokens"
            " only"
        )
        cure = "start vLLM with VLLM_USE_V2_MODEL_RUNNER=1, if its V2 runner serves the model"
        yield Finding("shared_batch", report.role, "costs", message, cure)
    if can.cached_counts is False:
        message = (
            "replies say that no prompt tokens were cached where /metrics counts hits, as some"
            " versions do with --scheduling-policy priority (vllm#52897): the ledger counts cached"
            " prompt tokens as read"
        )
        yield Finding("cached_counts", report.role, "costs", message, "update vLLM")


def _about_thinking(report: EndpointReport) -> Iterator[Finding]:
    """Report every case but the usual one, in which the template shows a thinking block."""
    role = report.role
    block = report.block
    answers = "it reasons in its answer"
    outcome: Outcome = "works"
    match report.thinks_by, report.thinks:
        case "effect", True:
            message = (
                f"its chat template shows no thinking block, but it opens one by itself, {block},"
                " which stepspec opens in its place"
            )
            cure = f"set thinks = false in [{role}] to have the block skipped"
        case "effect", False:
            outcome = "costs"
            message = (
                "its chat template shows no thinking block, and asked a plain question it opened"
                f" none, so {answers}"
            )
            cure = f"if it does think, set thinks = true in [{role}]"
        case "setting", True:
            message = (
                f"thinks = true is set, so stepspec opens the block {block}, which nothing else"
                " shows"
            )
            cure = ""
        case "setting", False:
            message = f"thinks = false is set, so its block {block} is skipped, and {answers}"
            cure = ""
        case _, False:
            message = f"its chat template switches thinking off, so {answers}"
            cure = f"to have it think, set template = {{ enable_thinking = true }} in [{role}]"
        case _:
            return
    yield Finding("thinking", role, outcome, message, cure)


def _about_cache(report: EndpointReport, can: Capabilities) -> Iterator[Finding]:
    """
    Report a prefix cache that is on but of little use to a growing chain, with the cost and the
    cure.
    """
    cache = can.cache
    cure = _cure(can.cache, can)
    message = ""
    if can.prefix_cache is False and cache is not None and cache.enabled:
        message = (
            f"the prefix cache is on, but nothing of a prompt of {can.tried} tokens was read"
            " from it"
        )
        if can.speculation:
            message += (
                ", as is known of hybrid models under MTP and other speculative decoding"
                " (vllm#54360, vllm#53504)"
            )
            cure = "start vLLM without --speculative-config"
        else:
            message += f": it is cached in blocks of {cache.block}"
    elif can.prefix_cache and _coarse(can):
        again = (
            f": a verdict reads {read} again"
            if (read := tokens_read(report.reading)) != "unknown"
            else ""
        )
        block = (
            f"in blocks of {cache.block} tokens"
            if cache and cache.block
            else f"for prompts of {can.tried} tokens"
        )
        message = f"the prefix cache is on, but works {block}{again}"
    if message:
        takes = f"; a verdict takes {report.reading}" if report.reading else ""
        yield Finding("prefix_cache", report.role, "costs", f"{message}{takes}", cure)


def _coarse(can: Capabilities) -> bool:
    cache = can.cache
    if cache is None or cache.block is None:
        return can.tried > LONG
    return (cache.unit or cache.block) > FINE


def _cure(cache: CacheConfig | None, can: Capabilities) -> str:
    """Name the flags that let a hybrid's prefixes end anywhere, if the server lists them."""
    if cache is not None and cache.known and MATCH_UNIT not in cache.known:
        return (
            f"vLLM {can.version or 'as served'} has no --prefix-match-unit, which later versions"
            " have: update it"
        )
    unit = cache.finest if cache and cache.known else UNIT
    mode = "--mamba-cache-mode align " if _before(WITHOUT_MODE, can) else ""
    return f"start vLLM with {mode}--prefix-match-unit {unit}"


def _about_replica(other: EndpointReport, first: EndpointReport) -> list[Finding]:
    """
    Report what a replica has that the *first* one has not: a dead one costs, one with another model
    is refused.
    """
    named = f"{other.role} at {other.url}"
    if other.problem:
        outcome: Outcome = "cannot work" if first.problem else "costs"
        return [Finding("connection", named, outcome, other.problem)]
    if (other.model, other.vocabulary) != (first.model, first.vocabulary):
        message = f"it does not serve what {first.url} does, and is refused"
        return [
            Finding(
                "replica",
                named,
                "cannot work",
                message,
                "serve the same model at both, or leave one out",
            )
        ]
    known = [(finding.check, finding.message) for finding in _findings(first)]
    return [
        replace(finding, subject=named)
        for finding in _findings(other)
        if (finding.check, finding.message) not in known
    ]


def _about_pair(
    small: EndpointReport, large: EndpointReport, same: bool | None
) -> Iterator[Finding]:
    if small.problem or large.problem:
        return
    if why := disagreement(bool(small.thinks), bool(large.thinks)):
        cause, _, cure = why.partition(". ")
        message = f"this pair is refused: {cause}"
        yield Finding("thinking", "pair", "cannot work", message, f"{cure[:1].lower()}{cure[1:]}")
    elif large.thinks and not small.thinks:
        message = (
            "only the large model thinks: the small one drafts the steps of its thinking as if it"
            " answered"
        )
        yield Finding(
            "thinking", "pair", "costs", message, "draft with a small model that thinks too"
        )
    if (small.url, small.model) == (large.url, large.model):
        message = "small and large are the same server: a model gains nothing from its own drafts"
        yield Finding("distinct", "pair", "costs", message, OTHER)
    elif (small.model, same) == (large.model, True):
        message = f"small and large both serve {small.model!r}: are they one model?"
        yield Finding("distinct", "pair", "costs", message, OTHER)
    if (
        large.can
        and large.can.prompt_logprobs
        and large.can.suffix_scoring is None
        and large.scoring is not None
    ):
        message = (
            "suffix scoring is off: to score a step it reads the whole chain again,"
            f" {milliseconds(large.scoring)} after {LONG} tokens (a first token takes"
            f" {milliseconds(large.pace.first if large.pace else None)})"
        )
        yield Finding("suffix_scoring", "large", "costs", message, SUFFIX_CURE)
    if same is False:
        message = (
            "the vocabularies differ: every step is encoded anew for the other model, one request"
            " each"
        )
        yield Finding("vocabulary", "pair", "costs", message, "choose two models of one family")
    if large.digits is not None and large.digits < 0.5:
        message = (
            f"asked for a grade, it puts {large.digits:.0%} on digits; as a judge it does not"
            " understand"
        )
        yield Finding(
            "judging",
            "large",
            "costs",
            message,
            "choose another large model, or a policy without grades",
        )
    if small.pace and large.pace:
        yield from _about_speed(small.pace, large.pace)


def _about_speed(small: Pace, large: Pace) -> Iterator[Finding]:
    """
    Report a small model that is not much faster, as far as the noise of the measurements allows to
    tell.
    """
    noise = max(small.noise, large.noise)
    ratio = small.between / large.between if large.between else math.nan
    if ratio <= HARDLY_FASTER:
        return
    if ratio > HARDLY_FASTER * (1 + noise):
        how, swap = ("slower", "swap the two, or ") if ratio > 1 + noise else ("hardly faster", "")
        message = f"the small model is {how} than the large one: speculation cannot pay"
        cure = f"{swap}choose a smaller small model, or give it a faster server"
        yield Finding("speed", "pair", "costs", message, cure)
        return
    message = (
        "could not tell on these servers whether the small model is faster than the large one:"
        f" from one measurement to the next, the seconds for a token changed by {noise:.0%}"
    )
    yield Finding("speed", "pair", "unknown", message, AGAIN_IDLE)


def conclude_critic(report: CriticReport, fallback: Fallback | None = None) -> CriticReport:
    """
    Add the findings to the *report* of a reward model, or of a verifier, in whose place the
    *fallback* decides.

    Ratings that are no numbers from 0 to 1 become None.
    """
    right = report.right
    wrong = report.wrong
    found = None
    if report.problem:
        outcome: Outcome = "cannot work" if fallback in (None, "fail") else "costs"
        cure = (
            f"repair it: until then its fallback, {fallback}, decides" if outcome == "costs" else ""
        )
        found = Finding("connection", "critic", outcome, report.problem, cure)
    elif right is None or wrong is None or not (0 <= right <= 1 and 0 <= wrong <= 1):
        message = f"its ratings are not numbers from 0 to 1 but {right} and {wrong}"
        cure = "serve a reward model with one or two labels, with vLLM's --runner pooling"
        found = Finding("rating", "critic", "cannot work", message, cure)
        right = None
        wrong = None
    elif right <= wrong:
        outcome = "costs"
        cure = "set delimiter, layout and prefix in [critic] as the reward model was trained"
        if fallback is not None and right < wrong:
            cure = "is the score the other way round? 1 has to mean correct"
        elif fallback is not None:
            outcome = "unknown"
            cure = "nothing to cure if it judges other problems, such as programs"
        message = f"it rates a right one {right:.2f} and an obviously wrong one {wrong:.2f}"
        found = Finding("rating", "critic", outcome, message, cure)
    return replace(report, right=right, wrong=wrong, findings=(found,) if found else ())
