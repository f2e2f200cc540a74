"""
A reward model served by vLLM, over ``/pooling``, the one route that every kind of it has.

What it reads is the problem, a line break, and the paragraphs so far with the critic's own delimiter behind each (RSD,
section 3.1 and its code): no chat template, no thinking tags. A model with one value for a sequence gives it after the
last delimiter; one with a value for every token is read there. Logits are asked for and squashed here, so that it does
not matter what the server thinks of its head: one value through a sigmoid, two (wrong, right) through a softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp
from types import TracebackType
from typing import Any, Self, cast

from ..chain import DELIMITER, THINK_END, Chain
from ..errors import EndpointRejected, MalformedReply
from ..events import Observer
from .client import Connection
from .clock import or_now
from .failures import Call
from .reading import Tally
from .settings import CriticEndpoint
from .wire import Body, Reply, usage

PROBE = Chain.of("What is 1 + 1?")


class VllmCritic:
    """
    The connection to one served reward model.

    Entering raises an `EndpointError` that names the cure if the server cannot be used or serves something else.
    """

    def __init__(self, settings: CriticEndpoint) -> None:
        self.settings = settings
        self.name = settings.model or ""
        self.logits = True  # whether the server returns logits when asked to

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
    ) -> ServedCritic:
        """Make the critic of one run. *clock* returns the seconds since the run began; by default it begins now."""
        return ServedCritic(self, observe, or_now(clock))

    def ask(self, chain: Chain, *, logits: bool = True) -> Body:
        """Make the request that has the last paragraph of *chain* rated."""
        text = laid_out(chain, self.settings.delimiter)
        return {"model": self.name, "input": text, "use_activation": not logits, "encoding_format": "float"}

    async def _learn(self) -> None:
        """Rate something twice, to see whether the server knows the parameter that gives logits."""
        call = self.connection.call("rate")
        try:
            found = [await self.connection.post(call, "/pooling", self.ask(PROBE, logits=raw)) for raw in (True, False)]
        except EndpointRejected as exc:
            if not exc.cause.startswith("HTTP 404"):
                raise
            cure = "no /pooling here; is this a reward model, served with --runner pooling?"
            raise call.error(EndpointRejected, cure) from exc
        logits, squashed = [values(call, reply) for reply in found]
        self.logits = logits != squashed or not all(0 <= value <= 1 for value in logits)


class ServedCritic:
    """A `Critic` of one run: its observer and its clock, on a connection that it shares with other runs."""

    def __init__(self, served: VllmCritic, observe: Observer, clock: Callable[[], float]) -> None:
        self._served, self._observe, self._clock = served, observe, clock

    async def rate(self, chain: Chain) -> float:
        """Rate the last step of *chain*, 0 to 1; one that only ends the thinking has the reward of the one before."""
        connection = self._served.connection
        call = connection.call("rate")
        with Tally("critic", "rate", self._observe, self._clock) as tally:
            reply = await connection.post(call, "/pooling", self._served.ask(chain))
            prompt, cached, _ = usage(reply)
            tally.add(0, prompt, cached)
            return reward(values(call, reply), logits=self._served.logits)


def laid_out(chain: Chain, delimiter: str = DELIMITER) -> str:
    """The text that a critic reads."""
    problem = "\n".join(message.content for message in chain.messages if message.role != "system")
    paragraphs = (part.strip() for part in chain.text.replace(THINK_END, "").split(DELIMITER))
    return f"{problem}\n" + "".join(f"{paragraph}{delimiter}" for paragraph in paragraphs if paragraph)


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
