"""The `Model` of one run on a server of vLLM."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import (
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import replace
from functools import partial

from ...chain import Chain, Role, Step, Token, beginning
from ...endpoints.interfaces import Clock, Format, SingleModel
from ...endpoints.settings import Sampling
from ...errors import ConfigurationError, ContextTooLong, EndpointRejected, EndpointUnavailable
from ...events import Observer, Verb
from ...http.http_errors import Call, Reply
from ...http.paths import COMPLETIONS, GENERATE, Body
from ...http.prompts import EncodedPrompt
from ...http.request_meter import CallObserver, metered
from ...interfaces import DEFAULT_LIMIT, OPEN_REQUESTS, REQUEST, Until
from ...step_builder import Closing, StepBounds, StepBuilder, grow, step_ends
from . import bodies, replies
from .bodies import Prompts, StreamForm
from .server import VllmServer
from .sticky_stream import StickyStream
from .token_stream import TokenStream
from .tokenizer import ChainPromptCache

MAX_CHARACTER_TOKENS = 4
"""The most tokens of one character: one for each of its bytes."""


class VllmModel(SingleModel):
    """
    The `Model` of one run: the run's sampling, observer and clock, on an endpoint that all runs
    share.
    """

    def __init__(
        self,
        endpoint: VllmServer,
        sampling: Sampling,
        observe: Observer,
        clock: Clock,
        format: Format | None,
    ) -> None:
        self._endpoint = endpoint
        self._sampling = sampling
        self._format: Format | None = format
        self._observe = observe
        self._metered = partial(metered, endpoint.role, clock=clock, url=endpoint.settings.url)
        self._chain_prompts = ChainPromptCache(lambda: endpoint.tokenizer)
        self._sticky: StickyStream | None = None  # the stream that was opened last
        self._stack: AsyncExitStack | None = None  # the stack that closes the stream

    @property
    def role(self) -> Role:
        return self._endpoint.role

    async def write(
        self,
        chain: Chain,
        *,
        stop: Sequence[str] | None = None,
        limit: int = DEFAULT_LIMIT,
        until: Until = None,
        opening: str = "",
        top: int = 0,
    ) -> Step:
        """
        Write the next step as `Model.write` says. The *opening* counts towards *limit*.

        With a seed, each step has its own request. Whether a step comes from an open stream or from
        a new request depends on time. So the text would not depend on the seed alone.

        Raise `ContextTooLong` if the chain leaves no room for a token.
        """
        sampling = self._sampling.with_likeliest(top)
        stack = None if sampling.samples_by_seed else OPEN_REQUESTS.get()
        tokenizer = self._endpoint.tokenizer
        begun = await tokenizer.tokens_of_text(opening)
        bounds = StepBounds(step_ends(chain, stop), limit, top, await self._closing(chain))
        growing = StepBuilder(self.role, tokenizer.vocabulary, chain, bounds, begun)
        sticky = self._sticky
        # Two writes at once: the second one needs its own request.
        is_busy = sticky is not None and sticky.writing
        if stack is None or growing.room <= 0 or is_busy:
            return await self._complete(chain, growing, sampling, until)
        if sticky and (opening or not sticky.continues(chain, bounds)):
            await sticky.close()
            sticky = None
        self._sticky = sticky = sticky or await self._begin_sticky(chain, growing, sampling)
        if stack is not self._stack:
            self._stack = stack
            stack.push_async_callback(self._close_sticky)
        return await sticky.write(chain, growing, until)

    async def _begin_sticky(
        self,
        chain: Chain,
        growing: StepBuilder,
        sampling: Sampling,
    ) -> StickyStream:
        """
        Open a stream for the next steps of *chain*, of which *growing* is the first.

        Nobody reads the log-probabilities of a large model that writes alone. They take vLLM a
        tenth of the time of a token, so they are not requested. A server that speculates sends
        several tokens in one event. Then log-probabilities are requested, because they contain the
        spelling of each token. The spellings show which token ends a step.
        """
        prompt, _ = await self._prompt(chain, growing)
        opening = growing.so_far().text
        endpoint = self._endpoint
        logprobs = self.role != "large" or sampling.logprobs > 0 or endpoint.speculates
        form = StreamForm(limit=endpoint.tokenizer.context_length, logprobs=logprobs)
        open_request = partial(self._generate, chain, prompt, sampling, opening, form)
        bounds = replace(growing.bounds, top=sampling.logprobs)
        return StickyStream(open_request, self._observe, bounds)

    async def _close_sticky(self) -> None:
        """Close the stream that was opened last. Earlier streams are closed already."""
        if self._sticky:
            await self._sticky.close()

    async def _closing(self, chain: Chain) -> Closing:
        """
        Return the text that ends the thinking after *chain*.

        If the thinking is over, return the text that ends the reply. Chains do not contain it.
        """
        tokenizer = self._endpoint.tokenizer
        markers, is_thinking = await tokenizer.thinking_block(chain)
        ending = "" if chain.tools else tokenizer.template.ending
        # The model can still open a block. If no text ends the reply, stop at the closing marker of
        # this block.
        may_open = not chain.closed and not ending
        if is_thinking or may_open:
            mark = markers.closing
            return Closing(mark, await tokenizer.one_token(mark), open=is_thinking)
        return Closing(ending, await tokenizer.one_token(ending), open=ending != "", in_chains="")

    async def _prompt(self, chain: Chain, growing: StepBuilder) -> tuple[EncodedPrompt, int]:
        """
        Encode *chain* and what *growing* has so far.

        A partial character at the end of the text is not sent. *growing* drops this character if
        the model writes it again (`StepBuilder.hold`). Also return the length of what is not sent.
        """
        begun = chain.extend(growing.so_far())
        shown = without_partial_character(begun)
        held = begun.text[len(shown.text) :]
        growing.hold(held)
        return await self._chain_prompts.prompt(shown), len(held)

    async def _complete(
        self,
        chain: Chain,
        growing: StepBuilder,
        sampling: Sampling,
        until: Until = None,
        *,
        resumed: bool = False,
    ) -> Step:
        """
        Write the rest of the step that *growing* has begun.

        The server may stop within code, a LaTeX environment or a table, at a delimiter that does
        not end the step. Then the step is *resumed* with a second request, without delimiters.
        """
        if growing.room <= 0:
            return growing.end("length")
        opening = growing.so_far().text
        closing = growing.bounds.closing
        stops = () if resumed else server_stops(chain, growing.bounds, opening)
        prompt, held = await self._prompt(chain, growing)
        form = StreamForm(
            # The model writes the held characters again, before the tokens that count.
            limit=growing.room + held * MAX_CHARACTER_TOKENS + closing.room,
            stop=(*closing.stops, *stops),
            stop_token=closing.id if closing.open else -1,
        )
        async with self._generate(chain, prompt, sampling, opening, form) as arrivals:
            step = await grow(growing, arrivals.take, until)
        if step:
            return step
        if resumed:
            return growing.end("delimiter")
        growing.resume()
        return await self._complete(chain, growing, sampling, until, resumed=True)

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        """
        Read *spans* as `Model.score` says.

        The server reads the whole chain again, prefix cache or not, unless the endpoint allows
        `suffix_scoring`. Raise `ConfigurationError` if the server then refuses.
        """
        tokenizer = self._endpoint.tokenizer
        call = self._call("score")
        before = await self._chain_prompts.prompt(chain)
        markers, is_thinking = await tokenizer.thinking_block(chain)
        mark = markers.closing if is_thinking else ""
        encoded = [(span, await tokenizer.encode(span, closing=mark)) for span in spans]
        read = [number for _, ids in encoded for number in ids]
        if self._endpoint.settings.suffix_scoring:
            suffix = await self._suffix(before, read, top)
            if suffix is not None:
                pieces = await tokenizer.pieces(set(read))
                return replies.scored_spans(call, suffix, encoded, top, pieces)
        prompt = before.plus(read)
        body = bodies.scoring_body(self._endpoint.name, prompt, top)
        shorten = partial(replies.with_last_rows, count=len(read))
        reply = await self._post("score", [prompt], body, shorten=shorten)
        rows = replies.prompt_rows(call, reply, len(read))
        return replies.scored_spans(call, rows, encoded, top)

    async def _suffix(
        self,
        before: EncodedPrompt,
        ids: Sequence[int],
        top: int,
    ) -> Sequence[replies.Row] | None:
        """
        Score *ids* after *before*.

        None: perhaps the server did not compute the scores of all *ids*.
        """
        prompt = before.plus(ids)
        body = bodies.suffix_scoring_body(self._endpoint.name, prompt, top)
        # Keep the row before *ids*, too. If the server computed this row, it computed all rows
        # after it (`computed_rows`).
        shorten = partial(replies.with_last_rows, count=len(ids) + 1)
        try:
            reply = await self._post(
                "score",
                [prompt],
                body,
                path=GENERATE,
                retries=0,
                shorten=shorten,
            )
        except ContextTooLong:
            raise
        except EndpointRejected as exc:
            if replies.NOT_JSON_COMPLIANT in exc.cause:
                return None
            raise ConfigurationError(
                f"suffix_scoring is set, but {exc}; start vLLM with --enable-scale-out"
                " --enable-prompt-tokens-details"
            ) from exc
        except EndpointUnavailable:
            return None  # The request for the whole prompt will show whether the server is gone.
        return replies.computed_rows(reply, ids, len(before))

    async def ask(
        self,
        chain: Chain,
        question: str,
        choices: Sequence[str],
        *,
        opening: str = "",
    ) -> Mapping[str, float]:
        """
        Ask as `Model.ask` says. `ModelTokenizer.encode_question` is the layout of the question.

        Raise `ConfigurationError` if a choice is not one token of this model. A server that cannot
        report the probabilities of given tokens reports its 20 most probable ones: any other choice
        has the probability 0.

        The server of a hybrid model saves its state only where a prompt ends. The request to such a
        server has the chain itself as a second prompt. The server then saves the state after the
        chain, and reads only the new steps for the next question.
        """
        endpoint = self._endpoint
        tokenizer = endpoint.tokenizer
        numbers = await tokenizer.choice_ids(choices)
        before = await self._chain_prompts.prompt(chain)
        prompts = [before.plus(await tokenizer.encode_question(question, opening))]
        if endpoint.checkpoints:
            prompts.append(before)
        if endpoint.may_ask_by_id:
            probabilities = await self._ask_by_id(prompts, numbers)
            if probabilities is not None:
                return probabilities
        # In one batch with a question by ids, this question would lose its likeliest tokens.
        async with endpoint.without_questions():
            found = await self._ask(prompts, numbers, by_id=False)
        return dict.fromkeys(choices, 0.0) | found

    async def _ask_by_id(
        self,
        prompts: Sequence[EncodedPrompt],
        numbers: Mapping[str, int],
    ) -> dict[str, float] | None:
        """
        Ask for the log-probabilities of the choices' token ids. None: the server cannot do that.

        The first such question to a server is a trial, with one prompt and without retries. If the
        server cannot answer it, the server gets no further question of this kind.
        """
        endpoint = self._endpoint
        known = endpoint.answers_by_id is True
        asked = prompts if known else prompts[:1]
        retries = None if known else 0
        try:
            with endpoint.asking_by_id():
                found = await self._ask(asked, numbers, by_id=True, retries=retries)
        except EndpointRejected as exc:
            if "logprob_token_ids" not in exc.cause:
                raise
            endpoint.answers_by_id = False
            return None
        except EndpointUnavailable as exc:
            if known:
                raise
            if exc.status == 500:  # vLLM's answer while it speculates on tokens
                endpoint.answers_by_id = False
            return None
        endpoint.answers_by_id = len(found) == len(numbers)
        return found if endpoint.answers_by_id else None

    async def _ask(
        self,
        prompts: Sequence[EncodedPrompt],
        numbers: Mapping[str, int],
        *,
        by_id: bool,
        retries: int | None = None,
    ) -> dict[str, float]:
        """
        Ask for the probabilities of the choices with the token ids *numbers*.

        *prompts* has the question. For a hybrid model it also has the chain, whose state the server
        then saves.
        """
        sent: Prompts = prompts[0] if len(prompts) == 1 else list(prompts)
        body = bodies.choice_body(self._endpoint.name, sent, [*numbers.values()], by_id=by_id)
        reply = await self._post("ask", prompts, body, retries=retries)
        return replies.choice_probabilities(self._call("ask"), reply, numbers)

    @asynccontextmanager
    async def _generate(
        self,
        chain: Chain,
        prompt: EncodedPrompt,
        sampling: Sampling,
        opening: str,
        form: StreamForm,
        observe: CallObserver | None = None,
    ) -> AsyncGenerator[TokenStream]:
        """
        Open a stream of tokens after *prompt*, which is *chain* and *opening*. Leaving the block
        before its end aborts the request.

        *observe* receives the end of the request. None: the observer of the run does.
        """
        endpoint = self._endpoint
        form = replace(form, limit=min(form.limit, self._room("write", prompt)))
        body = bodies.stream_body(endpoint.name, prompt, sampling, form, self._format)
        if sampling.samples_by_seed:
            again = REQUEST.get().new_seed
            body["seed"] = sampling.seed_for(
                self.role,
                "write",
                chain,
                opening,
                again=again,
            )
        call = self._call("write")
        # If a question by token ids is in the same batch, vLLM leaves out the likeliest tokens of
        # this stream.
        async with endpoint.without_questions() if sampling.logprobs else nullcontext():
            with self._metered(
                "write",
                observe=observe or self._observe,
                prompt=len(prompt),
            ) as meter:
                async with endpoint.connection.stream(call, body) as events:
                    arrivals = TokenStream(call, events, meter, body, endpoint.spell)
                    yield arrivals
                    await arrivals.finish()

    async def _post(
        self,
        verb: Verb,
        prompts: Sequence[EncodedPrompt],
        body: Body,
        *,
        path: str = COMPLETIONS,
        retries: int | None = None,
        shorten: Callable[[bytes], bytes] = bytes,
    ) -> Reply:
        """
        Send *body* with *prompts*, for each of which the server writes one token.

        The first prompt is the longest. `Connection.post` explains *retries* and *shorten*.
        """
        self._room(verb, prompts[0])  # raises an error if the prompt is too long
        prompt = sum(map(len, prompts))
        with self._metered(verb, observe=self._observe, prompt=prompt) as meter:
            call = self._call(verb)
            connection = self._endpoint.connection
            reply = await connection.post(
                call,
                path,
                body,
                retries=retries,
                shorten=shorten,
            )
            usage = replies.usage(reply)
            # vLLM reports only the cached tokens of the last prompt. All prompts begin with the
            # chain, so this number is counted for each prompt. The server writes one token for each
            # prompt. Some servers report more written tokens, so the number is limited.
            meter.add(min(usage.written, len(prompts)), len(prompts) * usage.cached)
            return reply

    def _room(self, verb: Verb, prompt: EncodedPrompt) -> int:
        """
        Return the number of tokens that may follow *prompt*. Raise `ContextTooLong` if none may.
        """
        room = self._endpoint.tokenizer.context_length
        if len(prompt) < room:
            return room - len(prompt)
        message = f"the prompt has {len(prompt)} tokens, and the model takes {room} in all"
        raise self._call(verb).error(ContextTooLong, message)

    def _call(self, verb: Verb) -> Call:
        return self._endpoint.connection.call(verb)


def server_stops(chain: Chain, bounds: StepBounds, opening: str) -> tuple[str, ...]:
    """
    Return the stop strings for the server, after *chain* and *opening*.

    If `StepEnds.blocks` is true, steps do not end within blocks: code, LaTeX environments and
    tables. Then there are no stop strings within a block. There are also none before the first word
    of an answer, because the answer may begin with a block. An answer often begins with a blank
    line, which ends no step. So before the first word, no stop string is white space.
    """
    ends = bounds.ends
    _, answer = chain.parts()
    is_empty_answer = chain.closed and not (answer.text + opening).strip()
    if ends.blocks and (
        is_empty_answer or ends.in_block(chain.text + opening, chain.totals.blocks)
    ):
        return ()
    if is_empty_answer:
        return tuple([text for text in ends.texts if text.strip()])
    return ends.texts


def without_partial_character(chain: Chain) -> Chain:
    """
    Return *chain* without the replacement characters at its end.

    They stand for the first bytes of a character. If a prompt ends with a replacement character,
    vLLM waits for the rest of the character, and returns the whole prompt again as written text.
    """
    text = chain.text
    if not text.endswith(replies.REPLACEMENT):
        return chain
    return replace(chain, steps=beginning(chain.steps, len(text.rstrip(replies.REPLACEMENT))))
