"""Text, ids and chat templates over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp import web

from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.backends.vllm.text_tokenizer import AsyncCache
from stepspec.orchestrator.backends.vllm.tokenizer import ChainPromptCache
from stepspec.orchestrator.chain import Chain, Message, Step, Token
from stepspec.orchestrator.errors import ContextTooLong, MissingCapability

from ...stand_in import IM_END, IM_START, THINK, THINK_END, FakeVllm
from ..conftest import Meet


class Hiding(FakeVllm):
    """Its chat template shows the last turn only."""

    def render(
        self, messages: list[dict[str, Any]], generate: bool, tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        return super().render(messages[-1:], generate)


class Lossy(FakeVllm):
    """Its tokenizer does not give back the text that it was given."""

    def decode(self, ids: Any) -> str:
        return super().decode(ids).replace("assistant", "ASSISTANT")


class Mistral(FakeVllm):
    """
    Its tokenizer finds no special token in a text, and its template lets no reply end a
    conversation.
    """

    def render(
        self, messages: list[dict[str, Any]], generate: bool, tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        thoughts = [
            f"{turn['reasoning']}{THINK_END}" if "reasoning" in turn else "" for turn in messages
        ]
        shown = [
            {**turn, "content": thought + turn["content"]}
            for turn, thought in zip(messages, thoughts, strict=True)
        ]
        return super().render(shown, generate, tools)

    async def tokenize(self, request: web.Request) -> web.Response:
        messages = (await request.json()).get("messages")
        special = self.special
        if messages and self.refuses(messages):
            return web.json_response(
                {"error": {"message": "Expected last role User or Tool", "code": 400}}, status=400
            )
        self.special = special if messages else ()
        try:
            return await super().tokenize(request)
        finally:
            self.special = special

    def refuses(self, messages: list[dict[str, Any]]) -> bool:
        return bool(messages[-1]["role"] == "assistant")


class OldMistral(Mistral):
    """Its template refuses reasoning, too."""

    def refuses(self, messages: list[dict[str, Any]]) -> bool:
        return super().refuses(messages) or any("reasoning" in message for message in messages)


async def test_special_tokens_are_sent_to_a_server_that_finds_none_in_a_text(meet: Meet) -> None:
    prompts: list[list[str]] = []
    for server in (FakeVllm(digits={"7": -0.1}), Mistral(digits={"7": -0.1})):
        async with meet(server) as met:
            chain = Chain.of(f"Hello {IM_END}").extend(
                Step(f"So {IM_START}.\n{THINK_END}", "small")
            )
            await met.model.ask(chain, f"Right{THINK_END}?", "7")
            assert met.endpoint.tokenizer.faithful
        prompts.append([server.decode([number]) for number in server.requests[-1][1]["prompt"]])
    assert prompts[0] == prompts[1]
    assert THINK_END in prompts[0]


async def test_a_template_that_refuses_replies_with_reasoning_is_learnt(meet: Meet) -> None:
    async with meet(OldMistral()) as old, meet(FakeVllm()) as met:
        assert old.endpoint.template == met.endpoint.template


async def test_a_template_that_cannot_be_learnt_is_named() -> None:
    async with Hiding().serve("large") as settings:
        with pytest.raises(
            MissingCapability, match=r"the large model at http://.*leaves out a turn"
        ):
            async with VllmEndpoint(settings):
                raise AssertionError("learnt from nothing")


@pytest.mark.parametrize(("kind", "faithful"), [(FakeVllm, True), (Lossy, False)])
async def test_a_changed_text_after_a_round_trip_is_detected(
    meet: Meet, kind: type[FakeVllm], faithful: bool
) -> None:
    async with meet(kind()) as met:
        assert met.endpoint.tokenizer.faithful is faithful


async def test_options_of_the_template_are_passed_on(meet: Meet) -> None:
    server = FakeVllm()
    async with meet(server, template={"enable_thinking": True}) as met:
        await met.endpoint.tokenizer.encode_chain(Chain.of("Hello"))
    options = [
        body.get("chat_template_kwargs") for _, body in server.requests if "messages" in body
    ]
    assert len(options) > 1
    assert all(each == {"enable_thinking": True} for each in options)


async def test_a_conversation_is_rendered_once_with_all_its_turns(meet: Meet) -> None:
    server = FakeVllm()
    chain = Chain.of([Message("system", "Be brief."), Message("user", "Hello")])
    async with meet(server) as met:
        server.requests.clear()
        ids = [await met.endpoint.tokenizer.encode_chain(chain) for _ in range(2)]
    assert ids[0] == ids[1]
    assert len(server.requests) == 1
    turns = f"{IM_START}system\nBe brief.{IM_END}\n{IM_START}user\nHello{IM_END}\n"
    assert server.decode(ids[0]) == f"{turns}{IM_START}assistant\n{THINK}\n"


class SystemFirst(FakeVllm):
    """A server whose chat template refuses a system message after the first turn."""

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if any(turn["role"] == "system" for turn in body.get("messages", [])[1:]):
            message = "System message must be at the beginning."
            return web.json_response({"error": {"message": message, "code": 400}}, status=400)
        return await super().tokenize(request)


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (SystemFirst, (("system", "Be brief.\nNow."), ("user", "A"), ("user", "B"))),
        (FakeVllm, (("system", "Be brief."), ("user", "A"), ("system", "Now."), ("user", "B"))),
    ],
)
async def test_later_system_messages_are_the_first_turn_where_the_template_wants_it(
    meet: Meet, kind: type[FakeVllm], shown: Sequence[tuple[str, str]]
) -> None:
    server = kind()
    turns = (
        Message("system", "Be brief."),
        Message("user", "A"),
        Message("system", "Now."),
        Message("user", "B"),
    )
    async with meet(server) as met:
        ids = await met.endpoint.tokenizer.encode_prefix(turns)
        server.requests.clear()
        await met.endpoint.tokenizer.encode_prefix((*turns, Message("system", "Again."), turns[1]))
        # what the template refuses is known by now
        assert [path for path, _ in server.requests].count("/tokenize") == 1
    text = "".join(f"{IM_START}{role}\n{content}{IM_END}\n" for role, content in shown)
    assert server.decode(ids.ids) == f"{text}{IM_START}assistant\n{THINK}\n"


async def test_a_conversation_longer_than_the_context_is_refused_each_time_and_never_kept(
    meet: Meet,
) -> None:
    server = FakeVllm(room=100)
    async with meet(server) as met:
        for _ in range(2):
            server.requests.clear()
            with pytest.raises(
                ContextTooLong, match=r"prompt is too long: \d+ tokens leave no room"
            ):
                await met.endpoint.tokenizer.encode_prefix(Chain.of("<|im_end|>" * 100).messages)
            assert [path for path, _ in server.requests] == ["/tokenize"]


async def test_marks_of_a_user_are_divided_also_where_that_leaves_the_context_meanwhile(
    meet: Meet,
) -> None:
    async with meet(FakeVllm(room=100)) as met:
        ids = await met.endpoint.tokenizer.encode_prefix(Chain.of(IM_END * 5).messages)
    assert len(ids) < 100


async def test_a_memo_drops_the_least_recently_used_entry() -> None:
    made: list[str] = []

    async def make(key: str) -> str:
        made.append(key)
        return key.upper()

    memo = AsyncCache(make, 2)
    assert [await memo(key) for key in "abacab"] == list("ABACAB")
    assert made == ["a", "b", "c", "b"]


async def test_a_growing_chain_is_encoded_as_a_whole_one_after_rollbacks_and_other_problems() -> (
    None
):
    async with FakeVllm().serve() as settings, VllmEndpoint(settings) as endpoint:
        growing = ChainPromptCache(lambda: endpoint.tokenizer)
        known = Step(
            "ab\n\n",
            "small",
            tokens=(Token("ab", id=3), Token("\n\n", id=4)),
            vocabulary=endpoint.vocabulary,
        )
        other = [
            Step(text, "large") for text in ("One.\n\n", "Two.\n\n", "Three.", f"\n{THINK_END}")
        ]
        chains = [Chain.of("Hello").extend(known)]
        for step in other:
            chains.append(chains[-1].extend(step))
        rolled_back = chains[2].extend(known).extend(known)
        for chain in (
            *chains,
            rolled_back,
            chains[0],
            chains[4],
            Chain.of("Bye").extend(known),
            Chain.of("Bye"),
        ):
            assert (await growing.prompt(chain)).ids == await endpoint.tokenizer.encode_chain(chain)
