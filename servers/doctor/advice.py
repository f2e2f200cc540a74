"""
Conclude from what the doctor saw: findings with their cost and their cure.

Cures are flags of the vLLM that was found. Nothing is asked of a server here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from stepspec.orchestrator.endpoints.capabilities import LONG_PROMPT_TOKENS, Capabilities
from stepspec.orchestrator.endpoints.chat_template import Source, disagreement
from stepspec.orchestrator.endpoints.metrics import FINE_BLOCK_TOKENS, MATCH_UNIT, CacheConfig

from .report import (
    LACKS,
    CriticReport,
    Diagnosis,
    EndpointReport,
    Finding,
    FindingOutcome,
    summary,
)

Findings: TypeAlias = Iterator[Finding]

MIN_CONTEXT_TOKENS = 256
"""For a short problem, a judge's question and one step."""
CHAIN_CONTEXT_TOKENS = 2048
"""For a chain of thought, at least."""
VERSIONS_WITH_CACHE_MODE = re.compile(r"v?0\.([0-2]?\d|3[0-2])\b")
"""The versions of vLLM before 0.33, which ignores ``--mamba-cache-mode``."""
MIN_DIGITS_PROBABILITY = 0.5

AGAIN = "look into the server's log, and run `stepspec doctor` again"
LARGER_CONTEXT = "start vLLM with a larger --max-model-len"
SUFFIX_CURE = (
    "start vLLM with --enable-scale-out --enable-prompt-tokens-details and set suffix_scoring ="
    " true"
)
UNKNOWN_CURES: Mapping[str, str] = {
    "version": "let a proxy forward /version",
    "speculation": "let a proxy forward /metrics",
    "prefix_cache": (
        "start vLLM with --enable-prompt-tokens-details, or let a proxy forward /metrics"
    ),
}
"""
The cure where a capability is not known because the server does not report it.

Other capabilities are unknown because their request failed.
"""

FAILURES: Mapping[str, Finding] = {
    "writing": Finding("cannot work", "writing", "it cannot write a step", AGAIN),
    "judging": Finding(
        "cannot work",
        "judging",
        "it cannot judge",
        "serve it with vLLM, or choose a policy without a judge",
    ),
}
"""What it means that a measurement of the report failed. Its reason is added to the message."""
SMALL_CANNOT_JUDGE = Finding(
    "costs",
    "judging",
    "policies in which the small model judges (cascade) cannot use it",
    "choose another policy",
)

THINKING: Mapping[tuple[Source, bool | None], Finding] = {
    ("effect", True): Finding(
        "works",
        "thinking",
        "its chat template shows no thinking block, but it opens one by itself, {block}, which"
        " stepspec opens in its place",
        "set thinks = false in [{role}] to have the block skipped",
    ),
    ("effect", False): Finding(
        "costs",
        "thinking",
        "its chat template shows no thinking block, and asked a plain question it opened none, so"
        " it reasons in its answer",
        "if it does think, set thinks = true in [{role}]",
    ),
    ("template", False): Finding(
        "works",
        "thinking",
        "its chat template switches thinking off, so it reasons in its answer",
        "to have it think, set template = {{ enable_thinking = true }} in [{role}]",
    ),
}
"""By how it is known, and by whether the model thinks. A block in the template is no finding."""


def conclude(
    small: EndpointReport,
    large: EndpointReport,
    *others: EndpointReport,
    critic: CriticReport | None = None,
) -> Diagnosis:
    """
    Make the diagnosis from the reports of both endpoints, of the *others*, their replicas, and of
    the *critic*.

    Ratings of a critic that are no numbers from 0 to 1 become None.
    """
    same_vocabulary = None
    if small.vocabulary and large.vocabulary:
        same_vocabulary = small.vocabulary == large.vocabulary
    found = [("small", _about_server(small)), ("large", _about_server(large))]
    if not small.problem and not large.problem:
        about_pair = _about_pair(small, large, same_vocabulary)
        found += [("large", _about_judge(large)), ("pair", about_pair)]
    for other in others:
        first = small if other.role == "small" else large
        found.append((f"{other.role} at {other.url}", _about_replica(other, first)))
    if critic:
        found.append(("critic", _about_critic(critic)))
    findings = [replace(finding, subject=subject) for subject, about in found for finding in about]
    refused = ("critic", "cannot work")
    if critic and refused in [(finding.subject, finding.outcome) for finding in findings]:
        critic = replace(critic, right=None, wrong=None)
    counts: Counter[FindingOutcome] = Counter(finding.outcome for finding in findings)
    return Diagnosis(
        ok=not counts["cannot work"],
        summary=summary(counts),
        small=small,
        large=large,
        others=others,
        same_vocabulary=same_vocabulary,
        critic=critic,
        findings=tuple(findings),
    )


def _about_server(report: EndpointReport) -> Findings:
    can = report.can
    if report.problem or can is None:
        yield Finding("cannot work", "connection", report.problem)
        return
    yield from _about_capabilities(can)
    yield from _about_cache(report, can)
    yield from _about_context(report)
    for check, reason in report.failures.items():
        finding = FAILURES[check]
        if check == "judging" and report.role == "small":
            finding = SMALL_CANNOT_JUDGE
        yield replace(finding, message=f"{finding.message}: {reason}")
    thinking = THINKING.get((report.thinks_by, report.thinks))
    if thinking:
        yield replace(
            thinking,
            message=thinking.message.format(block=report.block),
            cure=thinking.cure.format(role=report.role),
        )


def _about_capabilities(can: Capabilities) -> Findings:
    explained = ["prefix_cache"] if can.cache and can.cache.enabled else []  # by `_about_cache`
    for name in ("version", "speculation", *LACKS):
        value = getattr(can, name)
        lack = LACKS.get(name)
        words = name.replace("_", " ")
        if value is None:
            cure = UNKNOWN_CURES.get(name, AGAIN)
            yield Finding("unknown", name, f"could not tell on this server: {words}", cure)
        elif value is False and lack and name not in explained:
            yield Finding(lack.outcome, name, f"no {words}: {lack.cost}", lack.cure)
    if can.suffix_scoring is False:
        yield Finding(
            "cannot work",
            "suffix_scoring",
            "suffix scoring is set, but the server does not do it, or wrongly",
            f"{SUFFIX_CURE}, or set it to false",
        )
    if can.cached_counts is False:
        yield Finding(
            "costs",
            "cached_counts",
            "replies say that no prompt tokens were cached where /metrics counts hits, as some"
            " versions do with --scheduling-policy priority (vllm#52897): the ledger counts cached"
            " prompt tokens as read",
            "update vLLM",
        )


def _about_context(report: EndpointReport) -> Findings:
    """Report a context that is too short, and a chat template whose text is not exact."""
    context = report.context or CHAIN_CONTEXT_TOKENS
    if context < MIN_CONTEXT_TOKENS:
        message = f"its context of {context} tokens has no room for a step and its verdict"
        yield Finding("cannot work", "context", message, LARGER_CONTEXT)
    elif context < CHAIN_CONTEXT_TOKENS:
        message = f"chains of thought end after {context} tokens"
        yield Finding("costs", "context", message, LARGER_CONTEXT)
    if report.faithful is False:
        yield Finding(
            "costs",
            "faithful",
            "its chat template does not survive encoding, so that judge prompts may differ a"
            " little",
            "start vLLM with another --chat-template",
        )


def _about_cache(report: EndpointReport, can: Capabilities) -> Findings:
    """Report a prefix cache that is on, but of little use to a growing chain."""
    cache = can.cache or CacheConfig()
    cure = _cache_cure(can, cache)
    is_coarse = (cache.unit or cache.block or 0) > FINE_BLOCK_TOKENS
    if cache.block is None:
        is_coarse = can.tried > LONG_PROMPT_TOKENS
    if can.prefix_cache and is_coarse:
        found = f"works in blocks of {cache.block or f'up to {can.tried}'} tokens"
    elif can.prefix_cache is False and cache.enabled:
        found = (
            f"nothing of a prompt of {can.tried} tokens was read from it: it is cached in blocks of"
            f" {cache.block}"
        )
        if can.speculation:
            found += (
                ", and hybrid models read nothing under MTP and other speculative decoding"
                " (vllm#54360, vllm#53504)"
            )
            cure = "start vLLM without --speculative-config"
    else:
        return
    yield Finding("costs", "prefix_cache", f"the prefix cache is on, but {found}", cure)


def _cache_cure(can: Capabilities, cache: CacheConfig) -> str:
    """Name the flags that let a hybrid's prefixes end anywhere, if the server lists them."""
    if cache.known and MATCH_UNIT not in cache.known:
        return "this vLLM has no --prefix-match-unit, which later versions have: update it"
    flag = f"--prefix-match-unit {cache.finest}"
    if VERSIONS_WITH_CACHE_MODE.match(can.version or ""):
        flag = f"--mamba-cache-mode align {flag}"
    return f"start vLLM with {flag}"


def _about_replica(other: EndpointReport, first: EndpointReport) -> Findings:
    """
    Report what differs between a replica and the *first* one.

    A replica that is down costs speed while the first one works.
    """
    if other.problem:
        outcome: FindingOutcome = "cannot work" if first.problem else "costs"
        yield Finding(outcome, "connection", other.problem)
    elif (other.model, other.vocabulary) != (first.model, first.vocabulary):
        yield Finding(
            "cannot work",
            "replica",
            f"it does not serve what {first.url} does, and is refused",
            "serve the same model at both, or leave one out",
        )
    else:
        known = [*_about_server(first)]
        yield from (finding for finding in _about_server(other) if finding not in known)


def _about_judge(large: EndpointReport) -> Findings:
    """Report a large model that scores slowly, or does not understand a judge's question."""
    can = large.can
    if can and can.prompt_logprobs and can.suffix_scoring is None:
        yield Finding(
            "costs",
            "suffix_scoring",
            "suffix scoring is off: to score a step, each verdict reads the whole chain again",
            SUFFIX_CURE,
        )
    if large.digits is not None and large.digits < MIN_DIGITS_PROBABILITY:
        yield Finding(
            "costs",
            "judging",
            f"asked for a grade, it puts {large.digits:.0%} on digits; as a judge it does not"
            " understand",
            "choose another large model, or a policy without grades",
        )


def _about_pair(
    small: EndpointReport,
    large: EndpointReport,
    same_vocabulary: bool | None,
) -> Findings:
    reason = disagreement(bool(small.thinks), bool(large.thinks))
    if reason:
        yield Finding("cannot work", "thinking", f"this pair is refused: {reason}")
    elif large.thinks and not small.thinks:
        yield Finding(
            "costs",
            "thinking",
            "only the large model thinks: the small one drafts the steps of its thinking as if it"
            " answered",
            "draft with a small model that thinks too",
        )
    if small.model == large.model and (small.url == large.url or same_vocabulary):
        yield Finding(
            "costs",
            "distinct",
            f"small and large both serve {small.model!r}: a model gains nothing from its own"
            " drafts",
            "serve a smaller model for small",
        )
    if same_vocabulary is False:
        yield Finding(
            "costs",
            "vocabulary",
            "the vocabularies differ: every step is encoded anew for the other model, one request"
            " each",
            "choose two models of one family",
        )


def _about_critic(report: CriticReport) -> Findings:
    right = report.right
    wrong = report.wrong
    if report.problem or right is None or wrong is None:
        yield Finding("cannot work", "connection", report.problem)
    elif not (0 <= right <= 1 and 0 <= wrong <= 1):
        yield Finding(
            "cannot work",
            "rating",
            f"its ratings are not numbers from 0 to 1 but {right} and {wrong}",
            "serve a reward model with one or two labels, with vLLM's --runner pooling",
        )
    elif right <= wrong:
        yield Finding(
            "costs",
            "rating",
            f"it rates a right one {right:.2f} and an obviously wrong one {wrong:.2f}",
            "set delimiter, layout and prefix in [critic] as the reward model was trained",
        )
