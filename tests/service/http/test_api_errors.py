"""Unsupported fields of a request: the error names the field and the cure. No field is ignored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from typing import Any

import orjson
import pytest

from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints import Sampling
from stepspec.orchestrator.errors import (
    ConfigurationError,
    ContextTooLong,
    EndpointRejected,
    EndpointUnavailable,
    MalformedReply,
    MissingCapability,
    near,
)
from stepspec.orchestrator.run_options import RunOptions
from stepspec.service import errors
from stepspec.service.errors import ApiError
from stepspec.service.formats.chat import ChatRequest, LiveRequest
from stepspec.service.formats.requests import Offer, Resolver, RunRequest, ServedMethod
from stepspec.service.formats.validation import parse_request
from stepspec.service.http.connection import ClientConnection
from stepspec.service.records import ServiceRequest
from stepspec.service.settings import ServiceSettings

from ...fakes import run
from ..served import TURN, serving

IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


def check(method: str, options: Mapping[str, Any]) -> None:
    """Refuse an option that the method has not, and what is no number."""
    known = OFFER.methods[method].options
    for name, value in options.items():
        if name not in known:
            raise ConfigurationError(f"no option {name}{near(name, known)}", option=name)
        if not isinstance(value, int):
            raise ConfigurationError(f"a {name} like {value}", option=name)


SETTINGS = ServiceSettings(max_messages=4, max_choices=4, max_tokens=1000)
OFFER = Offer(
    engine=None,  # type: ignore[arg-type]  # nothing here is run
    methods={"specreason": ServedMethod("", {"threshold": 7}), "large": ServedMethod("", {})},
    defaults=RunOptions(
        policy="specreason",
        options={"threshold": 5},
        sampling=Sampling(temperature=0.6),
        budget=Budget(tokens=512, answer=112),
        priority=3,
    ),
    check=check,
)
RESOLVER = Resolver("specreason", OFFER, SETTINGS)


def ordered(**fields: Any) -> tuple[RunRequest, ...]:
    request = parse_request(ChatRequest, {"model": "auto", "messages": [TURN], **fields})
    return RESOLVER.runs(request)


CALL = {"id": "c", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}


JSON = "response_format"
SCHEMA = {"name": "x", "schema": dict[str, Any]()}
OBJECT: dict[str, Any] = {"type": "json_schema", "json_schema": SCHEMA}
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": [TURN] * 5}, "messages", "at most 4"),
    ({"messages": "hi"}, "messages", "list"),
    (
        {"messages": [TURN, {"role": "assistant", "content": "2"}]},
        "messages",
        "the last message is the assistant's",
    ),
    ({"messages": [{"role": "robot", "content": "2"}]}, "messages[0]", "'user'"),
    ({"messages": [{"role": "tool", "content": "2"}]}, "messages[0].tool_call_id", "missing"),
    (
        {"messages": [{**TURN, "tool_call_id": "c"}]},
        "messages[0].tool_call_id",
        "the id of the call",
    ),
    (
        {"messages": [TURN, {"role": "tool", "content": "2", "tool_call_id": "c"}]},
        "messages",
        "no message before it",
    ),
    (
        {"messages": [TURN, {**TURN, "tool_calls": [CALL]}]},
        "messages[1].tool_calls",
        "only a message of the assistant",
    ),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "missing"),
    (
        {"messages": [{"role": "user", "content": 5}]},
        "messages[0].content",
        "a valid string or a valid list",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        "messages[0].content[0].text",
        "str",
    ),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
    (
        {"messages": [{"role": "user", "content": [IMAGE]}]},
        "messages[0].content[0].type",
        "read text only",
    ),
    ({"messages": [{**TURN, "contents": ""}]}, "messages[0].contents", "/openapi.json lists all"),
    ({"temperatures": 1}, "temperatures", "did you mean 'temperature'"),
    (
        {"stream_options": {"include_usages": True}},
        "stream_options.include_usages",
        "did you mean 'include_usage'",
    ),
    ({"temperature": 3}, "temperature", "less than or equal to 2"),
    ({"n": 5}, "n", "at most 4"),
    ({"seed": 1.5}, "seed", "integer"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": 9, "max_completion_tokens": 8}, "max_tokens", "differ"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "at most 4"),
    ({"stop": ["a", ""]}, "stop[1]", "at least 1 character"),
    ({"stop": 5}, "stop", "a valid string or a valid list"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "set stream to true"),
    ({"reasoning_effort": "none"}, "reasoning_effort", "always thinks"),
    ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        f"{JSON}.json_schema.schema",
        "miss",
    ),
    (
        {"response_format": {**OBJECT, "more": 1}},
        f"{JSON}.more",
        f"unknown parameter '{JSON}.more'",
    ),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "tools of the type function"),
    (
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        "tools[0].function.name",
        "pattern",
    ),
    ({"tools": [TOOL, TOOL]}, "tools", "two tools are called 'lookup'"),
    ({"tool_choice": "required"}, "tool_choice", "tools is empty"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
        "tool_choice",
        "'lookup'",
    ),
    ({"logprobs": True}, "logprobs", "do not compare"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "do not agree"),
    ({"modalities": ["audio"]}, "modalities[0]", "'text'"),
    ({"store": True}, "store", "nothing is stored"),
    (
        {"chat_template_kwargs": {"enable_thinking": False}},
        "chat_template_kwargs",
        "send reasoning_effort",
    ),
    ({"guided_json": {}}, "guided_json", "response_format"),
    ({"include_reasoning": False}, "include_reasoning", '{"thinking": "none"}'),
    ({"priority": 1}, "priority", "stepspec"),
    ({"bad_words": ["x"]}, "bad_words", "by its own name"),
    ({"reasoning": {"effort": "low"}}, "reasoning", "called reasoning_effort"),
    ({"max_output_tokens": 5}, "max_output_tokens", "called max_completion_tokens"),
    ({"service_tier": "turbo"}, "service_tier", "'auto'"),
    (
        {"stepspec": {"options": {"thresholds": 1}}},
        "stepspec.options.thresholds",
        "did you mean 'threshold'",
    ),
    (
        {"stepspec": {"options": {"threshold": "x"}}},
        "stepspec.options.threshold",
        "a threshold like x",
    ),
    ({"stepspec": 5}, "stepspec", "an object"),
    ({"stepspec": {"budget": {"answers": 5}}}, "stepspec.budget.answers", "did you mean 'answer'"),
    (
        {"stepspec": {"budget": {"tokens": 300}}},
        "stepspec.budget.tokens",
        "/openapi.json lists all",
    ),
    (
        {"max_tokens": 5000, "stepspec": {"budget": {"answer": 1000}}},
        "stepspec.budget.answer",
        "leave none of 1000",
    ),
    ({"stepspec": {"ahead": -1}}, "stepspec.ahead", "greater than or equal to 0"),
    ({"stepspec": {"thinking": "loud"}}, "stepspec.thinking", "'both'"),
]


@pytest.mark.parametrize(("fields", "param", "words"), WRONG)
def test_an_error_names_the_field_and_the_cure(
    fields: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(ApiError) as caught:
        ordered(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert words in caught.value.message


NEUTRAL: list[dict[str, Any]] = [
    {"tools": None, "tool_choice": None, "logprobs": None, "logit_bias": None, "functions": None},
    {
        "tools": [],
        "tool_choice": "none",
        "logprobs": False,
        "top_logprobs": 0,
        "logit_bias": {},
        "metadata": {},
    },
    {
        "store": False,
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
    },
    {
        "metadata": {"a": "b"},
        "modalities": ["text"],
        "verbosity": "medium",
        "parallel_tool_calls": True,
    },
    {
        "n": 1,
        "stop": None,
        "seed": None,
        "max_tokens": None,
        "stream": None,
        "stream_options": None,
        "user": "u",
    },
    {"response_format": {"type": "text"}},
    {"reasoning_effort": "max", "prompt_cache_options": {"mode": "explicit"}},
    {
        "messages": [
            {**TURN, "name": "ann"},
            {"role": "assistant", "content": "2", "parsed": None, "name": "bot"},
            TURN,
        ]
    },
    {"stepspec": None},
    {"stepspec": {"options": None, "budget": None, "ahead": None}},
    {
        "stream": True,
        "stream_options": {"include_obfuscation": False, "continuous_usage_stats": False},
    },
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"ignore_eos": True},
    {"min_tokens": 5, "max_tokens": 5, "ignore_eos": True},
]


@pytest.mark.parametrize("fields", NEUTRAL)
def test_fields_with_a_neutral_value_are_accepted(fields: dict[str, Any]) -> None:
    assert len(ordered(**fields)) == 1


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({}, Budget(512, answer=112)),
        ({"max_tokens": 400}, Budget(400)),
        ({"max_completion_tokens": 400}, Budget(400)),
        ({"max_tokens": 2}, Budget(2)),
        ({"max_tokens": 5000}, Budget(1000)),
        ({"reasoning_effort": "high"}, Budget(512, answer=112)),
        ({"reasoning_effort": "medium"}, Budget(512, answer=512 - 200)),
        ({"reasoning_effort": "low"}, Budget(512, answer=512 - 100)),
        ({"reasoning_effort": "minimal"}, Budget(512, answer=512 - 25)),
        ({"reasoning_effort": "low", "max_tokens": 400}, Budget(400, answer=400 - 75)),
        ({"stepspec": {"budget": {"steps": 3, "seconds": 9.5}}}, Budget(512, 3, 9.5, 112)),
        ({"max_tokens": 400, "stepspec": {"budget": {"answer": 30}}}, Budget(400, answer=30)),
        ({"max_tokens": 5000, "stepspec": {"budget": {"answer": 30}}}, Budget(1000, answer=30)),
    ],
)
def test_budgets(fields: dict[str, Any], budget: Budget) -> None:
    (order,) = ordered(**fields)
    assert order.run.budget == budget


def test_missing_fields_have_the_configured_values() -> None:
    (order,) = ordered(seed=4)
    assert order.run == OFFER.defaults.model_copy(
        update={"sampling": Sampling(temperature=0.6, seed=4), "auto": False}
    )
    assert (order.wanted.stops, order.wanted.format) == ([], None)
    overrides = {"options": {"threshold": 8}, "ahead": 1, "hedge": 0.5, "lead": 1}
    (other,) = ordered(seed=4, stepspec=overrides)
    assert other.run == order.run.model_copy(update=overrides)
    request = parse_request(ChatRequest, {"model": "large", "messages": [TURN]})
    (large,) = Resolver("large", OFFER, SETTINGS).runs(request)
    assert (large.run.policy, large.run.options, large.run.priority) == ("large", {}, 3)


@pytest.mark.parametrize(
    ("configured", "requested", "named", "otherwise"),
    [
        (None, None, True, False),
        (False, None, False, False),
        (True, None, True, True),
        (None, False, False, False),
    ],
)
def test_only_the_model_auto_steps_aside_by_itself(
    configured: bool | None, requested: bool | None, named: bool, otherwise: bool
) -> None:
    offer = replace(OFFER, defaults=OFFER.defaults.model_copy(update={"auto": configured}))
    request = parse_request(
        ChatRequest, {"model": "auto", "messages": [TURN], "stepspec": {"auto": requested}}
    )
    for auto, expected in ((True, named), (False, otherwise)):
        (order,) = Resolver("specreason", offer, SETTINGS, auto).runs(request)
        assert order.run.auto is expected
        (repeated,) = Resolver("specreason", offer, SETTINGS, auto).runs(
            request.model_copy(update={"seed": 4})
        )
        assert repeated.run.auto is otherwise


def test_deadlines_only_shorten() -> None:
    (order,) = ordered(stepspec={"budget": {"seconds": 9.5}})
    assert [order.within(seconds).run.budget.seconds for seconds in (5, 20)] == [5, 9.5]


def test_the_page_gives_a_problem_and_gets_no_more_than_others() -> None:
    with pytest.raises(ApiError, match="problem is missing"):
        RESOLVER.runs(parse_request(LiveRequest, {}))
    options = {"budget": {"answer": 30}}
    resolver = replace(RESOLVER, settings=SETTINGS.model_copy(update={"max_tokens": 400}))
    (order,) = resolver.runs(parse_request(LiveRequest, {"problem": "x", "stepspec": options}))
    assert [(message.role, message.content) for message in order.wanted.conversation] == [
        ("user", "x")
    ]
    assert order.run.budget == Budget(tokens=400, answer=30)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "JSON object"),
        (b"\xff", "not JSON"),
        (b"1", "object"),
    ],
)
async def test_a_body_that_is_no_json_object(body: bytes, words: str) -> None:
    async with serving() as served:
        replies = [
            await served.post(path, body)
            for path in ("/v1/chat/completions", "/v1/completions", "/live")
        ]
        compressed = await served.post("/live", body, content_encoding="gzip")
    for reply in replies:
        assert (reply.status, reply.error["code"]) == (400, "invalid_json")
        assert words in reply.error["message"]
    assert (
        compressed.error["message"]
        == "the body has the Content-Encoding gzip: send it uncompressed"
    )


async def test_every_refusal_has_the_shape_of_openais() -> None:
    async with serving() as served:
        replies = [
            await served.chat(method="specreasn"),
            await served.chat(tools=[{}]),
            await served.post("/v1/completions", {"model": "auto", "prompt": "x"}),
            await served.post("/live", {"problem": "x", "model": "tiny"}),
            await served.post("/v1/chat/completions", {"messages": [TURN]}),
            await served.post("/v1/chat/completions", {"model": 5}),
            await served.get("/v1/chat/completions"),
            await served.get("/nothing"),
            await served.get("/v1/models/nobody"),
            await served.chat(stepspec={"options": {"threshold": "high"}}),
            await served.chat(method="reward"),
        ]
    assert [reply.status for reply in replies] == [
        404,
        400,
        400,
        400,
        400,
        400,
        405,
        404,
        404,
        400,
        400,
    ]
    for reply in replies:
        assert set(reply.error) == {"message", "type", "param", "code"}
        assert reply.headers["X-Request-Id"]
    assert [replies[place].error["code"] for place in (3, 5)] == ["invalid_value", "invalid_value"]
    assert (
        replies[0]
        .error["message"]
        .endswith(" (did you mean 'specreason'?); GET /v1/models lists them")
    )
    assert replies[6].headers["Allow"] == "POST"
    assert "critic" in replies[10].error["message"]
    assert replies[9].error["param"] == "stepspec.options.threshold"


async def test_a_prompt_that_does_not_fit_is_the_clients_mistake() -> None:
    async with serving() as served:
        reply = await served.chat(messages=[{"role": "user", "content": "x" * 4096}], stream=True)
    assert (reply.status, reply.error["code"], reply.error["param"]) == (
        400,
        "context_length_exceeded",
        "messages",
    )


# Which status a failure has, and whether it is worth another try.


@pytest.mark.parametrize(
    ("exc", "status", "code"),
    [
        (ConfigurationError("x"), 400, "invalid_value"),
        (MissingCapability("x"), 400, "invalid_value"),
        (ContextTooLong("x"), 400, "context_length_exceeded"),
        (EndpointRejected("HTTP 400: bad schema"), 400, "upstream_rejected"),
        (EndpointRejected("the key was refused (HTTP 401: no)"), 500, "upstream_error"),
        (EndpointRejected("HTTP 404: no; is a vLLM server at this URL?"), 500, "upstream_error"),
        (EndpointUnavailable("x"), 503, "upstream_unavailable"),
        (MalformedReply("x"), 500, "upstream_error"),
        (TimeoutError(), 504, "deadline"),
        (KeyError("secret"), 500, "internal_error"),
        (ApiError(429, "x", code="queue_full"), 429, "queue_full"),
    ],
)
def test_statuses(exc: Exception, status: int, code: str) -> None:
    refusal = errors.api_error(exc)
    assert (refusal.status, refusal.code) == (status, code)
    assert orjson.loads(refusal.body)["error"]["type"] == errors.TYPES.get(
        status, "server_error" if status >= 500 else "invalid_request_error"
    )
    assert "secret" not in refusal.message
    assert ("Retry-After" in refusal.all_headers) is (status in (429, 503))


def test_a_failure_after_some_work_is_not_to_be_retried() -> None:
    assert (
        errors.api_error(EndpointUnavailable("x"), partial=True).all_headers["x-should-retry"]
        == "false"
    )
    assert "x-should-retry" not in errors.api_error(EndpointUnavailable("x")).all_headers


def test_a_client_that_does_not_read_is_disconnected_in_time_and_its_run_cancelled() -> None:
    async def main() -> tuple[str, int]:
        request = ServiceRequest("v", "POST", "/v1/chat/completions", {})
        ended = ""

        async def never(message: MutableMapping[str, Any]) -> None:
            await asyncio.Event().wait()

        async def present() -> MutableMapping[str, Any]:
            await asyncio.Event().wait()
            return {}

        async def work(connection: ClientConnection) -> None:
            nonlocal ended
            try:
                await connection.start({})
            except ApiError as exc:
                ended = f"{exc.status} {exc.code} after {asyncio.get_running_loop().time():g} s"

        await ClientConnection(request, work, 60.0, asyncio.Event())({}, present, never)
        return ended, request.status

    assert run(main()) == (("499 client_stalled after 60 s", 0), 60)


def test_a_complete_response_is_no_disconnect_however_long_its_work_takes_to_end() -> None:
    async def main() -> tuple[int, bool]:
        request = ServiceRequest("v", "POST", "/v1/chat/completions", {})
        sent = asyncio.Event()
        ended = False

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.set()

        async def receive() -> MutableMapping[str, Any]:
            await sent.wait()  # the server reports a disconnect once a response is complete
            return {"type": "http.disconnect"}

        async def work(connection: ClientConnection) -> None:
            nonlocal ended
            await connection.finish(b"{}")
            await asyncio.sleep(1)
            ended = True

        await ClientConnection(request, work, 60.0, asyncio.Event())({}, receive, send)
        return request.status, ended

    assert run(main())[0] == (0, True)


async def test_an_empty_conversation_has_no_tokens_to_count() -> None:
    async with serving() as served:
        body = {"model": "auto", "messages": [{"role": "system", "content": ""}]}
        reply = await served.post("/v1/messages/count_tokens", body)
    assert reply.status == 400
    assert "the conversation is empty" in reply.error["message"]
