"""
What the doctor's measurements mean: findings with their cost and their cure, in the flags of the vLLM that was found.

`conclude` is about a pair, `conclude_critic` and `conclude_verifier` are about the critic. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import NamedTuple

from ..endpoints.chat_template import disagreement
from ..endpoints.metrics import CHECKPOINTS, FINE, MATCH_UNIT, RETENTION, UNIT, CacheConfig
from ..endpoints.probe import LONG, Capabilities
from ..events import Fallback
from .report import CriticReport, Diagnosis, EndpointReport, Finding, Outcome, Pace, Reading

LEAST_CONTEXT = 256  # tokens: a short problem, a judge's question and one step
SHORT_CONTEXT = 2048  # tokens; chains of thought are longer


class Lack(NamedTuple):
    """What it means that a capability is missing: the *outcome*, the *cost*, and the *cure*."""

    outcome: Outcome
    cost: str
    cure: str


LACKS: Mapping[str, Lack] = {
    "token_ids": Lack("cannot work", "no step can be written", "serve the model with vLLM 0.10.2 or later"),
    "stop_included": Lack("cannot work", "steps lose their delimiters", "serve the model with vLLM"),
    "forced": Lack("costs", "judges may answer with other words", "serve the model with vLLM 0.10.2 or later"),
    "chosen_logprobs": Lack(
        "costs",
        "judges read the 20 likeliest tokens only, so rare grades count as impossible",
        "update vLLM, or start it without --speculative-config: its V1 runner cannot do it while it speculates",
    ),
    "prompt_logprobs": Lack(
        "costs",
        "policies that score drafts (BiLD, reading, reflective) cannot use it",
        "choose a policy that scores nothing (`stepspec policies` lists what each needs), or update vLLM",
    ),
    "prefix_cache": Lack(
        "costs", "every verdict reads the whole chain again", "start vLLM with --enable-prefix-caching"
    ),
    "cached_tokens": Lack(
        "costs", "the ledger counts cached prompt tokens as read", "start vLLM with --enable-prompt-tokens-details"
    ),
    "metrics": Lack(
        "costs",
        "the server's queue and its cache hits stay unknown",
        "let the proxy forward /metrics, and start vLLM without --disable-log-stats",
    ),
}
"""What each capability means where it is missing, in the order of the table."""

UNKNOWN: Mapping[str, str] = {
    "version": "the server does not report its version: let a proxy forward /version",
    "speculation": "without /metrics it is not known whether the server drafts tokens: let a proxy forward /metrics",
    "prefix_cache": "neither replies nor /metrics tell what is read from the cache: start vLLM with "
    "--enable-prompt-tokens-details, or let a proxy forward /metrics",
}
"""Why each of these may be unknown, and what helps; the others are unknown if their request failed."""

AGAIN = "look into the server's log, and run `stepspec doctor` again"
AGAIN_IDLE = "run `stepspec doctor` again when the servers are idle"
OTHER = "serve a smaller model for small"
SCALE_OUT, WITHOUT_MODE = (0, 30), (0, 33)
"""The first versions of vLLM that need --enable-scale-out for its own routes, and that ignore --mamba-cache-mode."""
HARDLY_FASTER = 0.7  # of the large model's seconds for a token


def conclude(small: EndpointReport, large: EndpointReport, *others: EndpointReport) -> Diagnosis:
    """Make the diagnosis from the reports of both endpoints and of the *others*, their replicas."""
    known = small.vocabulary is not None and large.vocabulary is not None
    same = small.vocabulary == large.vocabulary if known else None
    findings = [*_findings(small), *_findings(large), *_about_pair(small, large, same)]
    for other in others:
        findings += _about_replica(other, small if other.role == "small" else large)
    return Diagnosis(small, large, same, tuple(findings), others)


def _findings(report: EndpointReport) -> list[Finding]:
    role, can = report.role, report.can
    if report.problem or can is None:
        return [Finding("connection", role, "cannot work", report.problem)]
    findings = [
        Finding(name, role, lack.outcome, f"no {_spaced(name)}: {lack.cost}", lack.cure)
        for name, lack in LACKS.items()
        if getattr(can, name) is False and not (name == "prefix_cache" and _switched_on(can))
    ]
    findings += _about_unknowns(report, can)
    findings += _about_cache(report, can)
    findings += _about_context(report)
    findings += _about_writing(report)
    if report.faithful is False:
        message = "its chat template does not survive encoding, so that judge prompts may differ a little"
        findings.append(Finding("faithful", role, "costs", message, "start vLLM with another --chat-template"))
    if report.model in ("small", "large"):
        message = (
            f"it is served as {report.model!r}: a calibration cannot tell when another model takes its place, and the "
            "service lists it with its role before the name"
        )
        findings.append(Finding("name", role, "costs", message, "serve it under its own name"))
    findings += [*_about_scoring(report, can), *_about_counts(report, can)]
    return [*findings, *_about_ordering(report), *_about_thinking(report)]


def _version(can: Capabilities) -> tuple[int, int] | None:
    """The first two numbers of the server's version; None if it does not report any."""
    found = re.match(r"v?(\d+)\.(\d+)", can.version or "")
    return (int(found[1]), int(found[2])) if found else None


def _suffix_cure(can: Capabilities) -> str:
    version = _version(can)
    own_routes = "" if version and version < SCALE_OUT else "--enable-scale-out "
    return f"start vLLM with {own_routes}--enable-prompt-tokens-details and set suffix_scoring = true"


def _hybrid_flags(can: Capabilities, unit: int) -> str:
    """The flags that let a hybrid's prefixes end anywhere; no mode for a version that ignores it."""
    version = _version(can)
    mode = "--mamba-cache-mode align " if version and version < WITHOUT_MODE else ""
    return f"{mode}--prefix-match-unit {unit}"


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _about_unknowns(report: EndpointReport, can: Capabilities) -> list[Finding]:
    findings: list[Finding] = []
    for name in ("version", "speculation", *LACKS):
        if getattr(can, name) is not None:
            continue
        default = f"could not tell on this server whether it has {_spaced(name)}: {AGAIN}"
        message, _, cure = UNKNOWN.get(name, default).partition(": ")
        findings.append(Finding(name, report.role, "unknown", message, cure))
    if why := report.failures.get("verdicts"):
        message = f"the time of a verdict could not be measured ({why})"
        findings.append(Finding("verdicts", report.role, "unknown", message, AGAIN))
    return findings


def _about_context(report: EndpointReport) -> list[Finding]:
    if report.context is None or report.context >= SHORT_CONTEXT:
        return []
    outcome: Outcome = "costs"
    message, cure = f"chains of thought end after {report.context} tokens", "start vLLM with a larger --max-model-len"
    if report.context < LEAST_CONTEXT:
        outcome, message = (
            "cannot work",
            f"its context of {report.context} tokens has no room for a step and its verdict",
        )
    return [Finding("context", report.role, outcome, message, cure)]


def _about_writing(report: EndpointReport) -> list[Finding]:
    """Report a model that cannot write, or cannot judge, which only some policies have the small model do."""
    findings: list[Finding] = []
    if why := report.failures.get("writing"):
        findings.append(Finding("writing", report.role, "cannot work", f"it cannot write a step: {why}", AGAIN))
    if why := report.failures.get("judging"):
        message, cure = f"it cannot judge: {why}", "serve it with vLLM, or choose a policy without a judge"
        if report.role == "large":
            findings.append(Finding("judging", "large", "cannot work", message, cure))
        else:
            message = f"policies in which the small model judges (cascade) cannot use it: {why}"
            findings.append(Finding("judging", "small", "costs", message, "choose another policy"))
    return findings


def _about_scoring(report: EndpointReport, can: Capabilities) -> list[Finding]:
    if can.suffix_scoring is False:
        message = "suffix scoring is set, but the server does not do it, or wrongly"
        cure = f"{_suffix_cure(can)}, or set it to false"
        return [Finding("suffix_scoring", report.role, "cannot work", message, cure)]
    if why := report.failures.get("scoring"):
        message = f"policies that score drafts (BiLD, reading, reflective) cannot use it: {why}"
        return [Finding("scoring", report.role, "costs", message, "choose a policy that scores nothing")]
    return []


def _about_counts(report: EndpointReport, can: Capabilities) -> list[Finding]:
    """Report numbers that are wrong only in a batch with other requests, or with some flags."""
    findings: list[Finding] = []
    if can.shared_batch is False:
        message = (
            "questions by token ids and the likeliest tokens of other requests break each other in one batch, as in "
            "vLLM's V1 runner, so that stepspec has only one of the two there at a time: beside requests for likeliest "
            "tokens, judges read the 20 likeliest tokens only"
        )
        cure = "start vLLM with VLLM_USE_V2_MODEL_RUNNER=1, if its V2 runner serves the model"
        findings.append(Finding("shared_batch", report.role, "costs", message, cure))
    if can.cached_counts is False:
        message = (
            "replies say that no prompt tokens were cached where /metrics counts hits, as some versions do with "
            "--scheduling-policy priority (vllm#52897): the ledger counts cached prompt tokens as read"
        )
        findings.append(Finding("cached_counts", report.role, "costs", message, "update vLLM"))
    return findings


def _about_ordering(report: EndpointReport) -> list[Finding]:
    cure = "start vLLM with --scheduling-policy priority, as `stepspec up` does"
    behind = "while it is busy, verdicts wait behind bets"
    match report.ordering:
        case "refused":
            finding = Finding(
                "ordering", report.role, "costs", f"it refuses priorities, and is sent none: {behind}", cure
            )
        case "not seen":
            message = f"it answers requests in the order of arrival: {behind}"
            finding = Finding("ordering", report.role, "costs", message, cure)
        case "could not tell":
            message = (
                "could not tell on this server whether it orders requests by priority, as no queue formed that would "
                "show it"
            )
            finding = Finding("ordering", report.role, "unknown", message, f"if it does not: {cure}")
        case None:
            message = "it could not be found out whether it orders requests by priority"
            finding = Finding("ordering", report.role, "unknown", message, AGAIN)
        case _:
            return []
    return [finding]


def _about_thinking(report: EndpointReport) -> list[Finding]:
    """Report every case but the usual one, in which the template shows a thinking block."""
    role, block, answers = report.role, report.block, "it reasons in its answer"
    outcome: Outcome = "works"
    match report.thinks_by, report.thinks:
        case "effect", True:
            message = (
                f"its chat template shows no thinking block, but it opens one by itself, {block}, which stepspec opens "
                "in its place"
            )
            cure = f"set thinks = false in [{role}] to have the block skipped"
        case "effect", False:
            outcome = "costs"
            message = (
                f"its chat template shows no thinking block, and asked a plain question it opened none, so {answers}"
            )
            cure = f"if it does think, set thinks = true in [{role}]"
        case "setting", True:
            message, cure = f"thinks = true is set, so stepspec opens the block {block}, which nothing else shows", ""
        case "setting", False:
            message, cure = f"thinks = false is set, so its block {block} is skipped, and {answers}", ""
        case _, False:
            message = f"its chat template switches thinking off, so {answers}"
            cure = f"to have it think, set template = {{ enable_thinking = true }} in [{role}]"
        case _:
            return []
    return [Finding("thinking", role, outcome, message, cure)]


def _switched_on(can: Capabilities) -> bool:
    return can.cache is not None and can.cache.enabled is True


def _about_cache(report: EndpointReport, can: Capabilities) -> list[Finding]:
    """Report a prefix cache that is on but of little use to a growing chain, with the cost and the cure."""
    cache, takes = can.cache, f"; a verdict takes {report.reading}" if report.reading else ""
    if can.prefix_cache is False and cache is not None and cache.enabled:
        message = f"the prefix cache is on, but nothing of a prompt of {can.tried} tokens was read from it"
        if can.speculation:
            known = "as is known of hybrid models under MTP and other speculative decoding (vllm#54360, vllm#53504)"
            message, cure = f"{message}, {known}{takes}", _cure_of_speculation(cache, can)
        else:
            message, cure = f"{message}: it is cached in blocks of {cache.block}{takes}", _cure(cache, can)
        return [Finding("prefix_cache", report.role, "costs", message, cure)]
    if can.prefix_cache and _coarse(can):
        read = report.reading.read if report.reading else None
        block = (
            f"in blocks of {cache.block} tokens" if cache and cache.block else f"for long prompts only ({can.tried})"
        )
        again = f": a verdict reads {tokens_read(report.reading)} again" if read is not None else ""
        message = f"the prefix cache is on, but works {block}{again}{takes}"
        return [Finding("prefix_cache", report.role, "costs", message, _cure(cache, can))]
    return []


def _coarse(can: Capabilities) -> bool:
    cache = can.cache
    if cache is None or cache.block is None:
        return can.tried > LONG
    return (cache.unit or cache.block) > FINE


def _cure(cache: CacheConfig | None, can: Capabilities) -> str:
    """Name the flags that let a hybrid's prefixes end anywhere, among those that the server lists."""
    if cache is None or not cache.known:
        return f"start vLLM with {_hybrid_flags(can, UNIT)}, if it has these flags"
    if MATCH_UNIT in cache.known:
        return f"start vLLM with {_hybrid_flags(can, cache.finest)}"
    return f"vLLM {can.version or 'as served'} has no --prefix-match-unit, which later versions have: update it"


def _cure_of_speculation(cache: CacheConfig, can: Capabilities) -> str:
    flags = [f"--prefix-cache-retention-interval {cache.block}"] if RETENTION in cache.known and cache.block else []
    if name := next((name for name in CHECKPOINTS if name in cache.known), ""):
        flags.append(f"{_hybrid_flags(can, cache.finest)} --{name.replace('_', '-')}")
    others = f", or try {' or '.join(flags)}, which vLLM has for it" if flags else ""
    return f"start vLLM without --speculative-config{others}"


def _about_replica(other: EndpointReport, first: EndpointReport) -> list[Finding]:
    """Report what a replica has that the *first* one has not: a dead one costs, one with another model is refused."""
    named = f"{other.role} at {other.url}"
    if other.problem:
        outcome: Outcome = "cannot work" if first.problem else "costs"
        return [Finding("connection", named, outcome, other.problem)]
    if (other.model, other.vocabulary) != (first.model, first.vocabulary):
        message = f"it does not serve what {first.url} does, and is refused"
        return [Finding("replica", named, "cannot work", message, "serve the same model at both, or leave one out")]
    known = [(finding.check, finding.message) for finding in _findings(first)]
    return [
        replace(finding, subject=named) for finding in _findings(other) if (finding.check, finding.message) not in known
    ]


def _about_pair(small: EndpointReport, large: EndpointReport, same: bool | None) -> list[Finding]:
    if small.problem or large.problem:
        return []
    findings: list[Finding] = []

    def add(check: str, outcome: Outcome, message: str, cure: str, subject: str = "pair") -> None:
        findings.append(Finding(check, subject, outcome, message, cure))

    if why := disagreement(bool(small.thinks), bool(large.thinks)):
        cause, _, cure = why.partition(". ")
        add("thinking", "cannot work", f"this pair is refused: {cause}", f"{cure[:1].lower()}{cure[1:]}")
    elif large.thinks and not small.thinks:
        message = "only the large model thinks: the small one drafts the steps of its thinking as if it answered"
        add("thinking", "costs", message, "draft with a small model that thinks too")
    if (small.url, small.model) == (large.url, large.model):
        add(
            "distinct", "costs", "small and large are the same server: a model gains nothing from its own drafts", OTHER
        )
    elif (small.model, same) == (large.model, True):
        add("distinct", "costs", f"small and large both serve {small.model!r}: are they one model?", OTHER)
    if large.can and large.can.prompt_logprobs and large.can.suffix_scoring is None and large.scoring is not None:
        message = (
            f"suffix scoring is off: to score a step it reads the whole chain again, {milliseconds(large.scoring)} "
            f"after {LONG} tokens (a first token takes {milliseconds(large.pace.first if large.pace else None)})"
        )
        add("suffix_scoring", "costs", message, _suffix_cure(large.can), "large")
    if same is False:
        message = "the vocabularies differ: every step is encoded anew for the other model, one request each"
        add("vocabulary", "costs", message, "choose two models of one family")
    if large.digits is not None and large.digits < 0.5:
        message = f"asked for a grade, it puts {large.digits:.0%} on digits; as a judge it does not understand"
        add("judging", "costs", message, "choose another large model, or a policy without grades", "large")
    if small.pace and large.pace and (outcome := _compared(small.pace, large.pace)) != "works":
        message = "the small model is hardly faster than the large one: speculation cannot pay"
        if outcome == "unknown":
            noise = max(small.pace.noise, large.pace.noise)
            message = (
                "could not tell on these servers whether the small model is faster than the large one: from one "
                f"measurement to the next, the seconds for a token changed by {noise:.0%}"
            )
        cure = "choose a smaller small model, or give it a faster server"
        add("speed", outcome, message, AGAIN_IDLE if outcome == "unknown" else cure)
    return findings


def _compared(small: Pace, large: Pace) -> Outcome:
    """Whether *small* is much faster than *large*; "unknown" if the noise of the measurements hides it."""
    if not large.between:
        return "unknown"
    ratio, noise = small.between / large.between, 1 + max(small.noise, large.noise)
    if ratio <= HARDLY_FASTER:
        return "works"
    return "unknown" if ratio / noise <= HARDLY_FASTER else "costs"


def conclude_critic(report: CriticReport) -> CriticReport:
    """Add the findings to the *report* of a reward model; ratings that are no numbers from 0 to 1 become None."""
    if report.problem:
        return replace(report, findings=(Finding("connection", "critic", "cannot work", report.problem),))
    ratings = {"right": report.right, "wrong": report.wrong}
    invalid = {name: value for name, value in ratings.items() if value is None or not 0 <= value <= 1}
    if invalid:
        values = " and ".join(f"{value:g}" for value in invalid.values() if value is not None)
        message = f"its ratings are not numbers from 0 to 1 but {values}"
        cure = "serve a reward model with one or two labels, with vLLM's --runner pooling"
        finite = [None if value is None or not isfinite(value) else value for value in ratings.values()]
        return replace(
            report,
            right=finite[0],
            wrong=finite[1],
            findings=(Finding("rating", "critic", "cannot work", message, cure),),
        )
    assert report.right is not None
    assert report.wrong is not None
    if report.right <= report.wrong:
        message = f"it rates a right step {report.right:.2f} and an obviously wrong one {report.wrong:.2f}"
        cure = "set delimiter, layout and prefix in [critic] as the model was trained, or choose another reward model"
        return replace(report, findings=(Finding("rating", "critic", "costs", message, cure),))
    return report


def conclude_verifier(report: CriticReport, fallback: Fallback) -> CriticReport:
    """Add the findings to the *report* of a verifier, in whose place the *fallback* decides where it fails."""
    if report.problem:
        outcome: Outcome = "cannot work" if fallback == "fail" else "costs"
        cure = f"repair it: until then its fallback, {fallback}, decides" if outcome == "costs" else ""
        return replace(report, findings=(Finding("connection", "critic", outcome, report.problem, cure),))
    assert report.right is not None
    assert report.wrong is not None
    if report.right > report.wrong:
        return report
    message = f"of a sum, it rates the right result {report.right:.2f} and a wrong one {report.wrong:.2f}"
    if report.right < report.wrong:
        cure = "is the score the other way round? 1 has to mean correct"
        return replace(report, findings=(Finding("rating", "critic", "costs", message, cure),))
    cure = "nothing to cure if it judges other problems, such as programs"
    return replace(report, findings=(Finding("rating", "critic", "unknown", message, cure),))


def milliseconds(seconds: float | None, digits: int = 0) -> str:
    return "unknown" if seconds is None else f"{seconds * 1000:.{digits}f} ms"


def tokens_read(reading: Reading | None) -> str:
    if reading is None or reading.read is None:
        return "unknown"
    return f"{reading.read} of {reading.chain} tokens"
