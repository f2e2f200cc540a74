"""The service follows its own OpenAPI description for any request."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest
import schemathesis
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, Phase, assume, given, reject
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.errors import InvalidSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from ..served import SCRIPT, TURN, Behind, chosen, put_behind, serving

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
    ignored_auth,
]
POSITIVE = schemathesis.GenerationMode.POSITIVE
NEGATIVE = schemathesis.GenerationMode.NEGATIVE
SETTINGS = chosen(keys=("k",))


@st.composite
def cases(
    draw: st.DrawFn, operation: Any, mode: schemathesis.GenerationMode
) -> schemathesis.Case[Any]:
    """
    Draw a request; what schemathesis gives up in the middle of, for arrays it cannot fill, is drawn
    again.
    """
    try:
        case: schemathesis.Case[Any] = draw(operation.as_strategy(mode))
    except InvalidSchema:
        reject()
    return case


def refusal_names_the_parameter(ctx: object, response: Any, case: object) -> None:
    """
    A check of schemathesis: a 400 says what is wrong, and where, unless the body is not JSON at
    all.
    """
    if response.status_code == 400:
        error = response.json()["error"]
        assert error["message"], error
        # Anthropic's errors name the parameter in the message
        if response.json().get("type") != "error":
            assert error["param"] is not None or error["code"] == "invalid_json", error


def streams_are_complete(ctx: object, response: Any, case: schemathesis.Case[Any]) -> None:
    """
    A check of schemathesis: the data of every event of a stream is JSON, and the stream is
    complete.
    """
    kind = next(iter(response.headers.get("content-type", [""]))).partition(";")[0]
    if response.status_code == 200 and kind == "text/event-stream":
        lines = [
            line.removeprefix(b"data: ")
            for line in response.content.splitlines()
            if line.startswith(b"data: ")
        ]
        if case.path == "/v1/chat/completions":
            assert lines.pop() == b"[DONE]"
        assert all(isinstance(json.loads(line), dict) for line in lines)


@pytest.fixture(scope="module")
def description() -> Generator[Any]:
    """The description of a service in an event loop of its own."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(
            serving(SETTINGS, script=(*SCRIPT[:8], "\n\n", "{}"))
        ) as served,
    ):
        # whatever passes through is answered
        portal.call(put_behind, served, Behind(), "small", "large")
        schema = schemathesis.openapi.from_url(f"{served.base}/openapi.json")
        catalog = served.service.context.models
        for name, body in schema.raw_schema["components"]["schemas"].items():
            if "model" in body.get("properties", {}):  # most requests are for a model that exists
                names = catalog.served if name == "ServedModelRequest" else catalog.methods
                body["properties"]["model"] = {"type": "string", "enum": list(names)}
        yield schema


def send(
    operation: Any, mode: schemathesis.GenerationMode, most: int, *more: Any, **fields: Any
) -> None:
    """
    Send *most* requests of this *mode*, with some *fields* of their bodies set, and check the
    answers.
    """

    @given(case=cases(operation, mode))
    @hypothesis_settings(
        max_examples=most,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    def conforms(case: schemathesis.Case[Any]) -> None:
        body: Any = case.body
        if mode is NEGATIVE and isinstance(body, dict):
            assume(None not in body.values())  # A field that is null counts as left out.
        if fields:
            case.body = {**body, **fields}
        checks = [*CHECKS, refusal_names_the_parameter, *more]
        case.call_and_validate(
            headers={"Authorization": "Bearer k"},
            checks=checks,
            timeout=60,
        )

    conforms()


@pytest.mark.timeout(900)
def test_no_failure_and_no_undocumented_answer(description: Any) -> None:
    paths = description.raw_schema["paths"]
    assert {"/v1/chat/completions", "/v1/messages", "/v1/responses", "/live", "/metrics"} <= set(
        paths
    )
    for path, method in ((path, method) for path, methods in paths.items() for method in methods):
        operation = description[path][method.upper()]
        send(operation, POSITIVE, 5 if operation.body else 2)
        # else there is nothing that could be wrong with it
        if operation.body or operation.path_parameters:
            send(operation, NEGATIVE, 8 if operation.body else 3)


@pytest.mark.parametrize(
    ("path", "asked"),
    [("/v1/chat/completions", {"messages": [TURN]}), ("/v1/responses", {"input": "x"})],
)
def test_streams_and_whole_replies_are_as_described(
    description: Any, path: str, asked: dict[str, Any]
) -> None:
    # What is generated rarely ends with a user's message.
    for stream in (True, False):
        send(
            description[path]["POST"],
            POSITIVE,
            4,
            streams_are_complete,
            **asked,
            stream=stream,
        )
