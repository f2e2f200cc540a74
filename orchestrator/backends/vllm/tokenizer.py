"""
Encode chains to token ids with the tokenizer and the chat template of one model.

Each new text takes one request. Its ids are then cached.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import groupby, takewhile
from typing import Self, TypeAlias

from ...chain import THINK_END, Chain, Message, Step, Token, Tokens
from ...endpoints.chat_template import (
    CONVERSATIONS,
    PLAIN_QUESTION,
    Fields,
    Template,
    template_from_renderings,
)
from ...endpoints.interfaces import Messages, Tools
from ...endpoints.settings import Endpoint
from ...errors import ConfigurationError, ContextTooLong, EndpointRejected, MissingCapability
from ...http.prompts import EncodedPrompt, Ids
from ...markers import ThinkingMarkers, mark_after, opened_by, opens_block
from ...step_builder import text_of
from ...tokens import shared_length
from .replies import divide_text
from .text_tokenizer import MAX_CACHED_TEXTS, AsyncCache, TextTokenizer
from .tokenizer_source import TokenizerSource
from .tool_protocol import message_fields, tool_fields

log = logging.getLogger(__name__)

MAX_CONVERSATIONS = 256
"""Conversations whose prompts are cached."""
MAX_CHOICES = 64
"""Sets of choices whose token ids are cached."""
PROMPT_END_TOKENS = 96
"""Tokens at the end of a prompt that are decoded to see whether a thinking block is open."""

Conversation: TypeAlias = tuple[Messages, Tools, bool]
"""What a chain begins with: messages, tools, and whether the model may think."""

FirstWords: TypeAlias = Callable[[Sequence[int]], Awaitable[str]]
"""Has the model continue a prompt, and returns the first words of its answer."""

VOCABULARY_PROBE = (
    "The quick brown fox; don't stop: 0123456789 3.14159 1,000,000 ... \n\n\n    def"
    " f(x):\n\treturn x**2 != -1  # ok?"
    "\\frac{a}{b} \\boxed{42} $\\sqrt{2}$ Wait, Hmm. naïve Größe Ελληνικά русский 你好世界 日本語"
    " 한국어 🙂👍🏽 "
    "<think></think><s></s><|endoftext|><|im_start|><|im_end|><|eot_id|>"
    "<|begin_of_text|><|end_of_text|><|start_header_id|><|end_header_id|>"
    "<\uff5cUser\uff5c><\uff5cAssistant\uff5c><\uff5cend\u2581of\u2581sentence\uff5c>"
)
"""A text that different tokenizers are unlikely to encode to the same ids."""


@dataclass(frozen=True, slots=True)
class ConversationPrompt:
    """An encoded conversation."""

    prompt: EncodedPrompt
    """The ids up to the first step."""
    opened: bool
    """Whether a thinking block is open after them."""


class ModelTokenizer(TextTokenizer):
    """The tokenizer and the chat template of one model, for chains and their steps."""

    vocabulary: str
    """A hash of the vocabulary. Two models with the same hash encode texts to the same ids."""
    template: Template
    """The text around the turns."""
    ending_id: int
    """The token that ends a reply. -1: no single token does."""
    marks: Mapping[int, str]
    """The texts of two tokens by id: the end of a reply, and the end of the thinking."""
    room: int
    """The longest sequence that the model takes, in tokens."""
    faithful: bool
    """
    Whether to encode the text of a rendered conversation gives the same ids as to render it.
    """
    rendered_last: list[int]
    """The ids of the last of `CONVERSATIONS`."""

    def __init__(self, source: TokenizerSource, settings: Endpoint) -> None:
        super().__init__(source)
        self._settings = settings
        self.tokens_of_text = AsyncCache(self._tokens_of_text, MAX_CACHED_TEXTS)
        """Encodes a text of a chain to tokens."""
        self.choice_ids = AsyncCache(self._choice_ids, MAX_CHOICES)
        """Returns the token id of each choice."""
        self._prompts = AsyncCache(self._encode_conversation, MAX_CONVERSATIONS)
        self._prompts_by_identity: dict[object, tuple[Conversation, ConversationPrompt]] = {}
        self._turn_ids: set[int] = set()  # the special tokens between turns
        self._needs_leading_system = False  # whether the template refuses later system messages

    async def learn(self, first_words: FirstWords) -> None:
        """
        Learn the vocabulary and the chat template.

        If the template shows no thinking block, *first_words* tells whether the model opens one.
        Raise `MissingCapability` if the template cannot be learnt.
        """
        probe_ids = await self.source.encode(VOCABULARY_PROBE)
        self.room = self.source.room
        self.vocabulary = blake2b(repr(probe_ids).encode(), digest_size=8).hexdigest()
        rendered = [
            await self._render_or_replace(messages, generate=generate)
            for messages, generate in CONVERSATIONS
        ]
        self.rendered_last = rendered[-1]
        texts = [await self.source.decode(ids) for ids in rendered]
        self.faithful = await self._is_faithful(texts[-1])
        if not self.faithful:
            await self.learn_marks({number for ids in rendered for number in ids})
            self.faithful = await self._is_faithful(texts[-1])
        try:
            template = template_from_renderings(texts, self._settings.marks)
            if template.source == "unknown":
                template = await self._detect_thinking(template, first_words)
            self.template = template.overridden(self._settings.thinks)
        except MissingCapability as exc:
            raise self.source.call.missing(exc) from exc
        await self._learn_mark_ids()

    async def _learn_mark_ids(self) -> None:
        """Learn the ids of the special tokens that the template has."""
        template = self.template
        markers = template.markers
        self.ending_id = await self.one_token(template.ending)
        closing_id = await self.one_token(markers.closing)
        self.marks = {closing_id: markers.closing, self.ending_id: template.ending}
        between_turns = await self.encode_special(template.turn + template.answer)
        block = await self.encode_special(markers.opening + markers.closing)
        self._turn_ids = set(await self._mark_ids(between_turns)).difference(block)

    @property
    def learnt(self) -> tuple[object, ...]:
        """What `learn` found out. It is compared with the same of another connection."""
        return self.rendered_last, self.vocabulary, self.template

    async def _is_faithful(self, text: str) -> bool:
        """Return whether *text*, the last rendered conversation, has the ids of the rendering."""
        return list(await self._encode(text)) == self.rendered_last

    async def _render_or_replace(self, messages: Fields, *, generate: bool) -> list[int]:
        """
        Render *messages*, which are one of `CONVERSATIONS`.

        Mistral's and DeepSeek's own templates refuse some replies at the end of a conversation:
        then the same with one more question is rendered. Mistral's older templates refuse all
        reasoning: then the last of `CONVERSATIONS` is rendered.
        """
        last = CONVERSATIONS[-1][0]
        if generate:
            return await self.source.render(messages)
        with suppress(EndpointRejected):
            return await self.source.render(messages, generate=False)
        with suppress(EndpointRejected):
            return await self.source.render((*messages, last[-1]))
        return await self.source.render(last)

    async def one_token(self, mark: str) -> int:
        """Return the id of *mark*. -1: it is empty or several tokens."""
        ids = await self.encode_special(mark) if mark else ()
        return ids[0] if len(ids) == 1 else -1

    async def has_changed(self) -> bool:
        """Return whether the vocabulary, the chat template or the context changed since `learn`."""
        messages, _ = CONVERSATIONS[-1]
        rendered = await self.source.render(messages)
        return rendered != self.rendered_last or self.source.room != self.room

    async def encode(self, text: str, *, closing: str = "") -> Ids:
        """
        Encode *text* of a chain.

        If *text* ends with `THINK_END`, the model's own marker *closing* is encoded in its place.
        Without *closing* it stays plain text.
        """
        if closing and text.endswith(THINK_END):
            return await self.encode_ordinary(text.removesuffix(THINK_END), after=closing)
        return await self.encode_ordinary(text)

    async def encode_question(self, question: str, opening: str) -> Ids:
        """
        Encode what follows the steps in a judge's prompt.

        This is *question*, and then *opening*, the first words of the answer. The module
        `chat_template` describes the layout.
        """
        answer = self.template.headed(self.template.answer)
        before = self.template.turn
        return await self.encode_ordinary(
            question,
            before=before,
            after=answer + opening,
        )

    async def encode_prefix(
        self,
        messages: Messages,
        tools: Tools = (),
        *,
        thinks: bool = True,
    ) -> EncodedPrompt:
        """
        Encode what stands before the first step: *messages*, and *tools* as the template shows
        them.

        Without *thinks*, a thinking block that would be open is closed.
        """
        return (await self._conversation_prompt((messages, tools, thinks))).prompt

    async def _conversation_prompt(self, conversation: Conversation) -> ConversationPrompt:
        """
        Encode *conversation*. Look in two caches: by object identity, then by content.

        To hash thousands of messages takes longer than the rest of a step.
        """
        messages, tools, thinks = conversation
        identity = (id(messages), id(tools), thinks)
        if identity not in self._prompts_by_identity:
            prompt = await self._prompts(conversation)
            # The reference to the conversation keeps Python from giving its `id()` to another.
            self._prompts_by_identity[identity] = (conversation, prompt)
        if len(self._prompts_by_identity) > MAX_CONVERSATIONS:
            self._prompts_by_identity.pop(next(iter(self._prompts_by_identity)))
        return self._prompts_by_identity[identity][1]

    async def thinks(self, messages: Messages, tools: Tools = ()) -> bool:
        """Return whether the model thinks in a block before it answers this conversation."""
        return (await self._conversation_prompt((messages, tools, True))).opened

    async def is_thinking(self, chain: Chain) -> bool:
        """Return whether this model continues its thinking block after *chain*."""
        if chain.closed:
            return False
        return await self._prompt_opens_block(chain) or opens_block(chain.text)

    async def _prompt_opens_block(self, chain: Chain) -> bool:
        """
        Return whether a thinking block is open before the first step of *chain*.

        The text of the chain then has no opening marker.
        """
        return chain.thinks and await self.thinks(chain.messages, chain.tools)

    async def markers(self, chain: Chain) -> ThinkingMarkers:
        """Return the markers of the thinking block of *chain*."""
        if await self._prompt_opens_block(chain):
            return self.template.markers
        return opened_by(chain.text) or self.template.markers

    async def encode_chain(self, chain: Chain) -> list[int]:
        """Encode a whole chain. Tokens that were written in this vocabulary keep their ids."""
        cache = ChainPromptCache(lambda: self)
        prompt = await cache.prompt(chain)
        return prompt.ids

    async def has_block(self, chain: Chain) -> bool:
        """
        Return whether *chain* has a thinking block for this model.

        Then the end of the thinking is encoded as a marker. Otherwise it is left out.
        """
        return await self.thinks(chain.messages, chain.tools) or opens_block(chain.text)

    async def encode_step(
        self,
        step: Step,
        *,
        closes: ThinkingMarkers | None = None,
        has_block: bool = True,
        has_tools: bool = False,
    ) -> Sequence[int]:
        """
        Encode *step* of a chain.

        *closes*: the markers of the thinking block, if the step ends it. The handover, our text
        before the answer, is then appended. Without *has_block* neither the marker nor the handover
        is. With *has_tools* there is no handover: the model decides how an answer that may call
        tools begins.
        """
        if closes is None:
            return await self._encode_tokens(step)
        if not has_block:
            return await self._encode_tokens(step.cut(len(step.text) - len(THINK_END)))
        ids = await self._encode_tokens(step, closing=closes.closing)
        if has_tools or not closes.handover:
            return ids
        return [*ids, *await self.encode_special(closes.handover)]

    async def empty_block(self) -> Ids:
        """Encode an empty thinking block, after which a parser of answers expects no thinking."""
        markers = self.template.markers
        return await self.encode_special(f"{markers.opening}\n\n{markers.closing}\n\n")

    async def continued_tokens(self, step: Step) -> tuple[Token, ...]:
        """
        Return the tokens of the unfinished *step*, which the next write continues.

        Text without ids of this vocabulary is encoded.
        """
        if not self._has_ids(step):
            return await self.tokens_of_text(step.text)
        tokens: list[Token] = []
        for token in step.tokens:
            if token.id >= 0:
                tokens.append(token)
                continue
            if token.text:
                _drop_partial_character(tokens)
            encoded = await self.tokens_of_text(token.text)
            if len(encoded) == 1:
                encoded = (replace(token, id=encoded[0].id),)
            tokens += encoded
        return tuple(tokens)

    def _has_ids(self, step: Step) -> bool:
        """Return whether *step* has tokens of this vocabulary."""
        return bool(step.tokens) and step.vocabulary == self.vocabulary

    async def _encode_tokens(self, step: Step, *, closing: str = "") -> Sequence[int]:
        """Encode *step*. Its tokens keep their ids if possible. *closing* as in `encode`."""
        if not self._has_ids(step):
            return await self.encode(step.text, closing=closing)
        tokens = self._without_turn_ids(step)
        if -1 in tokens.ids:
            return await self.token_ids(tokens, closing=closing)
        return tokens.ids

    def _without_turn_ids(self, step: Step) -> Tokens:
        """
        Return the tokens of *step*. Special tokens that stand between turns lose their ids, so that
        they are encoded as ordinary text.

        A token that ends the thinking keeps its id.
        """
        tokens = Tokens.of(step.tokens)
        if self._turn_ids.isdisjoint(tokens.ids):
            return tokens
        reasoning_left = len(step.reasoning)  # characters of the reasoning after the token
        checked: list[Token] = []
        for token in tokens:
            reasoning_left -= len(token.text)
            in_reasoning = reasoning_left >= 0
            if in_reasoning and token.text and token.id in self._turn_ids:
                token = replace(token, id=-1)
            checked.append(token)
        return Tokens.of(checked)

    async def token_ids(self, tokens: Sequence[Token], *, closing: str = "") -> list[int]:
        """
        Return the ids of *tokens*. The text of a token without an id is encoded.

        Tokens without text may stand before such a text, and have the first bytes of its first
        character. They are left out, because the text is encoded with these bytes. *closing* as in
        `encode`.
        """
        ids: list[int] = []
        textless_count = 0  # tokens without text at the end of `ids`
        rest = len(tokens)
        for has_id, group in groupby(tokens, lambda token: token.id >= 0):
            members = list(group)
            rest -= len(members)
            if has_id:
                ids += [token.id for token in members]
                textless = takewhile(lambda token: not token.text, reversed(members))
                textless_count = len(list(textless))
            else:
                encoded = await self.encode(text_of(members), closing="" if rest else closing)
                del ids[len(ids) - textless_count :]
                ids += encoded
        return ids

    async def _tokens_of_text(self, text: str) -> tuple[Token, ...]:
        ids = await self.encode(text)
        if not ids:
            return ()
        pieces = await self.pieces(ids)
        parts = divide_text(text, ids, [pieces[number] for number in ids])
        return tuple([Token(part, id=number) for part, number in parts])

    async def _choice_ids(self, choices: tuple[str, ...]) -> Mapping[str, int]:
        """
        Return the token id of each of *choices*.

        Raise `ConfigurationError` if a choice is not one token, or if there are no choices.
        """
        numbers = {choice: await self.one_token(choice) for choice in choices}
        not_single = [choice for choice, number in numbers.items() if number < 0]
        if not_single or not numbers:
            names = ", ".join(map(repr, not_single)) or "there are none"
            raise ConfigurationError(
                f"choices have to be single tokens of the {self.source.call.role} model: {names}"
            )
        return numbers

    async def _encode_conversation(self, conversation: Conversation) -> ConversationPrompt:
        """Encode the rendered conversation, and what opens or closes the thinking block after."""
        messages, tools, thinks = conversation
        rendered = await self._render_conversation(messages, tools)
        end = await self.source.decode(rendered.last(PROMPT_END_TOKENS))
        begun = self.template.begin(end, thinks=thinks)
        added = begun.removeprefix(end)
        if tools:
            # The model decides how an answer that may call tools begins.
            added = added.removesuffix(self.template.head)
        ids = rendered.plus(await self.encode_special(added))
        return ConversationPrompt(ids, self.template.opens(begun))

    async def _render_conversation(self, messages: Messages, tools: Tools) -> EncodedPrompt:
        """
        Encode *messages* and *tools* as the template shows them.

        Some templates refuse system messages after the first turn. Then all system messages become
        the first turn, as vLLM does it in Anthropic's API.
        """
        leading = with_leading_system(messages)
        if self._needs_leading_system or messages == leading:
            return await self._encode_fields(leading, tools)
        try:
            return await self._encode_fields(messages, tools)
        except ContextTooLong:
            raise
        except EndpointRejected:
            rendered = await self._encode_fields(leading, tools)
        self._needs_leading_system = True
        return rendered

    async def _encode_fields(self, messages: Messages, tools: Tools) -> EncodedPrompt:
        return await self.encode_messages(
            [message_fields(message) for message in messages],
            [tool_fields(tool) for tool in tools],
            kept=self._marks_in_content,
        )

    @property
    def _marks_in_content(self) -> Sequence[str]:
        """
        The marks that chat templates look for in the assistant's content.

        They leave out the thinking of earlier turns by these marks.
        """
        markers = self.template.markers
        if markers.opens_message:
            return ()
        marks = (markers.opening, markers.closing, self.template.head, self.template.ending)
        return [mark.strip() for mark in marks if mark.strip()]

    async def _detect_thinking(self, template: Template, first_words: FirstWords) -> Template:
        """
        Learn from the first words of an answer whether the model opens a thinking block.

        *template* shows no such block.
        """
        written = await first_words(await self.source.render(PLAIN_QUESTION))
        found = template.after(written)
        mark = mark_after(written)
        if mark and not found.thinks and not template.head.strip().startswith(mark):
            call = self.source.call
            log.warning(
                "the %s model at %s begins its answer with %s: if that opens its thinking, set"
                ' marks = ["%s", "..."] in [%s], with the text that closes it',
                call.role,
                call.url,
                mark,
                mark,
                call.role,
            )
        return found


def _drop_partial_character(tokens: list[Token]) -> None:
    """Remove the tokens at the end that have the first bytes of a character, and no text."""
    while tokens and not tokens[-1].text:
        tokens.pop()


@dataclass(frozen=True, slots=True)
class _EncodedChain:
    """A chain and its ids."""

    chain: Chain
    """The chain."""
    prompt: EncodedPrompt
    """The ids of the whole chain."""
    counts: array[int]
    """The tokens up to the end of the conversation, and up to the end of each step."""
    sizes: array[int]
    """The bytes of the JSON up to the same ends."""

    @classmethod
    def without_steps(cls, chain: Chain, prefix: EncodedPrompt) -> Self:
        """Return the conversation of *chain*, whose ids are *prefix*, without the steps."""
        no_steps = replace(chain, steps=())
        return cls(
            no_steps,
            prefix,
            array("q", [prefix.count]),
            array("q", [prefix.size]),
        )

    def extended(
        self,
        chain: Chain,
        shared: int,
        steps: Iterable[EncodedPrompt],
    ) -> Self:
        """Return *chain*, which has the first *shared* steps of this chain and then *steps*."""
        counts = self.counts[: shared + 1]
        sizes = self.sizes[: shared + 1]
        prompt = self.prompt.beginning(counts[-1], sizes[-1])
        for step in steps:
            prompt = prompt.followed(step)
            counts.append(prompt.count)
            sizes.append(prompt.size)
        return type(self)(chain, prompt, counts, sizes)


def with_leading_system(messages: Messages) -> Messages:
    """Return *messages* with all system messages joined to one, at the beginning."""
    system = [message.content for message in messages if message.role == "system"]
    others = tuple([message for message in messages if message.role != "system"])
    return (Message("system", "\n".join(system)), *others) if system else others


class ChainPromptCache:
    """
    Encodes the chain of one run, which grows. Steps of the last chain are not encoded again.

    *get_tokenizer* returns the model's tokenizer. After a restart of the server it is another one.
    """

    def __init__(self, get_tokenizer: Callable[[], ModelTokenizer]) -> None:
        self._get_tokenizer = get_tokenizer
        self._tokenizer = get_tokenizer()
        self._last: _EncodedChain | None = None

    async def prompt(self, chain: Chain) -> EncodedPrompt:
        """Encode *chain*. Tokens that were written in this vocabulary keep their ids."""
        tokenizer = self._get_tokenizer()
        if tokenizer is not self._tokenizer:
            self._tokenizer = tokenizer
            self._last = None
        has_block = await tokenizer.has_block(chain)
        last = self._last  # Another call may replace it while this one waits.
        if last is None or not has_block or _conversation(last.chain) != _conversation(chain):
            prefix = await tokenizer.encode_prefix(
                chain.messages,
                chain.tools,
                thinks=chain.thinks,
            )
            last = _EncodedChain.without_steps(chain, prefix)
        shared = shared_length(last.chain.steps, chain.steps)
        thinking = chain.totals.thinking
        last_thought = -1 if thinking is None else thinking.count - 1
        added: list[EncodedPrompt] = []
        for index, step in enumerate(chain.steps[shared:], shared):
            ids = await tokenizer.encode_step(
                step,
                closes=await tokenizer.markers(chain) if index == last_thought else None,
                has_block=has_block,
                has_tools=bool(chain.tools),
            )
            added.append(EncodedPrompt.of(ids))
        encoded = last.extended(chain, shared, added)
        # How a step is encoded may depend on later steps if the model has no thinking block.
        self._last = encoded if has_block else None
        return encoded.prompt


def _conversation(chain: Chain) -> Conversation:
    return chain.messages, chain.tools, chain.thinks
