"""
Conclude from the doctor's measurements: findings with their cost and their cure.

Cures are flags of the vLLM that was found. `conclude` is about a pair, `conclude_critic` about the
critic. Nothing is asked of a server here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from stepspec.orchestrator.endpoints.capabilities import LONG_PROMPT_TOKENS, Capabilities
from stepspec.orchestrator.endpoints.chat_template import disagreement
from stepspec.orchestrator.endpoints.metrics import FINE_BLOCK_TOKENS, MATCH_UNIT, MATCH_UNIT_TOKENS
from stepspec.orchestrator.events import Fallback

from .report import (
    LACKS,
    CriticReport,
    EndpointReport,
    Finding,
    FindingOutcome,
    PairReport,
    WritePace,
    milliseconds,
    tokens_read,
)

Findings: TypeAlias = Iterator[Finding]

MIN_CONTEXT_TOKENS = 256
"""For a short problem, a judge's question and one step."""
CHAIN_CONTEXT_TOKENS = 2048
"""For a chain of thought, at least."""

UNKNOWN: Mapping[str, tuple[str, str]] = {
    "version": (
        "the server does not report its version",
        "let a proxy forward /version",
    ),
    "speculation": (
        "without /metrics it is not known whether the server drafts tokens",
        "let a proxy forward /metrics",
    ),
    "prefix_cache": (
        "neither replies nor /metrics tell what is read from the cache",
        "start vLLM with --enable-prompt-tokens-details, or let a proxy forward /metrics",
    ),
}
"""
Why a capability may be unknown, and the cure.

Other capabilities are unknown if their request failed.
"""

AGAIN = "look into the server's log, and run `stepspec doctor` again"
AGAIN_IDLE = "run `stepspec doctor` again when the servers are idle"
SMALLER_MODEL = "serve a smaller model for small"
VERSION_WITHOUT_CACHE_MODE = (0, 33)
"""The first version of vLLM that ignores ``--mamba-cache-mode``."""
SUFFIX_CURE = (
    "start vLLM with --enable-scale-out --enable-prompt-tokens-details and set suffix_scoring ="
    " true"
)
MAX_PACE_RATIO = 0.7
"""The most seconds for a token of a faster small model, as a share of the large model's."""
MIN_DIGITS_PROBABILITY = 0.5


def conclude(small: EndpointReport, large: EndpointReport, *others: EndpointReport) -> PairReport:
    """Make the diagnosis from the reports of both endpoints and of the *others*, their replicas."""
    same_vocabulary = None
    if small.vocabulary and large.vocabulary:
        same_vocabulary = small.vocabulary == large.vocabulary
    findings = [*_about("small", _about_server(small)), *_about("large", _about_server(large))]
    if not small.problem and not large.problem:
        findings += _about("large", _about_judge(large))
        findings += _about("pair", _about_pair(small, large, same_vocabulary))
    for other in others:
        first = small if other.role == "small" else large
        findings += _about(f"{other.role} at {other.url}", _about_replica(other, first))
    return PairReport(small, large, same_vocabulary, tuple(findings), others)


def _about(subject: str, findings: Iterable[Finding]) -> list[Finding]:
    return [replace(finding, subject=subject) for finding in findings]


def _about_server(report: EndpointReport) -> Findings:
    can = report.can
    if report.problem or can is None:
        yield Finding("cannot work", "connection", report.problem)
        return
    for name, lack in LACKS.items():
        is_enabled_cache = name == "prefix_cache" and can.cache and can.cache.enabled
        if getattr(can, name) is False and not is_enabled_cache:
            yield Finding(
                lack.outcome,
                name,
                f"no {name.replace('_', ' ')}: {lack.cost}",
                lack.cure,
            )
    yield from _about_unknowns(report, can)
    yield from _about_cache(report, can)
    yield from _about_context(report)
    yield from _about_failures(report, can)
    yield from _about_counts(can)
    yield from _about_thinking(report)


def _before(version: tuple[int, int], can: Capabilities) -> bool:
    """Whether the server reports an older vLLM than *version*."""
    found = re.match(r"v?(\d+)\.(\d+)", can.version or "")
    return found is not None and tuple(map(int, found.groups())) < version


def _about_unknowns(report: EndpointReport, can: Capabilities) -> Findings:
    for name in ("version", "speculation", *LACKS):
        if getattr(can, name) is None:
            words = name.replace("_", " ")
            default = (f"could not tell on this server whether it has {words}", AGAIN)
            yield Finding("unknown", name, *UNKNOWN.get(name, default))
    cause = report.failures.get("verdicts")
    if cause:
        yield Finding(
            "unknown", "verdicts", f"the time of a verdict could not be measured ({cause})", AGAIN
        )


def _about_context(report: EndpointReport) -> Findings:
    """Report a context that is too short, and a chat template whose text is not exact."""
    context = report.context
    cure = "start vLLM with a larger --max-model-len"
    if context is not None and context < MIN_CONTEXT_TOKENS:
        yield Finding(
            "cannot work",
            "context",
            f"its context of {context} tokens has no room for a step and its verdict",
            cure,
        )
    elif context is not None and context < CHAIN_CONTEXT_TOKENS:
        yield Finding(
            "costs",
            "context",
            f"chains of thought end after {context} tokens",
            cure,
        )
    if report.faithful is False:
        yield Finding(
            "costs",
            "faithful",
            (
                "its chat template does not survive encoding, so that judge prompts may differ a"
                " little"
            ),
            "start vLLM with another --chat-template",
        )


def _about_failures(report: EndpointReport, can: Capabilities) -> Findings:
    """Report a model that cannot write, judge or score. Few policies let the small one judge."""
    failures = report.failures
    if "writing" in failures:
        yield Finding(
            "cannot work", "writing", f"it cannot write a step: {failures['writing']}", AGAIN
        )
    if "judging" in failures and report.role == "large":
        yield Finding(
            "cannot work",
            "judging",
            f"it cannot judge: {failures['judging']}",
            "serve it with vLLM, or choose a policy without a judge",
        )
    elif "judging" in failures:
        yield Finding(
            "costs",
            "judging",
            (
                "policies in which the small model judges (cascade) cannot use it:"
                f" {failures['judging']}"
            ),
            "choose another policy",
        )
    if can.suffix_scoring is False:
        yield Finding(
            "cannot work",
            "suffix_scoring",
            "suffix scoring is set, but the server does not do it, or wrongly",
            f"{SUFFIX_CURE}, or set it to false",
        )
    elif "scoring" in failures:
        yield Finding(
            "costs",
            "scoring",
            (
                "policies that score drafts (BiLD, reading, reflective) cannot use it:"
                f" {failures['scoring']}"
            ),
            "choose a policy that scores nothing",
        )


def _about_counts(can: Capabilities) -> Findings:
    """Report numbers that are wrong only with some flags."""
    if can.cached_counts is False:
        yield Finding(
            "costs",
            "cached_counts",
            (
                "replies say that no prompt tokens were cached where /metrics counts hits, as"
                " some versions do with --scheduling-policy priority (vllm#52897): the ledger"
                " counts cached prompt tokens as read"
            ),
            "update vLLM",
        )


def _about_thinking(report: EndpointReport) -> Findings:
    """Report how the model thinks, unless its chat template shows a thinking block."""
    role = report.role
    block = report.block
    answers = "it reasons in its answer"
    outcome: FindingOutcome = "works"
    cure = ""
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
        case "setting", False:
            message = f"thinks = false is set, so its block {block} is skipped, and {answers}"
        case _, False:
            message = f"its chat template switches thinking off, so {answers}"
            cure = f"to have it think, set template = {{ enable_thinking = true }} in [{role}]"
        case _:
            return
    yield Finding(outcome, "thinking", message, cure)


def _about_cache(report: EndpointReport, can: Capabilities) -> Findings:
    """Report a prefix cache that is on, but of little use to a growing chain."""
    cache = can.cache
    if can.prefix_cache is False and cache is not None and cache.enabled:
        message = (
            f"the prefix cache is on, but nothing of a prompt of {can.tried} tokens was read"
            " from it"
        )
        if can.speculation:
            cure = "start vLLM without --speculative-config"
            message += (
                ", as is known of hybrid models under MTP and other speculative decoding"
                " (vllm#54360, vllm#53504)"
            )
        else:
            cure = _cache_cure(can)
            message += f": it is cached in blocks of {cache.block}"
    elif can.prefix_cache and _is_coarse(can):
        cure = _cache_cure(can)
        unit = f"for prompts of {can.tried} tokens"
        if cache and cache.block:
            unit = f"in blocks of {cache.block} tokens"
        message = f"the prefix cache is on, but works {unit}"
        again = tokens_read(report.reading)
        if again != "unknown":
            message += f": a verdict reads {again} again"
    else:
        return
    if report.reading:
        message += f"; a verdict takes {report.reading}"
    yield Finding("costs", "prefix_cache", message, cure)


def _is_coarse(can: Capabilities) -> bool:
    cache = can.cache
    if cache is None or cache.block is None:
        return can.tried > LONG_PROMPT_TOKENS
    return (cache.unit or cache.block) > FINE_BLOCK_TOKENS


def _cache_cure(can: Capabilities) -> str:
    """Name the flags that let a hybrid's prefixes end anywhere, if the server lists them."""
    cache = can.cache
    unit = MATCH_UNIT_TOKENS
    if cache is not None and cache.known:
        unit = cache.finest
        if MATCH_UNIT not in cache.known:
            return (
                f"vLLM {can.version or 'as served'} has no --prefix-match-unit, which later"
                " versions have: update it"
            )
    mode = "--mamba-cache-mode align " if _before(VERSION_WITHOUT_CACHE_MODE, can) else ""
    return f"start vLLM with {mode}--prefix-match-unit {unit}"


def _about_replica(other: EndpointReport, first: EndpointReport) -> Findings:
    """
    Report what differs between a replica and the *first* one.

    A replica that is down costs speed while the first one works.
    """
    if other.problem and not first.problem:
        yield Finding("costs", "connection", other.problem)
    elif not other.problem and (other.model, other.vocabulary) != (first.model, first.vocabulary):
        yield Finding(
            "cannot work",
            "replica",
            f"it does not serve what {first.url} does, and is refused",
            "serve the same model at both, or leave one out",
        )
    else:
        known = [(finding.check, finding.message) for finding in _about_server(first)]
        for finding in _about_server(other):
            if other.problem or (finding.check, finding.message) not in known:
                yield finding


def _about_judge(large: EndpointReport) -> Findings:
    """Report a large model that scores slowly, or does not understand a judge's question."""
    can = large.can
    scores_all = can is not None and can.prompt_logprobs and can.suffix_scoring is None
    if scores_all and large.scoring is not None:
        first_token = large.pace.first if large.pace else None
        yield Finding(
            "costs",
            "suffix_scoring",
            (
                "suffix scoring is off: to score a step it reads the whole chain again,"
                f" {milliseconds(large.scoring)} after {LONG_PROMPT_TOKENS} tokens (a first token"
                f" takes {milliseconds(first_token)})"
            ),
            SUFFIX_CURE,
        )
    if large.digits is not None and large.digits < MIN_DIGITS_PROBABILITY:
        yield Finding(
            "costs",
            "judging",
            (
                f"asked for a grade, it puts {large.digits:.0%} on digits; as a judge it does not"
                " understand"
            ),
            "choose another large model, or a policy without grades",
        )


def _about_pair(
    small: EndpointReport,
    large: EndpointReport,
    same_vocabulary: bool | None,
) -> Findings:
    why = disagreement(bool(small.thinks), bool(large.thinks))
    if why:
        cause, _, cure = why.partition(". ")
        yield Finding(
            "cannot work",
            "thinking",
            f"this pair is refused: {cause}",
            cure[:1].lower() + cure[1:],
        )
    elif large.thinks and not small.thinks:
        yield Finding(
            "costs",
            "thinking",
            (
                "only the large model thinks: the small one drafts the steps of its thinking as"
                " if it answered"
            ),
            "draft with a small model that thinks too",
        )
    same_name = small.model == large.model
    if same_name and small.url == large.url:
        yield Finding(
            "costs",
            "distinct",
            "small and large are the same server: a model gains nothing from its own drafts",
            SMALLER_MODEL,
        )
    elif same_name and same_vocabulary:
        yield Finding(
            "costs",
            "distinct",
            f"small and large both serve {small.model!r}: are they one model?",
            SMALLER_MODEL,
        )
    if same_vocabulary is False:
        yield Finding(
            "costs",
            "vocabulary",
            (
                "the vocabularies differ: every step is encoded anew for the other model, one"
                " request each"
            ),
            "choose two models of one family",
        )
    if small.pace and large.pace:
        yield from _about_speed(small.pace, large.pace)


def _about_speed(small: WritePace, large: WritePace) -> Findings:
    """Report a small model that is not much faster, if the noise of the timings allows to tell."""
    noise = max(small.noise, large.noise)
    ratio = small.between / large.between if large.between else math.nan
    cure = "choose a smaller small model, or give it a faster server"
    if ratio <= MAX_PACE_RATIO:
        return
    if ratio > 1 + noise:
        yield Finding(
            "costs",
            "speed",
            "the small model is slower than the large one: speculation cannot pay",
            f"swap the two, or {cure}",
        )
    elif ratio > MAX_PACE_RATIO * (1 + noise):
        yield Finding(
            "costs",
            "speed",
            "the small model is hardly faster than the large one: speculation cannot pay",
            cure,
        )
    else:
        yield Finding(
            "unknown",
            "speed",
            (
                "could not tell on these servers whether the small model is faster than the large"
                " one: from one measurement to the next, the seconds for a token changed by"
                f" {noise:.0%}"
            ),
            AGAIN_IDLE,
        )


def conclude_critic(report: CriticReport, fallback: Fallback | None = None) -> CriticReport:
    """
    Add the finding to the *report* of a reward model or a verifier.

    The *fallback* decides in place of a verifier that fails. Ratings that are no numbers from 0 to
    1 become None.
    """
    right = report.right
    wrong = report.wrong
    findings: list[Finding] = []
    if report.problem:
        findings = [_about_failed_critic(report.problem, fallback)]
    elif right is None or wrong is None or not (0 <= right <= 1 and 0 <= wrong <= 1):
        cure = "serve a reward model with one or two labels, with vLLM's --runner pooling"
        findings = [
            Finding(
                "cannot work",
                "rating",
                f"its ratings are not numbers from 0 to 1 but {right} and {wrong}",
                cure,
            ),
        ]
        report = replace(report, right=None, wrong=None)
    elif right <= wrong:
        findings = [_about_ratings(right, wrong, is_verifier=fallback is not None)]
    return replace(report, findings=tuple(_about("critic", findings)))


def _about_failed_critic(problem: str, fallback: Fallback | None) -> Finding:
    if fallback in (None, "fail"):
        return Finding("cannot work", "connection", problem)
    return Finding(
        "costs", "connection", problem, f"repair it: until then its fallback, {fallback}, decides"
    )


def _about_ratings(right: float, wrong: float, *, is_verifier: bool) -> Finding:
    """Report a critic that rates a wrong step or answer at least as high as a right one."""
    message = f"it rates a right one {right:.2f} and an obviously wrong one {wrong:.2f}"
    if not is_verifier:
        return Finding(
            "costs",
            "rating",
            message,
            "set delimiter, layout and prefix in [critic] as the reward model was trained",
        )
    if right < wrong:
        return Finding(
            "costs", "rating", message, "is the score the other way round? 1 has to mean correct"
        )
    return Finding(
        "unknown",
        "rating",
        message,
        "nothing to cure if it judges other problems, such as programs",
    )
