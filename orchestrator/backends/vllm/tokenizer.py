"""
Encode chains to token ids with the tokenizer and the chat template of one model.

The server encodes: each new text takes one request, and its ids are cached. A marker is the text
that opens or closes the thinking block.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from itertools import accumulate, groupby, takewhile
from operator import is_, itemgetter
from typing import NamedTuple, TypeAlias

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
from .replies import divide_text
from .text_tokenizer import AsyncCache, TextTokenizer
from .tokenizer_source import TokenizerSource
from .tool_protocol import message_fields, tool_fields

log = logging.getLogger(__name__)

MAX_CONVERSATIONS = 256
"""The most conversations whose prompts are cached."""
PROMPT_END_TOKENS = 96
"""
This many tokens at the end of a prompt are decoded. They show whether a thinking block is open.
"""

Conversation: TypeAlias = tuple[Messages, Tools, bool]
"""What a chain begins with: messages, tools, and whether the model may think."""

FirstWords: TypeAlias = Callable[[Sequence[int]], Awaitable[str]]
"""Sends a prompt to the model. Returns the first words of the answer."""

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


class ConversationPrompt(NamedTuple):
    """An encoded conversation."""

    prompt: EncodedPrompt
    """The ids up to the first step."""
    opened: bool
    """Whether a thinking block is open after these ids."""


class ModelTokenizer(TextTokenizer):
    """The tokenizer and the chat template of one model, for chains and their steps."""

    vocabulary: str
    """A hash of the vocabulary. Two models with the same hash encode texts to the same ids."""
    template: Template
    """The text around the turns."""
    context_length: int
    """The longest sequence that the model takes, in tokens."""
    faithful: bool
    """
    Whether decoding a rendered conversation to text and encoding this text gives the same ids.
    """
    rendered_last: list[int]
    """The ids of the last of `CONVERSATIONS`."""

    def __init__(self, source: TokenizerSource, settings: Endpoint) -> None:
        super().__init__(source)
        self._settings = settings
        self.conversation = AsyncCache(self._encode_conversation, MAX_CONVERSATIONS)
        """Encodes a `Conversation`."""
        self._turn_ids: set[int] = set()  # the ids of the special tokens between turns
        self._needs_leading_system = False  # whether the template refuses later system messages

    async def learn(self, first_words: FirstWords) -> None:
        """
        Learn the vocabulary and the chat template.

        If the template shows no thinking block, the answer to a plain question tells whether the
        model opens a thinking block itself. *first_words* asks this question.
        Raise `MissingCapability` if the template cannot be learnt.
        """
        probe_ids = await self.source.encode(VOCABULARY_PROBE)
        self.context_length = self.source.context_length
        self.vocabulary = blake2b(repr(probe_ids).encode(), digest_size=8).hexdigest()
        rendered = [
            await self._render_or_replace(messages, generate=generate)
            for messages, generate in CONVERSATIONS
        ]
        self.rendered_last = rendered[-1]
        texts = [await self.source.decode(ids) for ids in rendered]
        self.faithful = await self._is_faithful(texts[-1])
        if not self.faithful:
            # The tokenizer may encode special tokens as plain text. Learn their ids, and test
            # again.
            await self.learn_hidden_ids({number for ids in rendered for number in ids})
            self.faithful = await self._is_faithful(texts[-1])
        try:
            template = template_from_renderings(texts, self._settings.marks)
            if template.source == "unknown":
                template = await self._detect_thinking(template, first_words)
            self.template = template.overridden(self._settings.thinks)
        except MissingCapability as exc:
            raise self.source.call.missing(exc) from exc
        markers = self.template.markers
        between_turns = await self.encode_special(self.template.turn + self.template.answer)
        self._turn_ids = set(await self._special_ids(between_turns)).difference(
            await self.encode_special(markers.opening),
            await self.encode_special(markers.closing),
        )

    async def _is_faithful(self, text: str) -> bool:
        """Return whether encoding *text*, the last of the renderings, gives `rendered_last`."""
        return list(await self._encode(text)) == self.rendered_last

    async def _render_or_replace(self, messages: Fields, *, generate: bool) -> list[int]:
        """
        Render *messages*, which are one of `CONVERSATIONS`.

        Mistral's and DeepSeek's own templates refuse some replies at the end of a conversation.
        Then *messages* are rendered with one more question. Mistral's older templates refuse all
        reasoning. Then the last of `CONVERSATIONS` is rendered in place of *messages*.
        """
        last, _ = CONVERSATIONS[-1]
        question = last[-1]
        if generate:
            return (await self.source.render(messages)).ids
        with suppress(EndpointRejected):
            return (await self.source.render(messages, generate=False)).ids
        with suppress(EndpointRejected):
            return (await self.source.render((*messages, question))).ids
        return (await self.source.render(last)).ids

    async def one_token(self, text: str) -> int:
        """Return the id of *text* if *text* is one token, otherwise -1."""
        ids = await self.encode_special(text)
        return ids[0] if len(ids) == 1 else -1

    async def has_changed(self) -> bool:
        """Return whether the vocabulary, the chat template or the context changed since `learn`."""
        messages, _ = CONVERSATIONS[-1]
        rendered = await self.source.render(messages)
        found = (rendered.ids, self.source.context_length)
        return found != (self.rendered_last, self.context_length)

    async def encode(self, text: str, *, closing: str = "") -> Ids:
        """
        Encode *text* of a chain.

        If *text* ends with `THINK_END`, the model's own marker *closing* is encoded in place of
        `THINK_END`. If *closing* is empty, `THINK_END` is encoded as plain text.
        """
        if closing and text.endswith(THINK_END):
            return await self.encode_ordinary(text.removesuffix(THINK_END), after=closing)
        return await self.encode_ordinary(text)

    async def encode_question(self, question: str, opening: str) -> Ids:
        """
        Encode the end of a judge's prompt: the text after the steps.

        The text has *question*, and then *opening*, the first words of the answer. The module
        `chat_template` describes the layout.
        """
        answer_start = self.template.headed(self.template.answer)
        return await self.encode_ordinary(
            question,
            before=self.template.turn,
            after=answer_start + opening,
        )

    async def encode_prefix(
        self,
        messages: Messages,
        tools: Tools = (),
        thinks: bool = True,
    ) -> EncodedPrompt:
        """
        Encode the text before the first step: the template's rendering of *messages* and *tools*.

        If *thinks* is false and the prompt opens a thinking block, the block is closed at once.
        """
        return (await self.conversation((messages, tools, thinks))).prompt

    async def thinking_block(self, chain: Chain) -> tuple[ThinkingMarkers, bool]:
        """
        Return the markers of the thinking block of *chain*, and whether the block is still open.

        If the prompt opens the block, the text of the chain has no opening marker.
        """
        _, opened_by_prompt = await self.conversation(_conversation(chain))
        if opened_by_prompt:
            return self.template.markers, not chain.closed
        markers = opened_by(chain.text)
        is_open = markers is not None and not chain.closed
        return markers or self.template.markers, is_open

    async def encode_chain(self, chain: Chain) -> list[int]:
        """Encode a whole chain. Tokens that were written in this vocabulary keep their ids."""
        prompt = await ChainPromptCache(lambda: self).prompt(chain)
        return prompt.ids

    async def empty_block(self) -> Ids:
        """
        Encode an empty thinking block.

        A parser that finds this block at the beginning of an answer expects no more thinking.
        """
        markers = self.template.markers
        return await self.encode_special(f"{markers.opening}\n\n{markers.closing}\n\n")

    async def encode_step(self, step: Step, *, closing: str = "") -> Sequence[int]:
        """
        Encode *step* of a chain. Its tokens keep their ids if possible.

        A special token in the thinking could begin a new turn. So the ids of special tokens that
        stand between turns are not kept in the thinking, and the texts of these tokens are encoded
        as ordinary text. The answer keeps these ids, because it may need them for the calls of
        tools. A token that ends the thinking keeps its id. *closing* has the same meaning as in
        `encode`.
        """
        if step.vocabulary != self.vocabulary or not step.tokens:
            return await self.encode(step.text, closing=closing)
        tokens = Tokens.of(step.tokens)
        ids = tokens.ids
        if -1 not in ids and self._turn_ids.isdisjoint(ids):
            return ids
        ends = accumulate([len(token.text) for token in tokens])
        checked = [
            replace(token, id=-1)
            if token.text and token.id in self._turn_ids and end <= len(step.reasoning)
            else token
            for token, end in zip(tokens, ends, strict=True)
        ]
        return await self.token_ids(checked, closing=closing)

    async def encode_last_thought(
        self,
        step: Step,
        chain: Chain,
        *,
        has_block: bool,
    ) -> Sequence[int]:
        """
        Encode the *step* that ends the thinking of *chain*.

        After the closing marker stands the handover, the text of the template between the thinking
        and the answer. If the answer can call tools, the model decides how the answer begins, and
        the handover is left out. If *has_block* is false, the marker is left out, too.
        """
        if not has_block:
            return await self.encode_step(step.cut(len(step.text) - len(THINK_END)))
        markers, _ = await self.thinking_block(chain)
        ids = await self.encode_step(step, closing=markers.closing)
        if chain.tools:
            return ids
        return [*ids, *await self.encode_special(markers.handover)]

    async def token_ids(self, tokens: Sequence[Token], *, closing: str = "") -> list[int]:
        """
        Return the ids of *tokens*. The text of a token without an id is encoded.

        *closing* has the same meaning as in `encode`.
        """
        ids: list[int] = []
        encoded_count = 0
        for keeps_ids, group in _groups(tokens):
            encoded_count += len(group)
            if keeps_ids:
                ids += [token.id for token in group]
                continue
            is_last = encoded_count == len(tokens)
            ids += await self.encode(text_of(group), closing=closing if is_last else "")
        return ids

    async def tokens_of_text(self, text: str) -> list[Token]:
        """Encode a *text* of a chain to tokens."""
        ids = await self.encode(text)
        pieces = await self.pieces(ids)
        parts = divide_text(text, ids, [pieces[number] for number in ids])
        return [Token(part, id=number) for part, number in parts]

    async def choice_ids(self, choices: Sequence[str]) -> Mapping[str, int]:
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
        """
        Render and encode *conversation*.

        If the model may think, append the text that opens the thinking block. Otherwise append the
        text that closes it.
        """
        messages, tools, thinks = conversation
        rendered = await self._render_conversation(messages, tools)
        prompt_end = await self.source.decode(rendered.last(PROMPT_END_TOKENS))
        extended_end = self.template.begin(prompt_end, thinks=thinks)
        added = extended_end.removeprefix(prompt_end)
        if tools:
            # If the answer may call tools, the model decides how the answer begins.
            added = added.removesuffix(self.template.head)
        ids = rendered.plus(await self.encode_special(added))
        return ConversationPrompt(ids, thinks and self.template.opens(extended_end))

    async def _render_conversation(self, messages: Messages, tools: Tools) -> EncodedPrompt:
        """
        Encode the template's rendering of *messages* and *tools*.

        Some templates refuse system messages after the first turn. Then all system messages are
        joined to one, which becomes the first turn. vLLM does the same in Anthropic's API.
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
        """
        Encode the template's rendering of *messages* and *tools*.

        The chat template looks for some texts in the assistant's content. With these texts the
        template finds the thinking of earlier turns, and leaves it out. The model wrote these
        texts as special tokens, so they are encoded as special tokens here, too (*whole*).
        """
        markers = self.template.markers
        sought = (markers.opening, markers.closing, self.template.head, self.template.ending)
        # If the opening marker also opens a message, it must not be encoded as a special token in
        # the content, because it would begin a turn.
        whole = [] if markers.opens_message else [text.strip() for text in sought if text.strip()]
        return await self.encode_messages(
            [message_fields(message) for message in messages],
            [tool_fields(tool) for tool in tools],
            whole=whole,
        )

    async def _detect_thinking(self, template: Template, first_words: FirstWords) -> Template:
        """
        Learn from the first words of an answer whether the model opens a thinking block.

        *template* shows no thinking block. Warn if the answer begins with an unknown marker.
        """
        written = await first_words((await self.source.render(PLAIN_QUESTION)).ids)
        found = template.after(written)
        marker = mark_after(written)
        # The head stands before every reply. So a marker in the head does not open the thinking.
        is_in_head = template.head.strip().startswith(marker)
        if marker and not found.thinks and not is_in_head:
            call = self.source.call
            log.warning(
                "the %s model at %s begins its answer with %s: if that opens its thinking, set"
                ' marks = ["%s", "..."] in [%s], with the text that closes it',
                call.role,
                call.url,
                marker,
                marker,
                call.role,
            )
        return found


def _groups(tokens: Sequence[Token]) -> Iterator[tuple[bool, list[Token]]]:
    """
    Divide *tokens* into groups. Yield for each group whether its tokens have ids to keep.

    Several tokens can make one character. The text of the last of them is the whole character. The
    others have no text. If the last token has no id, its text is encoded. Then the others must not
    keep their ids, because their bytes would be in the ids twice. So all tokens of a character
    belong to one group.
    """
    keeps: list[bool] = []
    keeps_next = True  # whether the token that follows in the text keeps its id
    for token in reversed(tokens):
        keeps_next = token.id >= 0 and (keeps_next or token.text != "")
        keeps.append(keeps_next)
    for keeps_ids, group in groupby(zip(tokens, reversed(keeps), strict=True), itemgetter(1)):
        yield keeps_ids, [token for token, _ in group]


class _EncodedChain(NamedTuple):
    """The steps of a chain, and the ids of the chain."""

    key: tuple[ModelTokenizer, Conversation, bool]
    """The tokenizer, the conversation, and whether the chain has a thinking block."""
    steps: Sequence[Step]
    """The steps."""
    prompt: EncodedPrompt
    """The ids of the whole chain."""
    sizes: Sequence[tuple[int, int]]
    """For each step: the number of ids before it, and their bytes in the body of a request."""


def with_leading_system(messages: Messages) -> Messages:
    """Return *messages* with all system messages joined to one, at the beginning."""
    system = [message.content for message in messages if message.role == "system"]
    others = tuple([message for message in messages if message.role != "system"])
    return (Message("system", "\n".join(system)), *others) if system else others


class ChainPromptCache:
    """
    Encodes the growing chain of one run. The steps of the last chain are not encoded again.

    *get_tokenizer* returns the model's tokenizer. It returns another object if the model was learnt
    anew, after a restart of the server.
    """

    def __init__(self, get_tokenizer: Callable[[], ModelTokenizer]) -> None:
        self._get_tokenizer = get_tokenizer
        self._last: _EncodedChain | None = None

    async def prompt(self, chain: Chain) -> EncodedPrompt:
        """Encode *chain*. Tokens that were written in this vocabulary keep their ids."""
        tokenizer = self._get_tokenizer()
        conversation = _conversation(chain)
        prefix, opened_by_prompt = await tokenizer.conversation(conversation)
        # A later step can open a block. This changes the encoding of the step that ends the
        # thinking (`encode_last_thought`). So `has_block` is a part of the key.
        has_block = opened_by_prompt or opens_block(chain.text)
        key = (tokenizer, conversation, has_block)
        last = self._last  # Another call may replace `_last` while this call waits.
        if last is None or last.key != key:
            last = _EncodedChain(key, (), prefix, [(prefix.count, prefix.size)])
        # A step that two chains share is the same object.
        shared = len([*takewhile(bool, map(is_, last.steps, chain.steps))])
        sizes = list(last.sizes[: shared + 1])
        prompt = last.prompt.beginning(*sizes[-1])
        thinking = chain.totals.thinking
        last_thought = thinking.count if thinking else 0  # the number of the step, from 1
        for number, step in enumerate(chain.steps[shared:], shared + 1):
            if number == last_thought:
                ids = await tokenizer.encode_last_thought(step, chain, has_block=has_block)
            else:
                ids = await tokenizer.encode_step(step)
            prompt = prompt.plus(ids)
            sizes.append((prompt.count, prompt.size))
        self._last = _EncodedChain(key, chain.steps, prompt, sizes)
        return prompt


def _conversation(chain: Chain) -> Conversation:
    return chain.messages, chain.tools, chain.thinks
