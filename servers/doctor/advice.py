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


def _costs(check: str, message: str, cure: str = "") -> Finding:
    """Return a finding without a subject. `conclude` sets the subject of every finding."""
    return Finding(check, "", "costs", message, cure)


def _cannot_work(check: str, message: str, cure: str = "") -> Finding:
    return Finding(check, "", "cannot work", message, cure)


def _unknown(check: str, message: str, cure: str) -> Finding:
    return Finding(check, "", "unknown", message, cure)


def _about_server(report: EndpointReport) -> Findings:
    can = report.can
    if report.problem or can is None:
        yield _cannot_work("connection", report.problem)
        return
    for name, lack in LACKS.items():
        is_enabled_cache = name == "prefix_cache" and can.cache and can.cache.enabled
        if getattr(can, name) is False and not is_enabled_cache:
            message = f"no {name.replace('_', ' ')}: {lack.cost}"
            yield Finding(name, "", lack.outcome, message, lack.cure)
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
            yield _unknown(name, *UNKNOWN.get(name, default))
    cause = report.failures.get("verdicts")
    if cause:
        yield _unknown("verdicts", f"the time of a verdict could not be measured ({cause})", AGAIN)


def _about_context(report: EndpointReport) -> Findings:
    """Report a context that is too short, and a chat template whose text is not exact."""
    context = report.context
    cure = "start vLLM with a larger --max-model-len"
    if context is not None and context < MIN_CONTEXT_TOKENS:
        message = f"its context of {context} tokens has no room for a step and its verdict"
        yield _cannot_work("context", message, cure)
    elif context is not None and context < CHAIN_CONTEXT_TOKENS:
        yield _costs("context", f"chains of thought end after {context} tokens", cure)
    if report.faithful is False:
        message = (
            "its chat template does not survive encoding, so that judge prompts may differ a little"
        )
        yield _costs("faithful", message, "start vLLM with another --chat-template")


def _about_failures(report: EndpointReport, can: Capabilities) -> Findings:
    """Report a model that cannot write, judge or score. Few policies let the small one judge."""
    failures = report.failures
    if "writing" in failures:
        yield _cannot_work("writing", f"it cannot write a step: {failures['writing']}", AGAIN)
    if "judging" in failures and report.role == "large":
        cure = "serve it with vLLM, or choose a policy without a judge"
        yield _cannot_work("judging", f"it cannot judge: {failures['judging']}", cure)
    elif "judging" in failures:
        message = (
            "policies in which the small model judges (cascade) cannot use it:"
            f" {failures['judging']}"
        )
        yield _costs("judging", message, "choose another policy")
    if can.suffix_scoring is False:
        message = "suffix scoring is set, but the server does not do it, or wrongly"
        yield _cannot_work("suffix_scoring", message, f"{SUFFIX_CURE}, or set it to false")
    elif "scoring" in failures:
        message = (
            "policies that score drafts (BiLD, reading, reflective) cannot use it:"
            f" {failures['scoring']}"
        )
        yield _costs("scoring", message, "choose a policy that scores nothing")


def _about_counts(can: Capabilities) -> Findings:
    """Report numbers that are wrong only in a batch with other requests, or with some flags."""
    if can.shared_batch is False:
        message = (
            "questions by token ids and the likeliest tokens of other requests break each other in"
            " one batch, as in vLLM's V1 runner, so that stepspec has only one of the two there at"
            " a time: beside requests for likeliest tokens, judges read the 20 likeliest tokens"
            " only"
        )
        cure = "start vLLM with VLLM_USE_V2_MODEL_RUNNER=1, if its V2 runner serves the model"
        yield _costs("shared_batch", message, cure)
    if can.cached_counts is False:
        message = (
            "replies say that no prompt tokens were cached where /metrics counts hits, as some"
            " versions do with --scheduling-policy priority (vllm#52897): the ledger counts cached"
            " prompt tokens as read"
        )
        yield _costs("cached_counts", message, "update vLLM")


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
    yield Finding("thinking", "", outcome, message, cure)


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
    yield _costs("prefix_cache", message, cure)


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
        yield _costs("connection", other.problem)
    elif not other.problem and (other.model, other.vocabulary) != (first.model, first.vocabulary):
        message = f"it does not serve what {first.url} does, and is refused"
        yield _cannot_work("replica", message, "serve the same model at both, or leave one out")
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
        message = (
            "suffix scoring is off: to score a step it reads the whole chain again,"
            f" {milliseconds(large.scoring)} after {LONG_PROMPT_TOKENS} tokens (a first token takes"
            f" {milliseconds(first_token)})"
        )
        yield _costs("suffix_scoring", message, SUFFIX_CURE)
    if large.digits is not None and large.digits < MIN_DIGITS_PROBABILITY:
        message = (
            f"asked for a grade, it puts {large.digits:.0%} on digits; as a judge it does not"
            " understand"
        )
        cure = "choose another large model, or a policy without grades"
        yield _costs("judging", message, cure)


def _about_pair(
    small: EndpointReport,
    large: EndpointReport,
    same_vocabulary: bool | None,
) -> Findings:
    why = disagreement(bool(small.thinks), bool(large.thinks))
    if why:
        cause, _, cure = why.partition(". ")
        cure = cure[:1].lower() + cure[1:]
        yield _cannot_work("thinking", f"this pair is refused: {cause}", cure)
    elif large.thinks and not small.thinks:
        message = (
            "only the large model thinks: the small one drafts the steps of its thinking as if it"
            " answered"
        )
        yield _costs("thinking", message, "draft with a small model that thinks too")
    same_name = small.model == large.model
    if same_name and small.url == large.url:
        message = "small and large are the same server: a model gains nothing from its own drafts"
        yield _costs("distinct", message, SMALLER_MODEL)
    elif same_name and same_vocabulary:
        message = f"small and large both serve {small.model!r}: are they one model?"
        yield _costs("distinct", message, SMALLER_MODEL)
    if same_vocabulary is False:
        message = (
            "the vocabularies differ: every step is encoded anew for the other model, one request"
            " each"
        )
        yield _costs("vocabulary", message, "choose two models of one family")
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
        message = "the small model is slower than the large one: speculation cannot pay"
        yield _costs("speed", message, f"swap the two, or {cure}")
    elif ratio > MAX_PACE_RATIO * (1 + noise):
        message = "the small model is hardly faster than the large one: speculation cannot pay"
        yield _costs("speed", message, cure)
    else:
        message = (
            "could not tell on these servers whether the small model is faster than the large one:"
            f" from one measurement to the next, the seconds for a token changed by {noise:.0%}"
        )
        yield _unknown("speed", message, AGAIN_IDLE)


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
        message = f"its ratings are not numbers from 0 to 1 but {right} and {wrong}"
        cure = "serve a reward model with one or two labels, with vLLM's --runner pooling"
        findings = [_cannot_work("rating", message, cure)]
        report = replace(report, right=None, wrong=None)
    elif right <= wrong:
        findings = [_about_ratings(right, wrong, is_verifier=fallback is not None)]
    return replace(report, findings=tuple(_about("critic", findings)))


def _about_failed_critic(problem: str, fallback: Fallback | None) -> Finding:
    if fallback in (None, "fail"):
        return _cannot_work("connection", problem)
    cure = f"repair it: until then its fallback, {fallback}, decides"
    return _costs("connection", problem, cure)


def _about_ratings(right: float, wrong: float, *, is_verifier: bool) -> Finding:
    """Report a critic that rates a wrong step or answer at least as high as a right one."""
    message = f"it rates a right one {right:.2f} and an obviously wrong one {wrong:.2f}"
    if not is_verifier:
        cure = "set delimiter, layout and prefix in [critic] as the reward model was trained"
        return _costs("rating", message, cure)
    if right < wrong:
        return _costs("rating", message, "is the score the other way round? 1 has to mean correct")
    cure = "nothing to cure if it judges other problems, such as programs"
    return _unknown("rating", message, cure)
