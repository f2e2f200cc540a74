"""
A reward model served by vLLM, over ``/pooling``, the one route that every kind of it has.

What it reads are token ids, as RSD's authors make them: those of the problem and a line break, and for every step so
far those of its text and the last one of the delimiter's. Each is encoded by itself, so that the reward is always read
at the delimiter's own token: in one text a full stop and a blank line may share a token, which the reward model was not
trained on. There are no thinking tags. With the layout "chat" the problem goes through the model's chat template
instead, and the steps stand in the assistant's turn, as Qwen2.5-Math-PRM reads them.

The ids end with the last step's delimiter, where a model with one value for a sequence gives it, and so does one with a
value for every token or for every step. Logits are asked for and squashed here, so that it does not matter what the
server thinks of its head: one value through a sigmoid, two (wrong, right) through a softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import exp
from types import TracebackType
from typing import Any, Self, cast

from ..chain import THINK_END, Chain, Message
from ..errors import EndpointRejected, MalformedReply
from ..events import Observer
from .client import Body, Call, Connection, Reply
from .settings import CriticEndpoint
from .token_stream import RequestMeter, or_now
from .tokenizer import CONVERSATIONS_KEPT, TEXTS, AsyncCache
from .vllm_protocol import usage

PROBE = Chain.of("What is 1 + 1?")


class RewardModelEndpoint:
    """
    The connection to one served reward model.

    Entering raises an `EndpointError` that names the cure if the server cannot be used or serves something else.
    """

    def __init__(self, settings: CriticEndpoint) -> None:
        self.settings = settings
        self.name = settings.model or ""
        self.logits = True  # whether the server returns logits when asked to
        self._steps = AsyncCache(self._encode, TEXTS)
        self._problems = AsyncCache(self._problem, CONVERSATIONS_KEPT)

    async def __aenter__(self) -> Self:
        self.connection = Connection(self.settings)
        try:
            self.name = await self.connection.chosen()
            await self._learn()
        except BaseException:
            await self.connection.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.connection.close()

    def critic(
        self, *, observe: Observer = lambda event: None, clock: Callable[[], float] | None = None
    ) -> VllmRewardModel:
        """Make the critic of one run. *clock* returns the seconds since the run began; by default it begins now."""
        return VllmRewardModel(self, observe, or_now(clock))

    async def ask(self, chain: Chain, *, logits: bool = True) -> Body:
        """Make the request that has the last step of *chain* rated."""
        ids = list(await self._problems(chain.messages))
        mark = (await self._steps(self.settings.delimiter))[-1:]
        for text in paragraphs(chain):
            ids += [*await self._steps(text), *mark]
        return {"model": self.name, "input": ids, "use_activation": not logits, "encoding_format": "float"}

    async def _problem(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Encode what stands before the first step."""
        settings = self.settings
        told = [message for message in messages if message.role != "system"]
        if settings.layout == "plain":
            text = settings.prefix + "\n".join(message.content for message in told) + "\n"
            return await self._tokenize({"prompt": text, "add_special_tokens": True})
        system = [{"role": "system", "content": settings.prefix}] if settings.prefix else []
        turns = [{"role": message.role, "content": message.content} for message in told]
        return await self._tokenize({"messages": [*system, *turns], "add_generation_prompt": True})

    async def _encode(self, text: str) -> tuple[int, ...]:
        return await self._tokenize({"prompt": text, "add_special_tokens": False})

    async def _tokenize(self, body: Body) -> tuple[int, ...]:
        call = self.connection.call("tokenize")
        reply = await self.connection.post(call, "/tokenize", {"model": self.name, **body})
        if not reply.get("tokens"):
            raise call.error(MalformedReply, f"/tokenize answered {str(reply)[:200]}, which is not vLLM's answer")
        return tuple(reply["tokens"])

    async def _learn(self) -> None:
        """Rate something twice, to see whether the server knows the parameter that gives logits."""
        call = self.connection.call("rate")
        try:
            found = [
                await self.connection.post(call, "/pooling", await self.ask(PROBE, logits=raw)) for raw in (True, False)
            ]
        except EndpointRejected as exc:
            if not exc.cause.startswith("HTTP 404"):
                raise
            cure = "no /pooling or no /tokenize here; is this a reward model, served by vLLM with --runner pooling?"
            raise call.error(EndpointRejected, cure) from exc
        logits, squashed = [values(call, reply) for reply in found]
        self.logits = logits != squashed or not all(0 <= value <= 1 for value in logits)


class VllmRewardModel:
    """A `Critic` of one run: its observer and its clock, on a connection that it shares with other runs."""

    def __init__(self, served: RewardModelEndpoint, observe: Observer, clock: Callable[[], float]) -> None:
        self._served, self._observe, self._clock = served, observe, clock

    async def rate(self, chain: Chain) -> float:
        """Rate the last step of *chain*, 0 to 1; one that only ends the thinking has the reward of the one before."""
        connection, body = self._served.connection, await self._served.ask(chain)
        call = connection.call("rate")
        with RequestMeter("critic", "rate", self._observe, self._clock) as tally:
            reply = await connection.post(call, "/pooling", body)
            prompt, cached, _ = usage(reply)
            tally.add(0, prompt, cached)
            return reward(values(call, reply), logits=self._served.logits)


def paragraphs(chain: Chain) -> Iterator[str]:
    """The texts of the steps of *chain*, without blank edges; a step that was cut is one with what follows it."""
    text = ""
    for step in chain.steps:
        text += step.text.replace(THINK_END, "")
        if step.stop == "delimiter" and text.strip():
            yield text.strip()
            text = ""
    if text.strip():
        yield text.strip()


def values(call: Call, reply: Reply) -> list[float]:
    """Read the values at the end of the text, one or two. Raise `MalformedReply` if they are no reward."""
    try:
        found: list[Any] = reply["data"][0]["data"]
        last = cast("Sequence[Any]", found[-1]) if isinstance(found[-1], list) else found
        numbers = [float(value) for value in last]
    except (LookupError, TypeError, ValueError) as exc:
        raise call.error(MalformedReply, f"not a reward: {str(reply)[:200]}") from exc
    if len(numbers) not in (1, 2):
        raise call.error(MalformedReply, f"{len(numbers)} values for a text, where a reward model gives one or two")
    return numbers


def reward(values: Sequence[float], *, logits: bool) -> float:
    """Squash what a critic said to 0 to 1."""
    if not logits:
        return values[-1]
    return sigmoid(values[-1] - values[0]) if len(values) == 2 else sigmoid(values[0])


def sigmoid(logit: float) -> float:
    return 1 / (1 + exp(-logit)) if logit >= 0 else exp(logit) / (1 + exp(logit))
