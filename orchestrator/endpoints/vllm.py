"""A model served by vLLM: `VllmEndpoint`, shared by all runs, and `VllmModel`, the `Model` of one run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import replace
from itertools import product
from math import inf
from weakref import WeakKeyDictionary

from ..chain import Chain, Message, Role, Step, Token, Tool, Toolset, beginning
from ..concurrency import at_once
from ..errors import (
    ConfigurationError,
    ContextTooLong,
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    MissingCapability,
    StepspecError,
)
from ..events import Called, Calling, Observer, Verb
from ..interfaces import DEFAULT_LIMIT, KEPT_OPEN, REQUEST
from ..stats import Acceptance
from ..step_ends import StepEnds
from . import tool_protocol, vllm_protocol
from .chat_template import Template
from .client import ConnectedEndpoint
from .interfaces import ModelEndpoint
from .metrics import (
    AcceptanceReading,
    CacheConfig,
    QueueGauges,
    read_acceptance,
    read_cache_config,
    read_counters,
    read_queue,
)
from .probe import Capabilities, probe
from .settings import Endpoint, Sampling
from .sticky_stream import StickyStream
from .text_encoder import AsyncCache
from .token_stream import (
    OUTSIDE,
    Closing,
    RequestMeter,
    StepBuilder,
    TokenStream,
    generate,
    grow,
    grow_each,
    or_now,
    step_ends,
)
from .tokenizer import ChainIds, ModelTokenizer
from .tool_protocol import DERENDER, RENDER, ParserState
from .vllm_protocol import COMPLETIONS, GENERATE, HEALTH, METRICS, Body, Call, EncodedPrompt, Reply

WARM_UP_TOKENS = 8
WARM_UP_BATCHES = (1, 4)  # requests at the same time: compilers make a version of their own for a size of 1
WARM_UP_SECONDS = 120.0
CHARACTER = 4  # tokens, of one byte each, that make up any character
TOOLSETS = 64  # whose formats are remembered
CHECK_SECONDS = 1.0  # between two looks at whether the server is still the same


class VllmEndpoint(ConnectedEndpoint[Endpoint]):
    """
    The connection to one served model, with its name, tokenizer and chat template, which are learnt on entering.

    Entering raises an `EndpointError`, with the cure, if the server cannot be used, and `MissingCapability` if its chat
    template cannot be learnt.
    """

    def __init__(self, settings: Endpoint, table: str = "") -> None:
        super().__init__(settings, table)
        self.by_id: bool | None = None  # whether it returns log-probabilities of given ids; None: not tried
        self.polled_at = -inf  # the second of the loop's clock at which its metrics were requested last
        self.reading: AcceptanceReading | None = None  # of a server that speculates on tokens
        self.cache: CacheConfig | None = None  # its prefix cache; None if it does not describe it
        self._can: Capabilities | None = None
        self._tool_formats = AsyncCache(self._tool_format, TOOLSETS)
        self._reading = self._asking = 0  # requests under way that break each other: see `apart`
        self._answered = asyncio.Event()
        self._checked = (0, -inf)  # how many connections were opened when the server was looked at last, and when

    async def _learn(self) -> None:
        self.encoder = ModelTokenizer(self.connection, self.name)
        await self.encoder.learn()
        self._checked = self.connection.opened, -inf
        # A V1 runner that speculates fails at a question by ids; in a batch with drafted tokens the engine ends.
        self.by_id = False if await self.acceptance() is not None else None

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

    @property
    def usable(self) -> bool:
        return True

    @property
    def room(self) -> int:
        """The longest sequence that the model takes, in tokens."""
        return self.encoder.room

    @property
    def checkpoints(self) -> bool:
        """Whether a question is sent with a second prompt, the chain alone: see `CacheConfig.checkpoints`."""
        return self.cache is not None and self.cache.checkpoints

    @asynccontextmanager
    async def apart(self) -> AsyncGenerator[None]:
        """
        Keep a request that reads the likeliest tokens of positions apart from questions by token ids.

        In one batch of vLLM's V1 runner, the latter leave nothing of the former's tokens. A question that begins during
        the block reads the 20 likeliest tokens instead, and the block waits for questions by ids that are being
        answered: each writes one token.
        """
        self._reading += 1
        try:
            while self._asking:
                self._answered.clear()
                await self._answered.wait()
            yield
        finally:
            self._reading -= 1

    @property
    def asks_by_id(self) -> bool:
        """Whether a question may ask for the log-probabilities of given token ids now."""
        mixes = self._can is not None and self._can.shared_batch is True
        return self.by_id is not False and (mixes or not self._reading)

    @contextmanager
    def asking_by_id(self) -> Generator[None]:
        """Count a question by token ids for `apart`."""
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1
            self._answered.set()

    async def queue(self) -> QueueGauges | None:
        """Read the server's queue; None if it shows none, or cannot be reached."""
        metrics = await self._metrics("look at the queue")
        return read_queue(metrics) if metrics is not None else None

    async def acceptance(self) -> Acceptance | None:
        """Read the server's counters of token-level speculation; None without speculation or without metrics."""
        metrics = await self._metrics("look at the acceptance")
        return read_acceptance(metrics) if metrics is not None else None

    async def count(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> int:
        """
        Count the tokens that a chain about *messages* begins with.

        A server that was started again has closed every connection: after a new one, look whether it is the same.
        """
        opened, now = self.connection.opened, asyncio.get_running_loop().time()
        if opened > self._checked[0] and now - self._checked[1] >= CHECK_SECONDS:
            await self.check_unchanged()
            self._checked = opened, now
        return len(await self.encoder.prefix(messages, tools))

    async def check_health(self) -> None:
        """Raise `EndpointUnavailable` if ``/health`` answers with a failure; a server without it is healthy."""
        with suppress(EndpointRejected):
            await self.connection.get(self.connection.call("probe"), HEALTH)

    async def check_unchanged(self) -> None:
        """Raise `EndpointUnavailable` if the server's vocabulary, chat template or context is not as it was learnt."""
        if await self.encoder.changed():
            message = "another server answers here, or the same one with other flags: it is to be learnt anew"
            raise self.connection.call("connect").error(EndpointUnavailable, message)

    def adopt(self, fresh: ModelEndpoint) -> None:
        """Take over what *fresh*, a new connection to the same server, has learnt."""
        assert isinstance(fresh, VllmEndpoint)
        ours, theirs = ((each.rendered_last, each.vocabulary, each.template) for each in (self.encoder, fresh.encoder))
        if ours != theirs:
            self.encoder = fresh.encoder.on(self.connection)
        self.encoder.room = fresh.room
        self.by_id, self.cache, self._can = fresh.by_id, fresh.cache, None
        self._tool_formats = AsyncCache(self._tool_format, TOOLSETS)

    async def thinks(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> bool:
        """Whether the model thinks in a block of its own before it answers *messages*: see `Template.opens`."""
        return await self.encoder.opens(messages, tools)

    async def tool_format(self, toolset: Toolset) -> vllm_protocol.Format | None:
        """
        Ask the server in which form an answer has to call tools of *toolset*; None: in any form.

        Raise `MissingCapability`, with the cure, if it has no parser for such answers.
        """
        return await self._tool_formats(toolset)

    async def parse_answer(
        self, toolset: Toolset, tokens: Sequence[Token], state: ParserState, *, finished: bool
    ) -> tuple[str, tuple[Calling, ...], ParserState]:
        """
        Let the server's parser read the next *tokens* of an answer with *toolset*, after what *state* describes.

        Return the content and the pieces of calls that they add, and the new state.
        """
        ids: list[int] = []
        for token in tokens:
            ids += [token.id] if token.id >= 0 else await self.encoder.encode(token.text)
        call, prompt = self.connection.call("parse"), await self.encoder.answer_opening()
        body = tool_protocol.parser_body(self.name, toolset, prompt, ids, state, finished=finished)
        return tool_protocol.parsed(call, await self.connection.post(call, DERENDER, body))

    async def _tool_format(self, toolset: Toolset) -> vllm_protocol.Format | None:
        if self.template.handover:
            raise MissingCapability(
                f"the {self.role} model at {self.settings.url}: its chat template opens a message for the answer, in "
                "which no tool can be called; send requests with tools to the model by its own name"
            )
        call = self.connection.call("learn the form of tool calls")
        try:
            reply = await self.connection.post(call, RENDER, tool_protocol.chat_request(self.name, toolset))
        except EndpointRejected as exc:
            raise (tool_protocol.no_parser(exc) or exc) from exc
        return tool_protocol.answer_format(call, reply)

    def model(
        self,
        sampling: Sampling = vllm_protocol.GREEDY,
        *,
        observe: Observer = lambda event: None,
        clock: Callable[[], float] | None = None,
        format: vllm_protocol.Format | None = None,
    ) -> VllmModel:
        """
        Make the model of one run. *clock* returns the seconds since the run began; by default it begins now.

        With a *format*, everything that this model writes is JSON.
        """
        return VllmModel(self, sampling, observe, or_now(clock), format)

    async def capabilities(self) -> Capabilities:
        """Find out what the server can do; later calls return the first result."""
        if self._can is None:
            self._can = await probe(
                self.connection, self.name, self.encoder, suffix_scoring=self.settings.suffix_scoring
            )
            self.by_id = self._can.chosen_logprobs
        return self._can

    async def warm_up(self) -> None:
        """
        Send every kind of request that methods send, one at a time and then several, so that no run is the first.

        vLLM compiles what it needs for log-probabilities when they are first requested, which takes seconds. Failures
        are left to the runs that need what fails, and whatever takes longer than `WARM_UP_SECONDS` is given up.
        """
        chain, step = Chain.of("What is 1 + 1?"), Step("2", "small")
        greedy, sampled = self.model(), self.model(Sampling(seed=0))
        requests: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: greedy.write(chain, limit=WARM_UP_TOKENS),
            lambda: sampled.write(chain, limit=WARM_UP_TOKENS, top=vllm_protocol.MAX_LOGPROBS),
            lambda: greedy.branch(chain, (step, step), limit=WARM_UP_TOKENS),
            lambda: greedy.ask(chain.extend(step), "Is it right?", "0123456789"),
            lambda: greedy.score(chain, step.text, top=vllm_protocol.MAX_LOGPROBS),
            lambda: self.model(format="json").write(chain, limit=WARM_UP_TOKENS),
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(WARM_UP_SECONDS):
                for request, count in product(requests, WARM_UP_BATCHES):
                    results = await asyncio.gather(*(request() for _ in range(count)), return_exceptions=True)
                    for result in results:
                        if isinstance(result, BaseException) and not isinstance(result, StepspecError):
                            raise result

    async def _metrics(self, verb: str) -> bytes | None:
        self.polled_at = polled_at = asyncio.get_running_loop().time()
        try:
            metrics = await self.connection.get_unqueued(self.connection.call(verb), METRICS)
        except EndpointError:
            return None
        self.cache = read_cache_config(metrics) or self.cache
        if self.reading is None or self.reading.at <= polled_at:
            self.reading = read_counters(metrics, polled_at) or self.reading
        return metrics


class VllmModel:
    """The `Model` of one run: the run's sampling, observer and clock, on an endpoint that all runs share."""

    def __init__(
        self,
        endpoint: VllmEndpoint,
        sampling: Sampling,
        observe: Observer,
        clock: Callable[[], float],
        format: vllm_protocol.Format | None = None,
    ) -> None:
        self._endpoint, self._sampling = endpoint, sampling
        self._format: vllm_protocol.Format | None = format
        self._observe, self._clock = observe, clock
        self._chain_ids = ChainIds(lambda: endpoint.encoder)
        self._sticky: WeakKeyDictionary[AsyncExitStack, StickyStream] = WeakKeyDictionary()

    @property
    def role(self) -> Role:
        return self._endpoint.role

    async def write(
        self,
        chain: Chain,
        *,
        stop: Sequence[str] | None = None,
        limit: int = DEFAULT_LIMIT,
        until: Callable[[Step], bool] | None = None,
        opening: str = "",
        top: int = 0,
    ) -> Step:
        """
        Write the next step as `Model.write` says; *opening* counts towards *limit*.

        No stream is kept open for a model that samples by a seed: every step needs a request with a seed of its own,
        and how far a stream runs ahead depends on time.

        Raise `ContextTooLong` if the chain leaves no room for a token, `ConfigurationError` for too large a *top*.
        """
        sampling = self._sampling.telling(_checked(top))
        stack = None if sampling.repeats else KEPT_OPEN.get()
        ends = step_ends(chain, stop)
        begun = await self._endpoint.encoder.spelt(opening)
        closing = await self._closing(chain)
        growing = self._builder(chain, ends, limit, begun, top, closing)
        sticky = self._sticky.get(stack) if stack else None
        if sticky and not opening and sticky.continues(chain, ends, limit, top):
            return await sticky.write(chain, growing, until, limit)
        if sticky and not sticky.writing:
            await sticky.close()
        if len(begun) >= limit:
            return growing.end("length")
        prompt, held = await self._prompt(chain, begun)
        growing.hold(held)
        if stack is None or (sticky and sticky.writing):
            stops, most = self._stops(ends, chain, opening), limit - len(begun) + len(held) * CHARACTER
            async with self._generate(chain, prompt, sampling, most, opening, stops, closing) as arrivals:
                step = await grow(growing, arrivals.take, until)
            return step or await self._finish(chain, growing, sampling, until, closing)

        def open_request(observe: Callable[[Called], None]) -> AbstractAsyncContextManager[TokenStream]:
            room = self._endpoint.encoder.room
            return self._generate(chain, prompt, sampling, room, opening, observe=observe)

        sticky = StickyStream(open_request, self._observe, ends, limit, sampling.logprobs or 0, closing)
        self._sticky[stack] = sticky
        stack.push_async_callback(sticky.close)
        return await sticky.write(chain, growing, until, limit)

    async def branch(
        self, chain: Chain, begun: Sequence[Step], *, stop: Sequence[str] | None = None, limit: int = DEFAULT_LIMIT
    ) -> tuple[Step, ...]:
        """
        Write the next step from several beginnings as `Model.branch` says, in one stream for all of them.

        vLLM gives all prompts of a request the same seed, so that the steps would share their draws. A model that
        samples by a seed therefore sends one request per beginning, at the same time. Raise `ContextTooLong` if one of
        the beginnings leaves no room for a token.
        """
        openings = [await self._endpoint.encoder.begun(step) for step in begun]
        ends, closing = step_ends(chain, stop), await self._closing(chain)
        growing = [self._builder(chain, ends, limit, opening, 0, closing) for opening in openings]
        open_places = [place for place, opening in enumerate(openings) if len(opening) < limit]
        steps = {place: one.end("length") for place, one in enumerate(growing) if place not in open_places}
        prompts = {place: (await self._prompt(chain, openings[place]))[0] for place in open_places}
        for prompt in prompts.values():
            self._room(self._call("write"), prompt)
        requests = [[place] for place in open_places] if self._sampling.repeats else [open_places]
        written = await at_once(
            self._grow(
                [prompts[place] for place in places],
                self._stops(ends, chain),
                closing,
                limit - min(len(openings[place]) for place in places),
                [growing[place] for place in places],
                self._sampling.seed_for(self.role, "write", chain, growing[places[0]].so_far().text),
            )
            for places in requests
            if places
        )
        grown = dict(zip(open_places, (step for batch in written for step in batch), strict=True))
        unfinished = [place for place, step in grown.items() if step is None]
        rest = (self._finish(chain, growing[place], self._sampling, None, closing) for place in unfinished)
        finished = await at_once(rest)
        steps |= {place: step for place, step in grown.items() if step is not None}
        steps |= zip(unfinished, finished, strict=True)
        return tuple([steps[place] for place in range(len(begun))])

    async def _closing(self, chain: Chain) -> Closing:
        """What ends the thinking in what this model writes after *chain*: nothing once it is over."""
        encoder = self._endpoint.encoder
        if chain.closed:
            return OUTSIDE
        return Closing(encoder.template.closing, encoder.closing_id, open=await encoder.thinking(chain))

    def _builder(
        self, chain: Chain, ends: StepEnds, limit: int, opening: Sequence[Token], top: int, closing: Closing
    ) -> StepBuilder:
        return StepBuilder(
            self.role,
            self._endpoint.encoder.vocabulary,
            ends=ends,
            before=chain.text,
            blocks=chain.totals.blocks,
            limit=limit,
            opening=opening,
            top=top,
            closing=closing,
        )

    async def _prompt(self, chain: Chain, opening: Sequence[Token]) -> tuple[EncodedPrompt, str]:
        """Encode *chain* and the tokens of a step's *opening*; also return the end of the chain that is left out."""
        shown = chain if opening else without_partial_character(chain)
        prompt = await self._chain_ids(shown)
        return prompt.plus([token.id for token in opening]), chain.text[len(shown.text) :]

    def _stops(self, ends: StepEnds, chain: Chain, opening: str = "") -> tuple[str, ...]:
        """
        The stop strings for the server.

        No delimiters in a block, as most of them end no step there, nor where an answer begins, often with a blank
        line.
        """
        begins = ends.blocks and chain.closed and not (chain.parts()[1].text + opening).strip()
        in_block = ends.blocks and ends.in_block(chain.text + opening, chain.totals.blocks)
        delimiters = () if in_block or begins else ends.texts
        return tuple(delimiters)

    async def _finish(
        self,
        chain: Chain,
        growing: StepBuilder,
        sampling: Sampling,
        until: Callable[[Step], bool] | None,
        closing: Closing,
    ) -> Step:
        """Write the rest of a step where the server stopped in a block, at a delimiter that is no end of the step."""
        growing.resume()
        begun = chain.extend(growing.so_far())
        shown = without_partial_character(begun)
        prompt, held = EncodedPrompt.of(await self._endpoint.encoder.chain(shown)), begun.text[len(shown.text) :]
        growing.hold(held)
        opening, most = growing.so_far().text, growing.room + len(held) * CHARACTER
        async with self._generate(chain, prompt, sampling, most, opening, closing=closing) as arrivals:
            step = await grow(growing, arrivals.take, until)
        return step or growing.end("delimiter")

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        """
        Read *spans* as `Model.score` says.

        The server reads the whole chain again, prefix cache or not, unless the endpoint allows `suffix_scoring`. Raise
        `ConfigurationError` for too large a *top*, and if the server refuses to score a suffix.
        """
        encoder, top = self._endpoint.encoder, _checked(top)
        before = await self._chain_ids(chain)
        closes = await encoder.thinking(chain)
        encoded = [(span, await encoder.encode(span, closes=closes)) for span in spans]
        read = [number for _, ids in encoded for number in ids]
        rows = await self._suffix(before, read, top) if self._endpoint.settings.suffix_scoring else None
        pieces = None if rows is None else await encoder.pieces(set(read))
        if rows is None:
            prompt = before.plus(read)
            body = vllm_protocol.scoring_body(self._endpoint.name, prompt.fragment, top)
            reply = await self._post("score", prompt, body)
            rows = vllm_protocol.prompt_rows(self._call("score"), reply, len(before))
        return vllm_protocol.scored_spans(self._call("score"), rows, encoded, top, pieces)

    async def _suffix(self, before: EncodedPrompt, ids: Sequence[int], top: int) -> Sequence[vllm_protocol.Row] | None:
        """Score *ids* after *before*; None if the server did not compute all of them, or did not say so."""
        prompt = before.plus(ids)
        body = vllm_protocol.suffix_scoring_body(self._endpoint.name, prompt.fragment, top)
        try:
            reply = await self._post("score", prompt, body, path=GENERATE, retries=0)
        except EndpointRejected as exc:
            if isinstance(exc, ContextTooLong):
                raise
            if vllm_protocol.NOT_JSON_COMPLIANT in exc.cause:
                return None
            raise ConfigurationError(
                f"suffix_scoring is set, but {exc}; start vLLM with --enable-scale-out --enable-prompt-tokens-details"
            ) from exc
        except EndpointUnavailable:
            return None  # The request for the whole prompt will show whether the server is gone.
        return vllm_protocol.computed_rows(reply, ids, len(before))

    async def ask(
        self, chain: Chain, question: str, choices: Sequence[str], *, opening: str = ""
    ) -> Mapping[str, float]:
        """
        Ask as `Model.ask` says; `Template.ask` is the layout of the question.

        Raise `ConfigurationError` if a choice is not one token of this model. A server that cannot report the
        probabilities of given tokens reports its 20 most probable ones: any other choice has the probability 0.

        The server of a hybrid model saves its state only where a prompt ends. The request then contains the chain as a
        second prompt, so that the next question reads only the steps since then, not the whole chain.
        """
        encoder, endpoint = self._endpoint.encoder, self._endpoint
        numbers = await encoder.choices(tuple(choices))
        before = await self._chain_ids(chain)
        prompt = before.plus(await encoder.question(question, opening))
        checkpoint = before if endpoint.checkpoints else EncodedPrompt()
        if endpoint.asks_by_id:
            probabilities = await self._ask_by_id(prompt, checkpoint, numbers)
            if probabilities is not None:
                return probabilities
        async with endpoint.apart() if endpoint.by_id is not False else nullcontext():
            reply = await self._ask(prompt, checkpoint, numbers, by_id=False)
        return dict.fromkeys(choices, 0.0) | vllm_protocol.choice_probabilities(self._call("ask"), reply, numbers)

    async def _ask_by_id(
        self, prompt: EncodedPrompt, checkpoint: EncodedPrompt, numbers: Mapping[str, int]
    ) -> dict[str, float] | None:
        """Ask for the log-probabilities of the choices' token ids; None if the server cannot, which is remembered."""
        endpoint = self._endpoint
        known = endpoint.by_id is True  # A server that fails at the first question by ids is not asked by ids again.
        try:
            with endpoint.asking_by_id():
                reply = await self._ask(
                    prompt, checkpoint if known else EncodedPrompt(), numbers, by_id=True, retries=None if known else 0
                )
        except EndpointUnavailable as exc:
            if known:
                raise
            if exc.status == 500:  # vLLM's answer while it speculates on tokens
                endpoint.by_id = False
            return None
        probabilities = vllm_protocol.choice_probabilities(self._call("ask"), reply, numbers)
        endpoint.by_id = len(probabilities) == len(numbers)
        return probabilities if endpoint.by_id else None

    async def _ask(
        self,
        prompt: EncodedPrompt,
        checkpoint: EncodedPrompt,
        numbers: Mapping[str, int],
        *,
        by_id: bool,
        retries: int | None = None,
    ) -> Reply:
        """
        Send the question *prompt*, and with it the *checkpoint*, a prompt that is sent for the state saved at its end.

        The usage tells the cached tokens of the last prompt only: the checkpoint, with which the question begins. So
        both have that many cached tokens. One token is written for each.
        """
        call, prompts = self._call("ask"), [prompt, checkpoint] if checkpoint else [prompt]
        self._room(call, prompt)
        body = vllm_protocol.choice_body(
            self._endpoint.name,
            [each.fragment for each in prompts] if checkpoint else prompt.fragment,
            list(numbers.values()),
            by_id=by_id,
        )
        with self._tally("ask", sum(map(len, prompts))) as tally:
            reply = await self._endpoint.connection.post(call, COMPLETIONS, body, retries=retries)
            _, cached, _ = vllm_protocol.usage(reply)
            tally.add(len(prompts), sum(map(len, prompts)), len(prompts) * cached)
        return reply

    def _generate(
        self,
        chain: Chain,
        prompt: EncodedPrompt,
        sampling: Sampling,
        limit: int,
        opening: str,
        stop: Sequence[str] = (),
        closing: Closing = OUTSIDE,
        observe: Callable[[Called], None] | None = None,
    ) -> AbstractAsyncContextManager[TokenStream]:
        endpoint, call = self._endpoint, self._call("write")
        limit = min(limit, self._room(call, prompt))
        seed = sampling.seed_for(self.role, "write", chain, opening, again=REQUEST.get().again)
        body = vllm_protocol.stream_body(
            *(endpoint.name, prompt.fragment, sampling),
            seed=seed,
            limit=limit,
            stop=(*closing.stops, *stop),
            stop_token=closing.id if closing.open else -1,
            format=self._format,
        )
        tally = self._tally("write", len(prompt), observe)
        return self._apart(generate(endpoint.connection, call, body, tally), sampling)

    @asynccontextmanager
    async def _apart(
        self, stream: AbstractAsyncContextManager[TokenStream], sampling: Sampling
    ) -> AsyncGenerator[TokenStream]:
        async with self._endpoint.apart() if sampling.logprobs else nullcontext(), stream as arrivals:
            yield arrivals

    async def _grow(
        self,
        prompts: Sequence[EncodedPrompt],
        stop: Sequence[str],
        closing: Closing,
        limit: int,
        growing: Sequence[StepBuilder],
        seed: int | None,
    ) -> tuple[Step | None, ...]:
        endpoint, call = self._endpoint, self._call("write")
        limit = min(limit, *(self._room(call, prompt) for prompt in prompts))
        fragments = [prompt.fragment for prompt in prompts]
        body = vllm_protocol.stream_body(
            *(endpoint.name, fragments, self._sampling),
            seed=seed,
            limit=limit,
            stop=(*closing.stops, *stop),
            stop_token=closing.id if closing.open else -1,
            format=self._format,
        )
        tally = self._tally("write", sum(map(len, prompts)))
        async with endpoint.apart() if self._sampling.logprobs else nullcontext():
            return await grow_each(endpoint.connection, call, body, tally, growing)

    async def _post(
        self,
        verb: Verb,
        prompt: EncodedPrompt,
        body: Body,
        *,
        path: str = COMPLETIONS,
        retries: int | None = None,
    ) -> Reply:
        call = self._call(verb)
        self._room(call, prompt)
        with self._tally(verb, len(prompt)) as tally:
            reply = await self._endpoint.connection.post(call, path, body, retries=retries)
            read, cached, written = vllm_protocol.usage(reply)
            tally.add(written, read, cached)
            return reply

    def _room(self, call: Call, prompt: EncodedPrompt) -> int:
        """Count the tokens that may follow *prompt*. Raise `ContextTooLong` if there is room for none."""
        room = self._endpoint.encoder.room
        if len(prompt) >= room:
            raise call.error(ContextTooLong, f"the prompt has {len(prompt)} tokens, and the model takes {room} in all")
        return room - len(prompt)

    def _tally(self, verb: Verb, prompt: int, observe: Callable[[Called], None] | None = None) -> RequestMeter:
        url = self._endpoint.settings.url
        return RequestMeter(self.role, verb, observe or self._observe, self._clock, prompt, url=url)

    def _call(self, verb: Verb) -> Call:
        return self._endpoint.connection.call(verb)


async def warm_up(settings: Endpoint) -> None:
    """Warm up the server that *settings* name. One that cannot be used is left to its users, who get the reason."""
    with suppress(StepspecError):
        async with VllmEndpoint(settings) as endpoint:
            await endpoint.warm_up()


def without_partial_character(chain: Chain) -> Chain:
    """
    Leave out the replacement characters at the end of *chain*, which stand for the first bytes of a character.

    vLLM takes one at the end of a prompt for half a character, and returns the whole prompt again as written text.
    """
    text = chain.text
    if not text.endswith(vllm_protocol.REPLACEMENT):
        return chain
    return replace(chain, steps=beginning(chain.steps, len(text.rstrip(vllm_protocol.REPLACEMENT))))


def _checked(top: int) -> int:
    """Return *top*. Raise `ConfigurationError` if no server reports that many tokens of a position."""
    if 0 <= top <= vllm_protocol.MAX_LOGPROBS:
        return top
    raise ConfigurationError(
        f"top={top}: a server reports 0 to {vllm_protocol.MAX_LOGPROBS} tokens of a position, unless its "
        "--max-logprobs allows more"
    )
