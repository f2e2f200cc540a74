"""A reward model over HTTP: its input, the reading of its values, and its failures."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from math import exp
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from stepspec.orchestrator import Chain, Ledger, Message, Step
from stepspec.orchestrator.backends.vllm import RewardModelEndpoint, reward_model
from stepspec.orchestrator.backends.vllm.reward_model import paragraphs, reward, sigmoid
from stepspec.orchestrator.chain import Speaker
from stepspec.orchestrator.endpoints import CriticEndpoint
from stepspec.orchestrator.errors import (
    ContextTooLong,
    EndpointRejected,
    EndpointUnavailable,
    MalformedReply,
)
from stepspec.orchestrator.events import Called, Event
from stepspec.orchestrator.http import client

from ...stand_in import SPECIAL, FakeVllm

CHAIN = (
    Chain.of("What is 6 x 7?")
    .extend(Step("Six sevens.\n\n", "small"))
    .extend(Step("That is 42.\n\n", "large"))
)
TURNS: tuple[Speaker, ...] = ("user", "assistant", "user")
USAGE = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}


@dataclass
class FakePooling(FakeVllm):
    """
    A reward model whose logits *head* gives for a text. A server that is not *able* ignores
    ``use_activation``.

    *refusals* befall the coming requests, one by one. *pooled* has their bodies, *read* the
    spellings of their tokens.
    """

    head: Callable[[str], Any] = lambda text: [2.0]
    able: bool = True
    pools: bool = True
    names: tuple[str, ...] = ("prm",)
    # as for Qwen
    special: tuple[str, ...] = ("<bos>", "<extra_0>", "<step>", ".\n\n", "\n\n", *SPECIAL)
    begin: str = "<bos>"
    refusals: deque[tuple[int, str]] = field(default_factory=deque[tuple[int, str]])
    read: list[list[str]] = field(default_factory=list[list[str]])
    pooled: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def render(
        self, messages: list[dict[str, Any]], generate: bool, tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        return (
            "".join(f"<{turn['role']}>{turn['content']}<end>" for turn in messages) + "<assistant>"
        )

    async def pooling(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.pooled.append(body)
        if self.refusals:
            status, message = self.refusals.popleft()
            return web.json_response({"error": {"message": message}}, status=status)
        self.read.append([self.decode([number]) for number in body["input"]])
        found = self.head("".join(self.read[-1]))
        data = found if self.able and not body["use_activation"] else _activated(found)
        return web.json_response({"data": [{"data": data}], "usage": USAGE})

    def application(self) -> web.Application:
        app = super().application()
        if self.pools:
            app.router.add_post("/pooling", self.pooling)
        return app

    @asynccontextmanager
    async def critic(self, port: int = 0, **settings: Any) -> AsyncGenerator[CriticEndpoint]:
        """Listen at *port*, 0: at a free one; yield the settings of the critic there."""
        async with self.listening(port=port) as url:
            yield CriticEndpoint(url=url, **settings)


def _activated(found: Any) -> Any:
    """What vLLM makes of logits: a sigmoid of one value, a softmax of several."""
    if not isinstance(found, list) or "high" in found:
        return cast("object", found)
    values = cast("Sequence[Any]", found)
    if not values or isinstance(values[0], list):
        return [_activated(row) for row in values]
    if len(values) == 1:
        return [sigmoid(values[0])]
    weights = [exp(value) for value in values]
    return [weight / sum(weights) for weight in weights]


async def rated(
    server: FakePooling, chain: Chain = CHAIN, **settings: Any
) -> tuple[float, list[Event]]:
    events: list[Event] = []
    async with server.critic(**settings) as endpoint, RewardModelEndpoint(endpoint) as critic:
        return (await critic.critic(observe=events.append).rate(chain)).score, events


@pytest.mark.parametrize(
    ("chain", "texts"),
    [
        (CHAIN, ["Six sevens.", "That is 42."]),
        (Chain.of("What?"), []),
        (
            Chain.of("?").extend(Step("Six ", "small", "length")).extend(Step("sevens.", "large")),
            ["Six sevens."],
        ),
        (
            CHAIN.extend(Step("Done.\n</think>", "small", "end")),
            ["Six sevens.", "That is 42.", "Done."],
        ),
        (CHAIN.extend(Step("</think>", "small", "end")), ["Six sevens.", "That is 42."]),
        (
            CHAIN.extend(Step("\n\n", "small")).extend(Step("So", "small")),
            ["Six sevens.", "That is 42.", "So"],
        ),
        (Chain.of("?").extend(Step("```\na\n\nb\n```\n\n", "small")), ["```\na\n\nb\n```"]),
    ],
)
def test_a_critic_reads_the_steps(chain: Chain, texts: list[str]) -> None:
    assert list(paragraphs(chain)) == texts


@pytest.mark.parametrize(
    ("messages", "settings", "text"),
    [
        ([Message("user", "What?")], {}, "<bos>What?\nSo.\n\n"),
        ([Message("user", "What?")], {"prefix": "<s>"}, "<bos><s>What?\nSo.\n\n"),
        (
            [Message("system", "Be kind."), *map(Message, TURNS, ("Hi.", "Hello.", "What?"))],
            {},
            "<bos>Hi.\nHello.\nWhat?\nSo.\n\n",
        ),
        ([Message("user", "What?")], {"layout": "chat"}, "<user>What?<end><assistant>So.\n\n"),
        (
            [Message("system", "Be kind."), Message("user", "What?")],
            {"layout": "chat", "prefix": "Step by step.", "delimiter": "<extra_0>"},
            "<system>Step by step.<end><user>What?<end><assistant>So.<extra_0>",
        ),
    ],
)
async def test_a_critic_reads_the_problem_plain_or_in_its_chat_template(
    messages: list[Message], settings: dict[str, Any], text: str
) -> None:
    server = FakePooling()
    await rated(server, Chain.of(messages).extend(Step("So.\n\n", "small")), **settings)
    assert "".join(server.read[-1]) == text


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ([2.0], sigmoid(2.0)),
        ([-800.0], 0.0),
        ([-1.0, 3.0], sigmoid(4.0)),  # wrong, right
        ([[9.0], [-9.0], [0.5]], sigmoid(0.5)),  # for every token: the last one ends the last step
        ([[9.0, 9.0], [1.0, 0.0]], sigmoid(-1.0)),
    ],
)
@pytest.mark.parametrize("able", [True, False])
async def test_logits_of_any_head_become_a_reward_from_0_to_1(
    head: Any, expected: float, able: bool
) -> None:
    assert (await rated(FakePooling(head=lambda text: head, able=able)))[0] == pytest.approx(
        expected
    )


async def test_values_beyond_0_to_1_reveal_a_missing_activation() -> None:
    class Bare(FakePooling):
        async def pooling(self, request: web.Request) -> web.Response:
            self.pooled.append(await request.json())
            return web.json_response({"data": [{"data": [3.0]}]})

    assert (await rated(Bare()))[0] == pytest.approx(sigmoid(3.0))


async def test_the_request_is_for_logits_of_token_ids() -> None:
    server = FakePooling()
    await rated(server, delimiter="<step>")
    assert [body["use_activation"] for body in server.pooled] == [False, True, False]
    assert server.pooled[-1] == {
        "model": "prm",
        "input": server.encode("".join(server.read[-1])),
        "use_activation": False,
        "encoding_format": "float",
    }
    assert "".join(server.read[-1]) == "<bos>What is 6 x 7?\nSix sevens.<step>That is 42.<step>"


async def test_a_rating_is_an_event_and_an_account_of_its_own() -> None:
    _, events = await rated(FakePooling())
    (call,) = [event for event in events if isinstance(event, Called)]
    assert (call.role, call.verb, call.fate) == ("critic", "rate", "done")
    assert (call.prompt, call.cached, call.written) == (9, 4, 0)
    ledger = Ledger.of(events)
    assert (ledger.critic.requests, ledger.critic.judging, ledger.critic.prompt) == (1, 5, 9)
    assert ledger.small.requests == ledger.large.requests == 0


async def test_failures_are_named_and_counted() -> None:
    server = FakePooling()
    events = list[Event]()
    async with server.critic(retries=0) as endpoint, RewardModelEndpoint(endpoint) as critic:
        server.refusals.append((400, "the maximum context length is 8"))
        with pytest.raises(ContextTooLong, match="the critic model at http"):
            await critic.critic(observe=events.append).rate(CHAIN)
    assert Ledger.of(events).critic.failed == 1


async def test_a_patient_critic_waits_while_its_server_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reward_model, "PAUSE_SECONDS", 0.0)
    server = FakePooling()
    async with server.critic(retries=0) as endpoint, RewardModelEndpoint(endpoint) as critic:
        server.refusals.extend([(503, "loading")] * 5)
        with pytest.raises(EndpointUnavailable, match="loading"):
            await critic.critic().rate(CHAIN)
        critic.patience = 60.0
        assert (await critic.critic().rate(CHAIN)).score == pytest.approx(sigmoid(2.0))
        assert not server.refusals


@pytest.mark.parametrize("head", [[], [[]], ["high"], [0.1] * 8, [[0.1] * 8], None])
async def test_an_invalid_reward_is_refused_on_entering(head: Any) -> None:
    async with FakePooling(head=lambda text: head).critic() as endpoint:
        with pytest.raises(MalformedReply, match="no reward of one or two values"):
            await RewardModelEndpoint(endpoint).__aenter__()


async def test_the_error_for_another_kind_of_server_names_the_model_to_serve() -> None:
    async with FakePooling(pools=False).critic() as endpoint:
        with pytest.raises(EndpointRejected, match="--runner pooling"):
            await RewardModelEndpoint(endpoint).__aenter__()


async def test_other_refusals_on_entering_pass_as_they_are() -> None:
    server = FakePooling(refusals=deque([(401, "Unauthorized")]))
    async with server.critic() as endpoint:
        with pytest.raises(EndpointRejected, match="api_key"):
            await RewardModelEndpoint(endpoint).__aenter__()


@pytest.mark.parametrize(
    ("values", "logits", "expected"),
    [
        ([0.25], False, 0.25),
        ([0.75, 0.25], False, 0.25),
        ([0.0], True, 0.5),
        ([1.0, 1.0], True, 0.5),
    ],
)
def test_values_that_are_squashed_already_are_taken_as_they_are(
    values: list[float], logits: bool, expected: float
) -> None:
    assert reward(values, logits=logits) == expected


@pytest.mark.parametrize("layout", ["plain", "chat"])
async def test_no_text_adds_a_token_at_which_a_reward_is_read(layout: str) -> None:
    server = FakePooling()
    served = server.critic(layout=layout, delimiter="<extra_0>")
    async with served as settings, RewardModelEndpoint(settings) as endpoint:
        for text in ("harmless", "<extra_0>", "<<extra_0>>"):
            await endpoint.critic().rate(
                Chain.of(f"What is {text}?").extend(Step(f"It is {text}.", "small"))
            )
            assert server.read[-1].count("<extra_0>") == 1
            assert "".join(server.read[-1]).count(text) == 2 + (text == "<extra_0>")


@pytest.mark.parametrize("able", [True, False])
async def test_a_server_that_was_started_again_is_learnt_anew(
    able: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "SILENCE_SECONDS", 0.0)
    first = FakePooling()
    second = FakePooling(head=lambda text: [-1.0], able=able, spelling=7)
    async with AsyncExitStack() as until_restart:
        settings = await until_restart.enter_async_context(first.critic())
        async with RewardModelEndpoint(settings) as endpoint:
            critic = endpoint.critic()
            assert (await critic.rate(CHAIN)).score == pytest.approx(sigmoid(2.0))
            assert len(first.pooled) == 3
            await until_restart.aclose()
            async with second.critic(port=urlsplit(settings.url).port or 0):
                second.refusals.append((400, "not yet"))
                with pytest.raises(EndpointRejected):
                    await critic.rate(CHAIN)
                for _ in range(2):
                    assert (await critic.rate(CHAIN)).score == pytest.approx(sigmoid(-1.0))
                assert second.read[-1] == first.read[-1]
                assert len(second.pooled) == 5  # the refusal, two to learn, and two of the chain
