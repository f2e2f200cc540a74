"""
Bodies that are made to keep the service busy: refused after little work, with a short answer that
says why.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from stepspec.service.errors import ApiError
from stepspec.service.formats import schemas, validation
from stepspec.service.formats.schemas import MAX_DEPTH, MAX_ITEMS, MAX_VALUES, parse_json

from ..served import TURN, Served, serving

MANY = 100_000
LONG = "a" * 3_000_000
FEW_ERRORS = MAX_ITEMS + 100  # one for each unknown field of one object
SHORT = 4000  # bytes of an answer
SOON = 10.0  # seconds, in which this process also sends the bodies
SEVERAL = 3  # answers
WRONG_PART: dict[str, Any] = {"type": "text", "text": 1}
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
API: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [TURN]},
    RESPONSES: {"input": "x"},
    MESSAGES: {"messages": [TURN], "max_tokens": 100},
    "/live": {"problem": "x"},
}


def body(path: str, **fields: Any) -> bytes:
    return orjson.dumps({"model": "auto", **API[path], **fields})


def turn(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


HOSTILE: dict[str, tuple[str, bytes]] = {
    "messages that are numbers": (CHAT, body(CHAT, messages=[1] * MANY)),
    "parts that are numbers": (CHAT, body(CHAT, messages=turn([1] * MANY))),
    "wrong parts": (CHAT, body(CHAT, messages=turn([WRONG_PART] * MANY))),
    "wrong parts, as many as are allowed": (
        CHAT,
        body(CHAT, messages=turn([WRONG_PART] * MAX_ITEMS)),
    ),
    "many lists of wrong parts": (CHAT, body(CHAT, messages=turn([WRONG_PART] * 8) * 4000)),
    "wrong calls": (
        CHAT,
        body(CHAT, messages=[{"role": "assistant", "tool_calls": [{}] * MAX_ITEMS}, TURN]),
    ),
    "an object of biases": (CHAT, body(CHAT, logit_bias=dict.fromkeys(map(str, range(MANY)), 1))),
    "wrong metadata": (CHAT, body(CHAT, metadata=dict.fromkeys(map(str, range(MAX_ITEMS)), 1))),
    "unknown parameters": (CHAT, body(CHAT, **dict.fromkeys(map(str, range(MANY)), 1))),
    "unknown fields of a message": (
        CHAT,
        body(CHAT, messages=[TURN | dict.fromkeys(map(str, range(4000)), 1)] * 9),
    ),
    "a long parameter": (CHAT, body(CHAT, **{LONG: 1})),
    "a long type": (CHAT, body(CHAT, messages=turn([{"type": LONG}]))),
    "a long stop": (CHAT, body(CHAT, stop=LONG)),
    "a long delimiter": (CHAT, body(CHAT, stepspec={"delimiter": LONG})),
    "a long name of a tool": (
        CHAT,
        body(CHAT, tools=[{"type": "function", "function": {"name": LONG}}]),
    ),
    "wrong items": (RESPONSES, body(RESPONSES, input=turn([{"type": "x"}]) * MAX_ITEMS)),
    "long type of an item": (RESPONSES, body(RESPONSES, input=[{"type": LONG + "_call"}])),
    "wrong blocks": (MESSAGES, body(MESSAGES, messages=turn([WRONG_PART] * MAX_ITEMS))),
    "wrong blocks of the system": (MESSAGES, body(MESSAGES, system=[1] * MAX_ITEMS)),
    "long schemas": (
        MESSAGES,
        body(MESSAGES, tools=[{"name": "t", "input_schema": {"enum": [0] * MANY}}]),
    ),
    "options of the page": ("/live", body("/live", stepspec={"delimiter": [""] * MANY})),
    "a flat list": (CHAT, b'{"model":"auto","x":[' + b"1," * 2_000_000 + b"1]}"),
    "a flat list of lists": (CHAT, b'{"model":"auto","x":[' + b"[]," * 1_300_000 + b"1]}"),
    "lists among texts with quotes": (CHAT, b'{"x":["\\"{\\\\",' + b'[],"",' * 690_000 + b"1]}"),
    "values of many small lists": (CHAT, body(CHAT, metadata=[[1] * 4000] * 17)),
}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of errors that validation has collected, by request."""
    found = list[int]()
    explain = validation.explain

    def counting(schema: type[BaseModel], content: object, exc: ValidationError) -> Any:
        found.append(exc.error_count())
        return explain(schema, content, exc)

    monkeypatch.setattr(validation, "explain", counting)
    return found


@pytest.fixture
async def served() -> Any:
    async with serving() as service:
        yield service


async def test_each_is_refused_after_a_few_errors_and_no_megabyte_comes_back(
    served: Served, counts: list[int]
) -> None:
    for kind, (path, content) in HOSTILE.items():
        counts.clear()
        assert len(content) <= 4 * 2**20
        reply = await served.post(path, content)
        assert (reply.status, sum(counts) <= FEW_ERRORS) == (400, True), kind
        assert len(reply.body) < SHORT, kind
        assert reply.error["message"]
    assert served.recorded.failures == []


async def test_health_answers_while_hostile_bodies_are_refused(served: Served) -> None:
    refused = asyncio.gather(*[served.post(path, content) for path, content in HOSTILE.values()])
    answered = 0
    while not refused.done():
        async with asyncio.timeout(SOON):
            assert (await served.get("/health")).status == 200
        answered += 1
    assert {reply.status for reply in await refused} == {400}
    assert answered >= SEVERAL


BOUNDS = (
    f"a request may have at most {MAX_VALUES} JSON values (texts, numbers, lists, objects), and a"
    f" list or an object at most {MAX_ITEMS} items"
)
TOO_LARGE = {
    "messages that are numbers": f"messages: {BOUNDS}",
    "values of many small lists": f"metadata: {BOUNDS}",
    "a long parameter": "unknown parameter 'aaa",
    "a long stop": "stop: String should have at most 1024 characters",
}


async def test_the_error_names_what_is_too_large(served: Served) -> None:
    for kind, message in TOO_LARGE.items():
        error = (await served.post(*HOSTILE[kind])).error
        assert error["message"].startswith(message)
        assert len(error["param"] or "") <= 200


async def test_a_model_with_a_long_name_is_not_looked_for_among_similar_ones(
    served: Served,
) -> None:
    reply = await served.post(CHAT, {"model": "specreason" * 400_000, "messages": [TURN]})
    assert reply.status == 404
    assert len(reply.body) < SHORT
    assert "did you mean" not in reply.error["message"]


def nested(depth: int, path: str = CHAT, **fields: Any) -> bytes:
    deep = (
        b'{"a":' * (depth // 2)
        + b"[" * (depth - depth // 2)
        + b"]" * (depth - depth // 2)
        + b"}" * (depth // 2)
    )
    return body(path, **fields, x=0).replace(b'"x":0', b'"response_format":' + deep)


async def test_a_body_that_is_nested_too_deeply_is_refused(served: Served) -> None:
    for depth in (MAX_DEPTH, 253, 254, 255, 256, 400, 512, 1000, 1023, 1024, 1025, 20_000):
        for model in ("auto", "huge"):
            reply = await served.post(CHAT, nested(depth, model=model))
            assert (reply.status, reply.error["code"]) == (400, "invalid_json"), (depth, model)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, f"{MESSAGES}/count_tokens"])
@pytest.mark.parametrize("method", ["auto", "large", "small"])
async def test_a_conversation_longer_than_the_context_is_refused(
    served: Served, path: str, method: str
) -> None:
    fields: dict[str, Any] = (
        {"input": "x" * 5000} if path == RESPONSES else {"messages": turn("x" * 5000)}
    )
    fields |= {"max_tokens": 100} if path == MESSAGES else {}
    reply = await served.post(path, {"model": method, **fields})
    code = (
        reply.error["code"] if path in (CHAT, RESPONSES) else reply.error["details"]["error_code"]
    )
    assert (reply.status, code) == (400, "context_length_exceeded")
    # clients look for two
    for words in ("shorten it", "prompt is too long", "this model's maximum context length is"):
        assert words in reply.error["message"]
    assert served.recorded.failures == []


async def test_a_long_text_with_many_brackets_is_no_long_list(served: Served) -> None:
    text = '[{"\\' * (MAX_VALUES // 2 + 1)
    assert (await served.post(CHAT, body(CHAT, messages=turn(text)))).error[
        "code"
    ] == "context_length_exceeded"


TEXTS = st.text('\\"[]{},a\n', max_size=6)
VALUES = st.recursive(
    TEXTS | st.booleans(), lambda few: st.lists(few) | st.dictionaries(TEXTS, few), max_leaves=12
)


def containers(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    items = cast("list[Any] | dict[str, Any]", value)
    return 1 + sum(map(containers, items.values() if isinstance(items, dict) else items))


@given(st.dictionaries(TEXTS, VALUES))
def test_lists_and_objects_are_counted_whatever_the_texts_hold(value: Any) -> None:
    body = orjson.dumps(value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(schemas, "MAX_VALUES", containers(value))
        assert parse_json(body) == value
        patched.setattr(schemas, "MAX_VALUES", containers(value) - 1)
        with pytest.raises(ApiError, match="lists and objects"):
            parse_json(body)
