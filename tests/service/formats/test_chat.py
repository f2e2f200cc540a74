"""
Chat completions over a real socket: a stream has the content of the reply without one, and no field
is ignored.
"""

from __future__ import annotations

from typing import Any

import pytest

from stepspec import Candidate, Rating
from stepspec.orchestrator.errors import EndpointUnavailable
from stepspec.orchestrator.events import Answering, AnswerJudged, Finished, Started

from ...stand_in import Refuse
from ..served import ANSWER, SCRIPT, THINKING, TURN, chosen, down, serving, until


async def test_an_answer_in_one_piece() -> None:
    async with serving() as served:
        reply = await served.chat(headers={"x_request_id": "mine-1"})
    body = reply.json
    assert (reply.status, body["object"]) == (200, "chat.completion")
    assert (body["model"], body["id"]) == ("auto", "chatcmpl-mine-1")
    thinking = {"reasoning": THINKING, "reasoning_content": THINKING}
    assert reply.message == {"role": "assistant", "refusal": None, "content": ANSWER, **thinking}
    assert (body["choices"][0]["finish_reason"], body["choices"][0]["logprobs"]) == ("stop", None)
    assert body["usage"] == {
        "prompt_tokens": 35,
        "completion_tokens": 12,
        "total_tokens": 47,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 8},
    }
    assert [(step["author"], step["fate"], step["grade"]) for step in body["steps"]] == [
        ("small", "kept", 9.0)
    ] * 3
    assert (body["ledger"]["small"]["kept"], body["ledger"]["large"]["kept"]) == (8, 4)
    about = body["stepspec"]
    assert (about["method"], about["answer"], about["finish_reason"]) == ("specreason", "2", "stop")
    assert reply.headers["X-Request-Id"] == "mine-1"
    assert float(reply.headers["x-stepspec-overhead-ms"]) >= 0
    assert "x-stepspec-version" in reply.headers


async def test_a_stream_has_every_step_and_then_the_answer() -> None:
    async with serving() as served:
        reply = await served.chat(stream=True, stream_options={"include_usage": True})
        unstreamed = await served.chat()
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    assert (reply.headers["Cache-Control"], reply.headers["X-Accel-Buffering"]) == (
        "no-cache",
        "no",
    )
    assert reply.lines[-1] == "data: [DONE]"
    first, *middle, last, usage = reply.chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {chunk["object"] for chunk in reply.chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in reply.chunks}) == 1
    steps = [
        chunk["choices"][0]["stepspec"] for chunk in middle if "stepspec" in chunk["choices"][0]
    ]
    assert steps == [
        {"index": index, "author": "small", "grade": 9.0, "fate": "kept", "reason": ""}
        for index in range(3)
    ]
    texts = [chunk["choices"][0]["delta"].get("reasoning") for chunk in middle][:3]
    assert texts == ["So one.\n\n", "Then two.\n\n", "Done"]
    for name in ("reasoning", "reasoning_content", "content"):
        assert reply.joined(name) == unstreamed.message[name]
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "stop")
    assert [step["text"] for step in last["steps"]] == [
        step["text"] for step in unstreamed.json["steps"]
    ]
    assert "ledger" in last
    assert (usage["choices"], usage["usage"]) == ([], unstreamed.json["usage"])


async def test_usage_is_sent_only_on_request() -> None:
    async with serving() as served:
        for options in (None, {"continuous_usage_stats": True}):
            reply = await served.chat(stream=True, stream_options=options)
            assert not any("usage" in chunk for chunk in reply.chunks)


@pytest.mark.parametrize(
    ("thinking", "fields"),
    [
        ("both", {"reasoning": THINKING, "reasoning_content": THINKING, "content": ANSWER}),
        ("reasoning", {"reasoning": THINKING, "content": ANSWER}),
        ("reasoning_content", {"reasoning_content": THINKING, "content": ANSWER}),
        ("content", {"content": f"<think>\n{THINKING}\n</think>\n\n{ANSWER}"}),
        ("none", {"content": ANSWER}),
    ],
)
async def test_the_field_of_the_thinking_follows_the_option(
    thinking: Any, fields: dict[str, str]
) -> None:
    async with serving(chosen(thinking=thinking)) as served:
        unstreamed = await served.chat()
    async with serving() as served:
        stream = await served.chat(stream=True, stepspec={"thinking": thinking})
    assert unstreamed.message == {"role": "assistant", "refusal": None, **fields}
    assert {name: stream.joined(name) for name in fields} == fields
    assert {name for chunk in stream.chunks for name in chunk["choices"][0]["delta"]} <= {
        "role",
        *fields,
    }


async def test_several_choices_have_seeds_of_their_own() -> None:
    async with serving() as served:
        unstreamed = await served.chat(n=3, temperature=1.0, seed=5)
        stream = await served.chat(n=2, temperature=1.0, stream=True)
        greedy = await served.chat(n=2, temperature=0)
    assert [choice["index"] for choice in unstreamed.json["choices"]] == [0, 1, 2]
    assert [each["seed"] for each in unstreamed.json["stepspec"]] == [5, 6, 7]
    assert {step["choice"] for step in unstreamed.json["steps"]} == {0, 1, 2}
    assert unstreamed.json["usage"]["completion_tokens"] == 3 * 12
    assert [each["small"]["kept"] for each in unstreamed.json["ledger"]] == [8] * 3
    assert [stream.joined("content", choice) for choice in (0, 1)] == [ANSWER] * 2
    assert (greedy.status, greedy.error["param"]) == (400, "n")


async def test_a_stop_string_ends_the_answer_and_never_the_thinking() -> None:
    async with serving() as served:
        unstreamed = await served.chat(stop=["two", "\\boxed"])
        stream = await served.chat(stop="\\boxed", stream=True)
        lines = [
            await served.chat(stop=["\n", "\n\n"], stepspec={"answer": by})
            for by in ("large", "method")
        ]
    assert (unstreamed.message["reasoning"], unstreamed.message["content"]) == (THINKING, "It is ")
    assert (stream.joined("reasoning"), stream.joined("content")) == (THINKING, "It is ")
    # the answer begins with a blank line
    assert [line.message["content"] for line in lines] == [ANSWER] * 2


async def test_a_conversation_reaches_the_models_as_turns_without_old_thinking() -> None:
    turns = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "and two."}],
        },
        {
            "role": "assistant",
            "content": "3",
            "reasoning": "hm",
            "reasoning_content": "hm",
            "refusal": None,
        },
        TURN,
    ]
    async with serving() as served:
        reply = await served.chat(messages=turns)
        started = next(event for event in served.recorded.events if isinstance(event, Started))
    assert reply.status == 200
    assert [(message.role, message.content) for message in started.messages] == [
        ("system", "Be brief."),
        ("user", "One\nand two."),
        ("assistant", "3"),
        ("user", "What is 1 + 1?"),
    ]


async def test_the_sampling_of_a_request_reaches_the_servers() -> None:
    options: dict[str, Any] = {
        "temperature": 0.7,
        "top_p": 0.5,
        "top_k": 9,
        "repetition_penalty": 1.5,
        "seed": 3,
    }
    async with serving() as served:
        await served.chat(**options)
        first = next(body for path, body in served.small.requests if path == "/v1/completions")
        await served.chat(temperature=0.7)
        await served.chat(temperature=0.7)
        drawn = [body["seed"] for path, body in served.small.requests if path == "/v1/completions"]
    assert options.pop("seed") == 3
    assert {name: first[name] for name in options} == options
    assert len(set(drawn)) == len(drawn) == 9  # a request for each step of each run


async def test_json_is_requested_from_the_large_model_and_only_for_the_answer() -> None:
    script = (*SCRIPT[:8], "\n\n", '{"x":', " 2}")
    schema = {"type": "object"}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with serving(script=script) as served:
        reply = await served.chat(response_format=wanted)
        schemas = [
            body.get("structured_outputs")
            for path, body in served.large.requests
            if path == "/v1/completions"
        ]
        drafted = [
            body.get("structured_outputs")
            for path, body in served.small.requests
            if path == "/v1/completions"
        ]
    assert reply.message["content"] == '{"x": 2}'
    assert {"json": schema} in schemas
    assert set(map(str, drafted)) == {"None"}


async def test_a_failure_before_the_first_step_has_its_status_and_a_later_one_ends_the_stream() -> (
    None
):
    async with serving() as served:
        for each in (served.small, served.large):
            each.faults.extend([Refuse(500, "dead")] * 99)
        early = await served.chat(stream=True)
    assert (early.status, early.error["code"], early.headers["Retry-After"]) == (
        503,
        "upstream_unavailable",
        "2",
    )
    async with serving() as served:
        served.large.faults.extend([Refuse(500, "dead")] * 99)
        judged = await served.chat(stream=True)
    assert (judged.status, judged.error["code"]) == (503, "upstream_unavailable")
    async with serving(policy="large") as served:
        served.large.faults.extend([None] + [Refuse(500, "dead")] * 99)
        late = await served.chat(stream=True, stepspec={"ahead": 0})
        served.large.faults.clear()
        await until(lambda: not down(served))
        served.large.faults.extend([None] + [Refuse(500, "dead")] * 99)
        unstreamed = await served.chat(stepspec={"ahead": 0})
    assert late.status == 200
    assert "error" in late.chunks[-1]
    assert late.lines[-1] == "data: [DONE]"
    assert (unstreamed.status, unstreamed.headers["x-should-retry"]) == (503, "false")


async def test_an_answer_is_not_lost_because_its_prompt_cannot_be_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as served:
        (server,) = served.service.context.offer.engine.large.up
        counted = server.count

        async def fails(messages: Any, tools: Any) -> int:
            if any(isinstance(event, Finished) for event in served.recorded.events):
                raise EndpointUnavailable("gone")
            return await counted(messages, tools)

        monkeypatch.setattr(server, "count", fails)
        reply = await served.chat()
    assert reply.message["content"] == ANSWER
    assert reply.json["usage"]["prompt_tokens"] == 35


# Under a verifier of answers: the answer is held back, and the reply says what became of it.


def strict(candidate: Candidate) -> Rating:
    return Rating(0.0, "not good enough")


def easy(candidate: Candidate) -> float:
    return 1.0


def broken(candidate: Candidate) -> float:
    raise RuntimeError("out of order")


async def test_an_accepted_answer_comes_in_one_piece() -> None:
    async with serving(critic=easy) as served:
        whole = await served.chat(method="specreason")
        stream = await served.chat(method="specreason", stream=True)
        events = served.recorded.events
        metrics = (await served.get("/metrics")).body.decode()
    for last in (whole.json, stream.chunks[-1]):
        assert (last["stepspec"]["verified"], last["stepspec"]["rejection"]) == (True, None)
    assert (whole.message["content"], stream.joined("reasoning").strip()) == (ANSWER, THINKING)
    contents = [chunk["choices"][0]["delta"].get("content") for chunk in stream.chunks]
    assert [content for content in contents if content] == [ANSWER]
    kinds = [type(event) for event in events if isinstance(event, Answering | AnswerJudged)]
    assert kinds == [AnswerJudged, Answering] * 2
    assert 'stepspec_judged_answers_total{model="specreason",outcome="accepted"} 2.0' in metrics


@pytest.mark.parametrize(
    ("verifier", "settings", "about", "metric"),
    [
        (
            strict,
            {"repairs": 0},
            (False, "not good enough", list[str]()),
            'stepspec_judged_answers_total{model="specreason",outcome="rejected"} 1.0',
        ),
        (
            broken,
            {"fallback": "accept"},
            (None, None, ["critic"]),
            'stepspec_verifier_failures_total{fallback="accept",stage="answer"} 1.0',
        ),
    ],
)
async def test_an_answer_that_is_rejected_or_not_judged_says_so(
    verifier: Any, settings: dict[str, Any], about: object, metric: str
) -> None:
    async with serving(critic={"kind": "function", "function": verifier, **settings}) as served:
        reply = await served.chat(method="specreason")
        metrics = (await served.get("/metrics")).body.decode()
    told = reply.json["stepspec"]
    assert reply.message["content"] == ANSWER
    assert (told["verified"], told["rejection"], told["degraded"]) == about
    assert metric in metrics


async def test_a_run_that_fails_with_its_verifier_is_a_503() -> None:
    async with serving(
        critic={"kind": "function", "function": broken, "fallback": "fail"}
    ) as served:
        reply = await served.chat()
    assert (reply.status, reply.error["code"]) == (503, "upstream_unavailable")
    assert "verifier broken" in reply.error["message"]
    assert "out of order" in reply.error["message"]
