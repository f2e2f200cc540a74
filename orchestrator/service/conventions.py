"""
What spans are called and what they tell, after OpenTelemetry's conventions for generative AI. Pure.

Tokens are told of requests to a served model only, so that nothing is counted twice where they are added up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ..events import Called
from ..solution import Solution
from .stages import Stage
from .visit import Passed, Visit

PROVIDER = "vllm"
CALL = "text_completion"
OPERATIONS: Mapping[str, tuple[str, str]] = {
    "/v1/chat/completions": ("chat", "chat"),
    "/v1/completions": (CALL, CALL),
    "/v1/responses": ("respond", "chat"),
    "/live": ("live", "chat"),
}
"""By the path: the first word of a request's span, and the convention's name of the operation."""


def request_name(visit: Visit) -> str:
    word, _ = OPERATIONS[visit.path]
    return f"{word} {visit.model}" if visit.model else f"{visit.method} {visit.path}"


def of_request(visit: Visit) -> dict[str, Any]:
    refusal = visit.refusal
    return _told(
        {
            "gen_ai.operation.name": OPERATIONS[visit.path][1],
            "gen_ai.provider.name": "stepspec",
            "gen_ai.request.model": visit.model,
            "http.response.status_code": visit.status,
            "user.id": visit.notes.get("user") or None,
            "error.type": None if refusal is None else refusal.code or str(refusal.status),
        }
    )


def of_run(policy: str, choice: int, solution: Solution | None) -> dict[str, Any]:
    """What is told of the run of a *choice*; without a *solution* it was given up, or failed."""
    named = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": policy, "stepspec.choice": choice}
    if solution is None:
        return named
    ledger = solution.ledger
    return named | _told(
        {
            "stepspec.finish_reason": solution.finish_reason,
            "stepspec.share_large": ledger.share_large,
            "stepspec.accept_rate": ledger.accept_rate,
            "stepspec.tokens.kept": ledger.small.kept + ledger.large.kept,
            "stepspec.tokens.discarded": ledger.small.discarded + ledger.large.discarded,
        }
    )


def of_stage(stage: Stage) -> dict[str, Any]:
    return _told(
        {
            "stepspec.step": stage.index if stage.kind != "answer" else None,
            "stepspec.author": stage.author,
            "stepspec.fate": stage.fate,
            "stepspec.grade": stage.grade,
            "stepspec.reason": stage.reason or None,
        }
    )


def of_call(call: Called, model: str) -> dict[str, Any]:
    failed = call.fate == "failed"
    told = {
        "gen_ai.usage.input_tokens": call.prompt,
        "gen_ai.usage.output_tokens": call.written,
        "gen_ai.usage.cache_read.input_tokens": call.cached,
        "gen_ai.response.time_to_first_chunk": call.first,
        "error.type": call.fate if failed else None,
        "stepspec.role": call.role,
        "stepspec.path": call.path or None,
        "stepspec.verb": call.verb,
        "stepspec.fate": call.fate,
    }
    return _client(CALL, model, call.url) | _told(told)


def of_passed(passed: Passed, operation: str) -> dict[str, Any]:
    told = {
        "http.response.status_code": passed.status or None,
        "gen_ai.response.time_to_first_chunk": passed.first,
        "error.type": passed.failure,
        "stepspec.role": passed.role,
    }
    return _client(operation, passed.model, passed.url) | _told(told)


def _client(operation: str, model: str, url: str) -> dict[str, Any]:
    address = urlsplit(url)
    told = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "server.address": address.hostname,
        "server.port": address.port,
    }
    return _told(told)


def _told(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}
