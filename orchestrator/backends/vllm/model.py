"""The `Model` of one run on a server of vLLM."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

from ...chain import Chain, Role, Step, Token, beginning
from ...concurrency import at_once
from ...endpoints.interfaces import Format
from ...endpoints.settings import Sampling
from ...errors import ConfigurationError, ContextTooLong, EndpointRejected, EndpointUnavailable
from ...events import Called, Observer, Verb
from ...interfaces import DEFAULT_LIMIT, KEPT_OPEN, REQUEST
from ...step_ends import StepEnds
from . import bodies, http_errors, replies
from .bodies import COMPLETIONS, GENERATE, Body, EncodedPrompt, Prompts
from .http_errors import Call, Reply
from .server import VllmServer
from .sticky_stream import StickyStream
from .token_stream import (
    OUTSIDE,
    Closing,
    RequestMeter,
    StepBuilder,
    TokenStream,
    generate,
    grow,
    step_ends,
)
from .tokenizer import ChainIds

CHARACTER = 4  # tokens, of one byte each, that make up any character


class VllmModel:
    """
    The `Model` of one run: the run's sampling, observer and clock, on an endpoint that all runs
    share.
    """

    def __init__(
        self,
        endpoint: VllmServer,
        sampling: Sampling,
        observe: Observer,
        clock: Callable[[], float],
        format: Format | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._sampling = sampling
        self._format: Format | None = format
        self._observe = observe
        self._clock = clock
        self._chain_ids = ChainIds(lambda: endpoint.encoder)
        self._sticky: WeakKeyDictionary[AsyncExitStack, StickyStream] = WeakKeyDictionary()

    @property
    def role(self) -> Role:
        return self._endpoint.role

    def budgeted(self, left: Callable[[Chain], int]) -> VllmModel:
        return self

    def leave(self) -> None:
        """Do nothing: the model holds no place."""

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

        No stream is kept open for a model that samples by a seed: every step needs a request with a
        seed of its own, and how far a stream runs ahead depends on time. The large model's has no
        log-probabilities: nobody reads them, and they take vLLM a tenth of the time of a token.
        Only of a server that speculates on tokens, and so sends several in one event, they are
        requested: their spellings tell where a step ends.

        Raise `ContextTooLong` if the chain leaves no room for a token.
        """
        sampling = self._sampling.telling(top)
        stack = None if sampling.repeats else KEPT_OPEN.get()
        ends = step_ends(chain, stop)
        begun = await self._endpoint.encoder.spelt(opening)
        closing = await self._closing(chain)
        vocabulary = self._endpoint.encoder.vocabulary
        growing = StepBuilder(
            self.role,
            vocabulary,
            chain,
            ends=ends,
            limit=limit,
            opening=begun,
            top=top,
            closing=closing,
        )
        sticky = self._sticky.get(stack) if stack else None
        if sticky and not opening and sticky.continues(chain, ends, limit, top, closing):
            return await sticky.write(chain, growing, until, limit)
        if sticky and not sticky.writing:
            await sticky.close()
        if len(begun) >= limit:
            return growing.end("length")
        if stack is None or (sticky and sticky.writing):
            return await self._complete(chain, growing, sampling, ends, until, closing)
        prompt, held = await self._prompt(chain, begun)
        growing.hold(held)

        def open_request(
            observe: Callable[[Called], None],
        ) -> AbstractAsyncContextManager[TokenStream]:
            room = self._endpoint.encoder.room
            return self._generate(chain, prompt, sampling, room, opening, observe=observe)

        sticky = StickyStream(open_request, self._observe, ends, limit, sampling.logprobs, closing)
        if stack not in self._sticky:
            stack.push_async_callback(self._close_sticky, stack)
        self._sticky[stack] = sticky
        return await sticky.write(chain, growing, until, limit)

    async def _close_sticky(self, stack: AsyncExitStack) -> None:
        """Close the last stream that was opened on *stack*; those before it are closed."""
        await self._sticky.pop(stack).close()

    async def branch(
        self,
        chain: Chain,
        begun: Sequence[Step],
        *,
        stop: Sequence[str] | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> tuple[Step, ...]:
        """
        Write the next step from several beginnings as `Model.branch` says, each with a request of
        its own.

        Raise `ContextTooLong` if one of the beginnings leaves no room for a token.
        """
        encoder = self._endpoint.encoder
        ends = step_ends(chain, stop)
        closing = await self._closing(chain)
        begin = partial(
            StepBuilder,
            self.role,
            encoder.vocabulary,
            chain,
            ends=ends,
            limit=limit,
            closing=closing,
        )
        growing = [begin(opening=await encoder.begun(step)) for step in begun]
        steps = (
            self._complete(chain, each, self._sampling, ends, None, closing) for each in growing
        )
        return tuple(await at_once(steps))

    async def _closing(self, chain: Chain) -> Closing:
        """
        What ends the thinking in what this model writes after *chain*; once it is over, what ends
        the reply.
        """
        encoder = self._endpoint.encoder
        thinking = await encoder.thinking(chain)
        ending = "" if chain.tools else encoder.template.ending
        if thinking or not (chain.closed or ending):
            mark = (await encoder.markers(chain)).closing
            return Closing(mark, await encoder.one_token(mark), open=thinking)
        return Closing(ending, encoder.ending_id, spelt="") if ending else OUTSIDE

    async def _prompt(self, chain: Chain, opening: Sequence[Token]) -> tuple[EncodedPrompt, str]:
        """
        Encode *chain* and the tokens of a step's *opening*; also return the end of the chain that
        is left out.
        """
        shown = chain if opening else without_partial_character(chain)
        prompt = await self._chain_ids(shown)
        return prompt.plus([token.id for token in opening]), chain.text[len(shown.text) :]

    def _stops(self, ends: StepEnds, chain: Chain, opening: str = "") -> tuple[str, ...]:
        """
        The stop strings for the server.

        No delimiters in a block, where most end no step; none, and no white space, where an answer
        begins, often with a blank line.
        """
        begins = chain.closed and not (chain.parts()[1].text + opening).strip()
        if ends.blocks and (begins or ends.in_block(chain.text + opening, chain.totals.blocks)):
            return ()
        return tuple([text for text in ends.texts if text.strip()]) if begins else ends.texts

    async def _complete(
        self,
        chain: Chain,
        growing: StepBuilder,
        sampling: Sampling,
        ends: StepEnds,
        until: Callable[[Step], bool] | None,
        closing: Closing,
    ) -> Step:
        """
        Write the rest of the step that *growing* has begun.

        Where the server stops in a block, at a delimiter that is no end of the step, a second
        request goes on.
        """
        if growing.room <= 0:
            return growing.end("length")
        begun = growing.so_far()
        stops = self._stops(ends, chain, begun.text)
        (prompt, held) = await self._prompt(chain, begun.tokens)
        for again in (False, True):
            growing.hold(held)
            opening = growing.so_far().text
            most = growing.room + len(held) * CHARACTER
            async with self._generate(
                chain, prompt, sampling, most, opening, stops, closing
            ) as arrivals:
                step = await grow(growing, arrivals.take, until)
            if step or again:
                break
            growing.resume()
            stops = ()
            (prompt, held) = await self._prompt(chain.extend(growing.so_far()), ())
        return step or growing.end("delimiter")

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        """
        Read *spans* as `Model.score` says.

        The server reads the whole chain again, prefix cache or not, unless the endpoint allows
        `suffix_scoring`. Raise `ConfigurationError` if it refuses to score a suffix.
        """
        encoder = self._endpoint.encoder
        before = await self._chain_ids(chain)
        closing = (await encoder.markers(chain)).closing if await encoder.thinking(chain) else ""
        encoded = [(span, await encoder.encode(span, closing=closing)) for span in spans]
        read = [number for _, ids in encoded for number in ids]
        rows = (
            await self._suffix(before, read, top)
            if self._endpoint.settings.suffix_scoring
            else None
        )
        pieces = None if rows is None else await encoder.pieces(set(read))
        if rows is None:
            prompt = before.plus(read)
            body = bodies.scoring_body(self._endpoint.name, prompt.fragment, top)
            reply = await self._post("score", [prompt], body, rows=len(read))
            rows = replies.prompt_rows(self._call("score"), reply, len(read))
        return replies.scored_spans(self._call("score"), rows, encoded, top, pieces)

    async def _suffix(
        self, before: EncodedPrompt, ids: Sequence[int], top: int
    ) -> Sequence[replies.Row] | None:
        """
        Score *ids* after *before*; None if the server did not compute all of them, or did not say
        so.
        """
        prompt = before.plus(ids)
        body = bodies.suffix_scoring_body(self._endpoint.name, prompt.fragment, top)
        try:
            # The row before these says that the first of them is not that of the first token.
            rows = len(ids) + 1
            reply = await self._post("score", [prompt], body, path=GENERATE, retries=0, rows=rows)
        except EndpointRejected as exc:
            if isinstance(exc, ContextTooLong):
                raise
            if http_errors.NOT_JSON_COMPLIANT in exc.cause:
                return None
            raise ConfigurationError(
                f"suffix_scoring is set, but {exc}; start vLLM with --enable-scale-out"
                " --enable-prompt-tokens-details"
            ) from exc
        except EndpointUnavailable:
            return None  # The request for the whole prompt will show whether the server is gone.
        return replies.computed_rows(reply, ids, len(before))

    async def ask(
        self, chain: Chain, question: str, choices: Sequence[str], *, opening: str = ""
    ) -> Mapping[str, float]:
        """
        Ask as `Model.ask` says; `Template.ask` is the layout of the question.

        Raise `ConfigurationError` if a choice is not one token of this model. A server that cannot
        report the probabilities of given tokens reports its 20 most probable ones: any other choice
        has the probability 0.

        The server of a hybrid model saves its state only where a prompt ends. The request then
        contains the chain as a second prompt, so that the next question reads only the steps since
        then, not the whole chain.
        """
        encoder = self._endpoint.encoder
        endpoint = self._endpoint
        numbers = await encoder.choices(tuple(choices))
        before = await self._chain_ids(chain)
        prompts = [
            before.plus(await encoder.question(question, opening)),
            *([before] if endpoint.checkpoints else []),
        ]
        if endpoint.asks_by_id:
            probabilities = await self._ask_by_id(prompts, numbers)
            if probabilities is not None:
                return probabilities
        async with endpoint.apart() if endpoint.by_id is not False else nullcontext():
            reply = await self._ask(prompts, numbers, by_id=False)
        return dict.fromkeys(choices, 0.0) | replies.choice_probabilities(
            self._call("ask"), reply, numbers
        )

    async def _ask_by_id(
        self, prompts: Sequence[EncodedPrompt], numbers: Mapping[str, int]
    ) -> dict[str, float] | None:
        """
        Ask for the log-probabilities of the choices' token ids; None if the server cannot, which is
        remembered.
        """
        endpoint = self._endpoint
        # A server that fails at the first question by ids is not asked by ids again.
        known = endpoint.by_id is True
        try:
            with endpoint.asking_by_id():
                reply = await self._ask(
                    prompts if known else prompts[:1],
                    numbers,
                    by_id=True,
                    retries=None if known else 0,
                )
        except EndpointRejected as exc:
            if "logprob_token_ids" not in exc.cause:
                raise
            endpoint.by_id = False
            return None
        except EndpointUnavailable as exc:
            if known:
                raise
            if exc.status == 500:  # vLLM's answer while it speculates on tokens
                endpoint.by_id = False
            return None
        probabilities = replies.choice_probabilities(self._call("ask"), reply, numbers)
        endpoint.by_id = len(probabilities) == len(numbers)
        return probabilities if endpoint.by_id else None

    async def _ask(
        self,
        prompts: Sequence[EncodedPrompt],
        numbers: Mapping[str, int],
        *,
        by_id: bool,
        retries: int | None = None,
    ) -> Reply:
        """
        Send a question, which may have the chain as a second prompt: for the state that is saved at
        its end.
        """
        sent: Prompts = (
            prompts[0].fragment if len(prompts) == 1 else [prompt.fragment for prompt in prompts]
        )
        body = bodies.choice_body(self._endpoint.name, sent, list(numbers.values()), by_id=by_id)
        return await self._post("ask", prompts, body, retries=retries)

    @asynccontextmanager
    async def _generate(
        self,
        chain: Chain,
        prompt: EncodedPrompt,
        sampling: Sampling,
        limit: int,
        opening: str,
        stop: Sequence[str] = (),
        closing: Closing = OUTSIDE,
        observe: Callable[[Called], None] | None = None,
    ) -> AsyncGenerator[TokenStream]:
        """
        Open a stream of tokens after *prompt*, which is *chain* and *opening*; a sticky one has an
        *observe*.
        """
        limit = min(limit + closing.room, self._room("write", prompt))
        seed = sampling.seed_for(self.role, "write", chain, opening, again=REQUEST.get().again)
        spelt = (
            not observe
            or self.role != "large"
            or sampling.logprobs > 0
            or self._endpoint.speculates
        )
        body = bodies.stream_body(
            *(self._endpoint.name, prompt.fragment, sampling, self._format),
            limit=limit,
            stop=(*closing.stops, *stop),
            stop_token=closing.id if closing.open else -1,
            spelt=spelt,
        )
        if sampling.temperature and seed is not None:
            body["seed"] = seed
        endpoint = self._endpoint
        tally = self._tally("write", len(prompt), observe)
        opened = generate(
            endpoint.connection,
            self._call("write"),
            body,
            tally,
            endpoint.spellings,
            endpoint.spell,
        )
        async with self._apart(sampling), opened as arrivals:
            yield arrivals

    def _apart(self, sampling: Sampling) -> AbstractAsyncContextManager[None]:
        """Keep a request that reads the likeliest tokens apart from questions by token ids."""
        return self._endpoint.apart() if sampling.logprobs else nullcontext()

    async def _post(
        self,
        verb: Verb,
        prompts: Sequence[EncodedPrompt],
        body: Body,
        *,
        path: str = COMPLETIONS,
        retries: int | None = None,
        rows: int | None = None,
    ) -> Reply:
        """
        Send *body* with *prompts*, of which the first is the longest; the server writes one token
        for each. *rows* is that of `Connection.post`.

        The usage tells the cached tokens of the last prompt only, with which the others begin: all
        have that many.
        """
        self._room(verb, prompts[0])
        count = sum(map(len, prompts))
        with self._tally(verb, count) as tally:
            reply = await self._endpoint.connection.post(
                self._call(verb), path, body, retries=retries, rows=rows
            )
            _, cached, written = replies.usage(reply)
            tally.add(min(written, len(prompts)), len(prompts) * cached)
            return reply

    def _room(self, verb: Verb, prompt: EncodedPrompt) -> int:
        """
        Count the tokens that may follow *prompt*. Raise `ContextTooLong` if there is room for none.
        """
        room = self._endpoint.encoder.room
        if len(prompt) < room:
            return room - len(prompt)
        message = f"the prompt has {len(prompt)} tokens, and the model takes {room} in all"
        raise self._call(verb).error(ContextTooLong, message)

    def _tally(
        self, verb: Verb, prompt: int, observe: Callable[[Called], None] | None = None
    ) -> RequestMeter:
        url = self._endpoint.settings.url
        return RequestMeter(self.role, verb, observe or self._observe, self._clock, prompt, url=url)

    def _call(self, verb: Verb) -> Call:
        return self._endpoint.connection.call(verb)


def without_partial_character(chain: Chain) -> Chain:
    """
    Leave out the replacement characters at the end of *chain*, which stand for the first bytes of a
    character.

    vLLM takes one at the end of a prompt for half a character, and returns the whole prompt again
    as written text.
    """
    text = chain.text
    if not text.endswith(replies.REPLACEMENT):
        return chain
    return replace(chain, steps=beginning(chain.steps, len(text.rstrip(replies.REPLACEMENT))))
