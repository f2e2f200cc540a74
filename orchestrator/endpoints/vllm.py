"""A model served by vLLM: the endpoint, which runs share, and the light object that writes, scores and asks in one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary

from ..chain import DELIMITER, THINK_END, Chain, Role, Step, Token
from ..errors import ConfigurationError, ContextTooLong, EndpointRejected, EndpointUnavailable
from ..events import Observer, Verb
from ..interfaces import KEPT_OPEN
from . import wire
from .client import Connection
from .encoder import Encoder
from .failures import Call
from .growing import GrowingStep
from .kept import Kept
from .probe import Capabilities, probe
from .reading import Arrivals, Tally, generate, grow
from .settings import Endpoint, Sampling
from .template import Template


class VllmEndpoint:
    """
    The connection to one served model and what was learnt about it on entering.

    Entering raises an `EndpointError` that names the cure if the server cannot be used, and `MissingCapability` if its
    chat template cannot be learnt.
    """

    def __init__(self, settings: Endpoint) -> None:
        self.settings = settings
        self.name = settings.model or ""
        self.by_id: bool | None = None  # whether it returns the log-probabilities of chosen ids; None: not tried yet
        self._can: Capabilities | None = None

    async def __aenter__(self) -> Self:
        self.connection = Connection(self.settings)
        try:
            self.name = self._choose(await self.connection.served())
            self.encoder = Encoder(self.connection, self.name)
            await self.encoder.learn()
        except BaseException:
            await self.connection.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.connection.close()

    @property
    def role(self) -> Role:
        return self.settings.role

    @property
    def template(self) -> Template:
        return self.encoder.template

    @property
    def vocabulary(self) -> str:
        """Equal for models that share their token ids."""
        return self.encoder.vocabulary

    def model(
        self,
        sampling: Sampling = wire.GREEDY,
        *,
        observe: Observer = lambda event: None,
        clock: Callable[[], float] | None = None,
    ) -> VllmModel:
        """Make the model of one run. *clock* returns the seconds since the run began; by default it begins now."""
        began = time.perf_counter()
        return VllmModel(self, sampling, observe, clock or (lambda: time.perf_counter() - began))

    async def capabilities(self) -> Capabilities:
        """Find out what the server can do, once."""
        if self._can is None:
            self._can = await probe(self.connection, self.name, self.encoder)
            self.by_id = self._can.chosen_logprobs
        return self._can

    def _choose(self, served: Sequence[str]) -> str:
        wanted = self.settings.model
        if served and wanted in (None, *served):
            return wanted or served[0]
        message = f"no model {wanted or 'at all'!r} is served here; served: {', '.join(map(repr, served)) or 'none'}"
        raise self.connection.call("connect").error(EndpointRejected, message)


class VllmModel:
    """A `Model` of one run: its sampling, its observer and its clock, on an endpoint that it shares with other runs."""

    def __init__(
        self, endpoint: VllmEndpoint, sampling: Sampling, observe: Observer, clock: Callable[[], float]
    ) -> None:
        self._endpoint, self._sampling = endpoint, sampling
        self._observe, self._clock = observe, clock
        self._kept: WeakKeyDictionary[AsyncExitStack, Kept] = WeakKeyDictionary()

    @property
    def role(self) -> Role:
        return self._endpoint.role

    async def write(
        self,
        chain: Chain,
        *,
        stop: Sequence[str] = (DELIMITER,),
        limit: int = 512,
        until: Callable[[Step], bool] | None = None,
        opening: str = "",
        top: int = 0,
    ) -> Step:
        """
        Write the next step as `Model.write` says; *opening* counts towards *limit*.

        Raise `ContextTooLong` if the chain leaves no room for a token.
        """
        encoder, stack = self._endpoint.encoder, KEPT_OPEN.get()
        begun = await encoder.spelt(opening)
        growing = GrowingStep(self.role, encoder.vocabulary, stops=stop, limit=limit, opening=begun)
        kept = self._kept.get(stack) if stack else None
        if kept and not opening and kept.continues(chain, stop, limit):
            return await kept.write(chain, growing, until, limit)
        if kept and not kept.reading:
            await kept.close()
        if len(begun) >= limit:
            return growing.end("length")
        prompt = [*await encoder.chain(chain), *await encoder.encode(opening)]
        if stack is None or (kept and kept.reading):
            stops, most = (THINK_END, *stop), limit - len(begun)
            async with self._generate(chain, prompt, stops, most) as arrivals:
                return await grow(growing, arrivals.take, until)
        kept = Kept(lambda: self._generate(chain, prompt, (), encoder.room), stop, limit)
        self._kept[stack] = kept
        stack.push_async_callback(kept.close)
        return await kept.write(chain, growing, until, limit)

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        """Read *spans* as `Model.score` says. The server reads the whole chain again, prefix cache or not."""
        encoder = self._endpoint.encoder
        before = await encoder.chain(chain)
        encoded = [(span, await encoder.encode(span)) for span in spans]
        prompt = [*before, *(number for _, ids in encoded for number in ids)]
        reply = await self._post("score", wire.scoring(self._endpoint.name, prompt))
        return wire.scores(self._call("score"), reply, encoded, len(before))

    async def ask(
        self, chain: Chain, question: str, choices: Sequence[str], *, opening: str = ""
    ) -> Mapping[str, float]:
        """
        Ask as `Model.ask` says; `Template.ask` is the layout of the question.

        Raise `ConfigurationError` if a choice is not one token of this model. A server that cannot report on chosen
        tokens tells about its 20 most probable ones: a choice that is not among them has the probability 0.
        """
        encoder, endpoint = self._endpoint.encoder, self._endpoint
        numbers = await self._numbers(choices)
        prompt = [*await encoder.chain(chain), *await encoder.encode(encoder.template.ask(question, opening))]
        if endpoint.by_id is not False:
            found = await self._ask_by_id(prompt, numbers)
            if found is not None:
                return found
        reply = await self._post("ask", wire.asking(endpoint.name, prompt, list(numbers.values()), by_id=False))
        return dict.fromkeys(choices, 0.0) | wire.chances(self._call("ask"), reply, numbers)

    async def _ask_by_id(self, prompt: Sequence[int], numbers: Mapping[str, int]) -> dict[str, float] | None:
        """Ask about the choices' own tokens; None if the server cannot tell, which is remembered."""
        endpoint = self._endpoint
        body = wire.asking(endpoint.name, prompt, list(numbers.values()), by_id=True)
        try:
            reply = await self._post("ask", body, retries=None if endpoint.by_id else 0)
        except EndpointUnavailable as exc:
            if endpoint.by_id:
                raise
            if exc.cause.startswith("HTTP 500"):  # what vLLM answers while it speculates itself
                endpoint.by_id = False
            return None
        found = wire.chances(self._call("ask"), reply, numbers)
        endpoint.by_id = len(found) == len(numbers)
        return found if endpoint.by_id else None

    async def _numbers(self, choices: Sequence[str]) -> dict[str, int]:
        encoded = {choice: await self._endpoint.encoder.encode(choice) for choice in choices}
        wrong = [choice for choice, ids in encoded.items() if len(ids) != 1]
        if wrong or not encoded:
            names = ", ".join(map(repr, wrong)) or "none given"
            raise ConfigurationError(f"choices have to be single tokens of the {self.role} model: {names}")
        return {choice: ids[0] for choice, ids in encoded.items()}

    def _generate(
        self, chain: Chain, prompt: Sequence[int], stop: Sequence[str], limit: int
    ) -> AbstractAsyncContextManager[Arrivals]:
        endpoint, call = self._endpoint, self._call("write")
        limit = min(limit, self._room(call, prompt))
        seed = self._sampling.seed_for(self.role, "write", len(chain.steps), chain.tokens)
        body = wire.writing(endpoint.name, prompt, self._sampling, seed=seed, limit=limit, stop=stop)
        return generate(endpoint.connection, call, body, self._tally("write", len(prompt)))

    async def _post(self, verb: Verb, body: wire.Body, *, retries: int | None = None) -> wire.Reply:
        call, prompt = self._call(verb), body["prompt"]
        self._room(call, prompt)
        with self._tally(verb, len(prompt)) as tally:
            reply = await self._endpoint.connection.post(call, "/v1/completions", body, retries=retries)
            read, cached, written = wire.usage(reply)
            tally.add(written, read, cached)
            return reply

    def _room(self, call: Call, prompt: Sequence[int]) -> int:
        """Count the tokens that may follow *prompt*. Raise `ContextTooLong` if there is room for none."""
        room = self._endpoint.encoder.room
        if len(prompt) >= room:
            raise call.error(ContextTooLong, f"the prompt has {len(prompt)} tokens, and the model takes {room} in all")
        return room - len(prompt)

    def _tally(self, verb: Verb, prompt: int) -> Tally:
        return Tally(self.role, verb, self._observe, self._clock, prompt)

    def _call(self, verb: Verb) -> Call:
        return self._endpoint.connection.call(verb)
