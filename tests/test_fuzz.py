"""
Whatever the bytes from outside are, a parser returns a value or raises one of our own errors.

The values are those that the parser expects, with some of them replaced by others, so that its
inner parts are reached.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from stepspec.evals.benchmarks import loading
from stepspec.orchestrator import trace
from stepspec.orchestrator.backends.vllm import replies, tool_protocol
from stepspec.orchestrator.endpoints import metrics
from stepspec.orchestrator.errors import ConfigurationError, EndpointError, StepspecError
from stepspec.orchestrator.http import client, http_errors
from stepspec.orchestrator.http.http_errors import Call
from stepspec.service.formats.chat import ChatRequest, LiveRequest
from stepspec.service.formats.messages import CountTokensRequest, MessagesRequest
from stepspec.service.formats.responses import ResponsesRequest
from stepspec.service.formats.validation import explain
from stepspec.settings import load
from tests.fakes import replay
from tests.fuzz import CORPORA, TARGETS

CALL = Call("small", "http://host", "write")
fuzz = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}}
TOP = [{"token_id:1": -0.1, "token_id:2": -2.5}]
LOGPROBS = {
    "tokens": ["a", " b"],
    "token_logprobs": [-0.1, -2.0],
    "top_logprobs": [{"a": -0.1}, {" b": -2}],
}
CHOICE = {
    "index": 0,
    "text": "a b",
    "token_ids": [1, 2],
    "finish_reason": "stop",
    "stop_reason": "\n\n",
}
CHUNK = {"choices": [{**CHOICE, "logprobs": LOGPROBS}], "usage": USAGE}
RENDERED: Any = {"sampling_params": {"structured_outputs": {"json": {}}}}
ERROR = {"error": {"message": "no", "code": 400}}
ROW = {
    "7": {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
    "8": {"logprob": -1.5, "rank": 2, "decoded_token": "b"},
}
PIECE = {"index": 0, "id": "call_1", "function": {"name": "look", "arguments": "{}"}}
PARSED = {
    "stream_state": {"tools_streamed": False, "output_token_ids": [1]},
    "chunk": {"choices": [{"delta": {"content": "a", "tool_calls": [PIECE]}}]},
}

PARSED_WHOLE = {"choices": [{"message": {"content": "a", "tool_calls": [PIECE]}}]}

REPLIES: Mapping[str, tuple[Any, Callable[[Any], object]]] = {
    "chunk": (CHUNK, lambda reply: replies.parse_chunk(CALL, orjson.dumps(reply), 1)),
    "chunk of text": (
        CHUNK,
        lambda reply: replies.parse_chunk(CALL, orjson.dumps(reply), None),
    ),
    "error": (ERROR, lambda reply: replies.parse_chunk(CALL, orjson.dumps(reply), None)),
    "models": (
        {"data": [{"id": "m", "parent": None}]},
        lambda reply: client.model_names(CALL, reply),
    ),
    "tokenize": (
        {"tokens": [1, 2], "max_model_len": 9},
        lambda reply: replies.tokenized(CALL, orjson.dumps(reply)),
    ),
    "detokenize": ({"prompt": "a"}, lambda reply: replies.detokenized(CALL, reply)),
    "usage": ({"usage": USAGE}, replies.usage),
    "choices": (
        {"choices": [{"logprobs": {"top_logprobs": TOP}}]},
        lambda reply: replies.choice_probabilities(CALL, reply, {"Yes": 1, "No": 2}),
    ),
    "rows": (
        {"choices": [{"prompt_logprobs": [None, ROW]}]},
        lambda reply: replies.scored_spans(
            CALL, replies.prompt_rows(CALL, reply, 1), [("a", [7])], 1
        ),
    ),
    "suffix": (
        {"prompt_logprobs": [None, ROW], "usage": {"prompt_tokens_details": {"cached_tokens": 0}}},
        lambda reply: replies.computed_rows(reply, [7], 1),
    ),
    "pooling": (
        {"data": [{"data": [0.5]}]},
        lambda reply: replies.pooled_values(CALL, reply),
    ),
    "render": (RENDERED, lambda reply: tool_protocol.answer_format(CALL, reply)),
    "derender tokens": (PARSED, lambda reply: tool_protocol.parsed_tokens(CALL, reply)),
    "derender": (
        PARSED_WHOLE,
        lambda reply: tool_protocol.parsed_answer(CALL, reply, parallel=True),
    ),
}


def mutated(value: Any, data: st.DataObject) -> Any:
    """Replace up to two parts of *value*, at any depth, or leave them out."""
    made = copy.deepcopy(value)
    for _ in range(data.draw(st.integers(0, 2))):
        places = list(_places(made))
        if not places:
            return made
        holder, key = places[data.draw(st.integers(0, len(places) - 1))]
        if data.draw(st.booleans()):
            del holder[key]
        else:
            holder[key] = data.draw(json_values)
    return made


def _places(value: object) -> Sequence[tuple[Any, Any]]:
    if isinstance(value, dict):
        members = list(cast("Mapping[Any, Any]", value).items())
    elif isinstance(value, list):
        members = list(enumerate(cast("Sequence[Any]", value)))
    else:
        return []
    holder = cast("Any", value)
    return [(holder, key) for key, _ in members] + [
        place for _, inner in members for place in _places(inner)
    ]


@pytest.mark.parametrize("kind", REPLIES)
@fuzz
@given(data=st.data())
def test_replies_of_servers(kind: str, data: st.DataObject) -> None:
    whole, parse = REPLIES[kind]
    with suppress(EndpointError):  # the kind "error" raises one
        parse(whole)
    reply = orjson.loads(orjson.dumps(mutated(whole, data)))
    if not isinstance(reply, dict):
        return  # `parse_object` lets no other reply through.
    with suppress(EndpointError):
        parse(reply)


@fuzz
@given(st.binary(max_size=200) | json_values.map(orjson.dumps))
def test_bytes_of_servers(body: bytes) -> None:
    for parse in (
        lambda: http_errors.parse_object(CALL, body),
        lambda: replies.parse_chunk(CALL, body, 1),
        lambda: http_errors.http_error(CALL, 400, body, "/tokenize"),
        lambda: replies.version(body),
        lambda: (
            metrics.read_queue(body),
            metrics.read_acceptance(body),
            metrics.read_cache_config(body),
        ),
    ):
        with suppress(EndpointError):
            parse()


@fuzz
@given(st.text(max_size=12) | st.floats().map(str))
def test_the_seconds_of_a_header_are_finite(header: str) -> None:
    assert 0 <= http_errors.retry_after(header, 0.0) < float("inf")


METRICS = (
    'vllm:num_requests_running{engine="0"} 1.0\nvllm:num_requests_waiting{engine="0"}'
    ' 2.0\nvllm:spec_decode_num_drafts_total{engine="0"}'
    ' 3.0\nvllm:spec_decode_num_draft_tokens_total{engine="0"}'
    ' 9.0\nvllm:spec_decode_num_accepted_tokens_total{engine="0"}'
    ' 4.0\nvllm:cache_config_info{block_size="16",enable_prefix_caching="True"'
    ',mamba_block_size="None"} 1.0\n'
)


@fuzz
@given(
    st.lists(
        st.tuples(st.integers(0, len(METRICS) - 1), st.sampled_from('0x"{}=.\n NaInf-e9')),
        max_size=6,
    )
)
def test_metrics_of_servers(changes: list[tuple[int, str]]) -> None:
    text = list(METRICS)
    for place, character in changes:
        text[place] = character
    body = "".join(text).encode()
    metrics.read_queue(body)
    metrics.read_acceptance(body)
    metrics.read_cache_config(body)


STARTED = {"at": 0.0, "event": "Started", "messages": [{"role": "user", "content": "a"}]}
COMMITTED = {
    "at": 0.5,
    "event": "Committed",
    "step": {"text": "a", "author": "small", "stop": "delimiter"},
}


@fuzz
@given(data=st.data())
def test_lines_of_traces(data: st.DataObject) -> None:
    line = mutated(data.draw(st.sampled_from([STARTED, COMMITTED])), data)
    body = orjson.dumps(line) if data.draw(st.booleans()) else data.draw(st.binary(max_size=80))
    with suppress(ConfigurationError):
        replay([trace.parse(body).event])


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b'{"a":' * 100_000, b'{"at": 1e999, "event": "Started"}']
)
def test_deep_lines_of_traces_are_refused(line: bytes) -> None:
    with pytest.raises(ConfigurationError, match="not a line of a trace"):
        trace.parse(line)


@fuzz
@given(content=st.binary(max_size=80) | json_values.map(orjson.dumps))
def test_files_of_problems(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "problems.jsonl"
    path.write_bytes(content)
    with suppress(ConfigurationError):
        loading.from_file(path)


TOML = 'threshold = 7\n[large]\nurl = "http://a"\n[options]\nx = [1, 2.5, "a"]\n'


@fuzz
@given(content=st.binary(max_size=80) | st.randoms().map(lambda rng: _scrambled(TOML, rng)))
def test_policy_files_and_files_of_settings(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "stepspec.toml"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPSPEC_CONFIG", str(path))
        with suppress(StepspecError):
            load()
        patch.delenv("STEPSPEC_CONFIG")
        with suppress(StepspecError):
            load(large="http://a", alternatives=[path])


def _scrambled(text: str, rng: random.Random) -> bytes:
    body = bytearray(text.encode())
    for _ in range(rng.randrange(1, 5)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    return bytes(body)


MESSAGES = [
    {"role": "user", "content": [{"type": "text", "text": "a"}]},
    {"role": "assistant", "content": "b"},
]
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "a", "parameters": {"type": "object"}},
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
CHAT = {
    "model": "m",
    "messages": MESSAGES,
    "tools": [TOOL],
    "tool_choice": "auto",
    "response_format": FORMAT,
}
MESSAGE = {
    "model": "m",
    "max_tokens": 9,
    "system": "a",
    "messages": MESSAGES,
    "stop_sequences": ["x"],
}
BODIES: Mapping[str, tuple[type[BaseModel], Any]] = {
    "chat": (ChatRequest, CHAT),
    "responses": (ResponsesRequest, {"model": "m", "input": "a", "instructions": "b"}),
    "messages": (MessagesRequest, MESSAGE),
    "count": (CountTokensRequest, {"model": "m", "messages": MESSAGES}),
    "live": (LiveRequest, {"messages": MESSAGES}),
}


@pytest.mark.parametrize("kind", BODIES)
@fuzz
@given(data=st.data())
def test_bodies_of_requests(kind: str, data: st.DataObject) -> None:
    """A refused body is explained: by its field, and in a few lines, however large it is."""
    schema, whole = BODIES[kind]
    body = orjson.loads(orjson.dumps(mutated(whole, data)))
    try:
        schema.model_validate(body)
    except ValidationError as exc:
        error = explain(schema, body, exc)
        assert 0 < len(str(error)) < 5000


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_findings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds of ``make fuzz``, and what it has found."""
    monkeypatch.setenv("STEPSPEC_CONFIG", "")  # which the target of the settings changes
    target = TARGETS[name]()
    kept = sorted((CORPORA / name).iterdir())
    assert kept
    for path in kept:
        target(path.read_bytes())
