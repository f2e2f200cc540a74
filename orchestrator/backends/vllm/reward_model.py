"""
A reward model served by vLLM, over ``/pooling``, the route that every kind of reward model has.

The prompt is laid out as RSD's authors do it: the token ids of the problem and a line break, then
for every step the ids of its text and the last id of the delimiter. Each text is encoded by itself,
so that the reward is always read at the delimiter's own token: in one text a full stop and a blank
line may share a token, which the reward model was not trained on. There are no thinking tags. With
the layout "chat" the problem goes through the model's chat template instead, and the steps stand in
the assistant's turn, as Qwen2.5-Math-PRM reads them.

The ids end with the last step's delimiter. That is where a model with one value per sequence gives
its value, and the last value of a model with one per token or per step. The request asks for
logits, whatever activation the server has for the model's head, and this module maps them to 0 to
1: one value by a sigmoid, two (wrong, right) by a softmax.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import tanh

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from ...chain import Chain, Rating
from ...endpoints.interfaces import Clock, Messages, or_now
from ...endpoints.settings import CriticEndpoint
from ...errors import EndpointRejected, EndpointUnavailable
from ...events import Observer
from ...http.client import ConnectedEndpoint
from ...http.http_errors import Call
from ...http.paths import POOLING, Body
from ...http.prompts import Ids
from ...http.request_meter import metered
from .replies import pooled_values, usage
from .text_tokenizer import AsyncCache, TextTokenizer
from .tokenizer import MAX_CONVERSATIONS, VOCABULARY_PROBE
from .tokenizer_source import TokenizerSource

PROBE = Chain.of("What is 1 + 1?")
"""The chain that is rated to learn the server."""
PAUSE_SECONDS = 5.0
"""Between two tries of a rating while the server is down."""
PLAIN_TEXT = "1"
"""A text that is encoded to see which tokens the tokenizer puts around every text."""


class RewardModelEndpoint(ConnectedEndpoint[CriticEndpoint]):
    """
    The connection to one served reward model.

    Entering raises an `EndpointError`, with the cure, if the server cannot be used or serves no
    reward model.
    """

    def __init__(self, settings: CriticEndpoint) -> None:
        super().__init__(settings)
        self.logits = True
        """Whether the server returns logits when a request asks for them."""
        self.patience = 0.0
        """Seconds for which a rating waits while the server is down."""

    def critic(
        self,
        *,
        observe: Observer = lambda event: None,
        clock: Clock | None = None,
    ) -> VllmRewardModel:
        """
        Make the critic of one run.

        *clock* returns the seconds since the run began. None: the run begins now.
        """
        return VllmRewardModel(self, observe, or_now(clock))

    async def body(self, chain: Chain, *, logits: bool = True) -> Body:
        """
        Make the body of the request that rates the last step of *chain*.

        The server returns *logits*, or the values of its activation.
        """
        ids = list(await self._problems(chain.messages))
        delimiter = (await self._tokenizer.encode_special(self.settings.delimiter))[-1:]
        for text in paragraphs(chain):
            ids += (*await self._tokenizer.encode_ordinary(text), *delimiter)
        return {
            "model": self.name,
            "input": ids,
            "use_activation": not logits,
            "encoding_format": "float",
        }

    async def _problem(self, messages: Messages) -> Ids:
        """Encode the text before the first step."""
        settings = self.settings
        turns = [message for message in messages if message.role != "system"]
        if settings.layout == "plain":
            return await self._plain_problem("\n".join(message.content for message in turns))
        conversation = [{"role": message.role, "content": message.content} for message in turns]
        if settings.prefix:
            conversation.insert(0, {"role": "system", "content": settings.prefix})
        return tuple((await self._tokenizer.encode_messages(conversation)).ids)

    async def _plain_problem(self, text: str) -> Ids:
        """Encode *text* with the prefix, within the tokens that the tokenizer puts around texts."""
        ids = await self._tokenizer.encode_ordinary(
            text,
            before=self.settings.prefix,
            after="\n",
        )
        plain = await self._tokenizer.encode_special(PLAIN_TEXT)
        around = await self._tokenizer.source.encode(PLAIN_TEXT, special_tokens=True)
        start = around.index(plain[0]) if plain[0] in around else 0
        return (*around[:start], *ids, *around[start + len(plain) :])

    async def _learn(self) -> None:
        self._tokenizer = TextTokenizer(TokenizerSource(self.connection, self.name))
        self._problems = AsyncCache(self._problem, MAX_CONVERSATIONS)
        self._learnt = await self._identity()
        await self._learn_logits()

    async def _look(self) -> None:
        """Learn the server anew if it was started again with another model under the same name."""
        if await self._identity() != self._learnt:
            await self._learn()

    async def _identity(self) -> tuple[list[int], int]:
        """Return what changes if another model is served: token ids, and the context length."""
        source = self._tokenizer.source
        ids = await source.encode(VOCABULARY_PROBE, special_tokens=True)
        return ids, source.context_length

    async def _learn_logits(self) -> None:
        """
        Learn whether the server returns logits if a request asks for them.

        The same text is rated with and without the server's activation.
        """
        call = self.connection.call("rate")
        try:
            logits = await self._values(call, await self.body(PROBE))
            activated = await self._values(call, await self.body(PROBE, logits=False))
        except EndpointRejected as exc:
            if exc.status != 404:
                raise
            cure = (
                "no /pooling or no /tokenize here; is this a reward model, served by vLLM with"
                " --runner pooling?"
            )
            raise call.error(EndpointRejected, cure) from exc
        self.logits = logits != activated or not all(0 <= value <= 1 for value in logits)

    async def _values(self, call: Call, body: Body) -> list[float]:
        return pooled_values(call, await self.connection.post(call, POOLING, body))


@dataclass(frozen=True, slots=True)
class VllmRewardModel:
    """The `Critic` of one run."""

    endpoint: RewardModelEndpoint
    """The connection, which all runs share."""
    observe: Observer
    """Receives the events of the run."""
    clock: Clock
    """Returns the seconds since the run began."""

    async def rate(self, chain: Chain) -> Rating:
        """
        Rate the last step of *chain*, 0 to 1.

        A step that only ends the thinking has the reward of the step before.
        """
        gone = retry_if_exception_type(EndpointUnavailable)
        ends = stop_after_delay(self.endpoint.patience)
        return await AsyncRetrying(
            retry=gone,
            stop=ends,
            wait=wait_fixed(PAUSE_SECONDS),
            reraise=True,
        )(self._rate, chain)

    async def _rate(self, chain: Chain) -> Rating:
        await self.endpoint.refresh()
        connection = self.endpoint.connection
        body = await self.endpoint.body(chain)
        call = connection.call("rate")
        with metered("critic", "rate", self.observe, self.clock) as meter:
            reply = await connection.post(call, POOLING, body)
            counts = usage(reply)
            meter.prompt = counts.prompt
            meter.add(0, counts.cached)
            return Rating(reward(pooled_values(call, reply), logits=self.endpoint.logits))


def paragraphs(chain: Chain) -> Iterator[str]:
    """
    Yield the stripped texts of the steps of *chain*. A step that was cut is joined with the next.
    """
    text = ""
    for step in chain.steps:
        text += step.reasoning
        if step.stop == "delimiter" and text.strip():
            yield text.strip()
            text = ""
    if text.strip():
        yield text.strip()


def reward(values: Sequence[float], *, logits: bool) -> float:
    """Map the reward model's one or two *values* to 0 to 1."""
    if not logits:
        return values[-1]
    logit = values[-1]
    if len(values) == 2:
        logit -= values[0]
    return sigmoid(logit)


def sigmoid(logit: float) -> float:
    """Return the probability of *logit*, without an overflow at either side."""
    return (1 + tanh(logit / 2)) / 2
