"""
Encode chains to token ids with the tokenizer and the chat template of one model.

Each new text takes one request. Its ids are then cached. A marker is the text that opens or closes
the thinking block.
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
"""The most conversations whose prompts are cached."""
MAX_CHOICES = 64
"""The most sets of choices whose token ids are cached."""
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


@dataclass(frozen=True, slots=True)
class ConversationPrompt:
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
    ending_id: int
    """The id of the token that ends a reply. -1: no single token ends a reply."""
    end_tokens: Mapping[int, str]
    """Maps ids to texts, for the token that ends a reply and the token that ends the thinking."""
    context_length: int
    """The longest sequence that the model takes, in tokens."""
    faithful: bool
    """Whether encoding the text of a rendered conversation gives the ids of the rendering."""
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
        await self._learn_special_ids()

    async def _learn_special_ids(self) -> None:
        """Learn the ids of the special tokens in the template."""
        template = self.template
        markers = template.markers
        self.ending_id = await self.one_token(template.ending)
        closing_id = await self.one_token(markers.closing)
        self.end_tokens = {closing_id: markers.closing, self.ending_id: template.ending}
        between_turns = await self.encode_special(template.turn + template.answer)
        block = await self.encode_special(markers.opening + markers.closing)
        self._turn_ids = set(await self._special_ids(between_turns)).difference(block)

    @property
    def learnt(self) -> tuple[object, ...]:
        """What `learn` found out. Two connections to the same model have equal values."""
        return self.rendered_last, self.vocabulary, self.template

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
            return await self.source.render(messages)
        with suppress(EndpointRejected):
            return await self.source.render(messages, generate=False)
        with suppress(EndpointRejected):
            return await self.source.render((*messages, question))
        return await self.source.render(last)

    async def one_token(self, text: str) -> int:
        """Return the id of *text* if *text* is one token, otherwise -1."""
        ids = await self.encode_special(text) if text else ()
        return ids[0] if len(ids) == 1 else -1

    async def has_changed(self) -> bool:
        """Return whether the vocabulary, the chat template or the context changed since `learn`."""
        messages, _ = CONVERSATIONS[-1]
        rendered = await self.source.render(messages)
        return rendered != self.rendered_last or self.source.context_length != self.context_length

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
        *,
        thinks: bool = True,
    ) -> EncodedPrompt:
        """
        Encode the text before the first step: the template's rendering of *messages* and *tools*.

        If *thinks* is false and the prompt opens a thinking block, the block is closed at once.
        """
        return (await self._conversation_prompt((messages, tools, thinks))).prompt

    async def _conversation_prompt(self, conversation: Conversation) -> ConversationPrompt:
        """
        Encode *conversation*. Look in two caches: first by object identity, then by content.

        A look by content hashes all messages. For thousands of messages this takes longer than the
        rest of a step.
        """
        messages, tools, thinks = conversation
        identity = (id(messages), id(tools), thinks)
        if identity not in self._prompts_by_identity:
            prompt = await self._prompts(conversation)
            # While the cache refers to the conversation, no other object can get its `id()`.
            self._prompts_by_identity[identity] = (conversation, prompt)
        if len(self._prompts_by_identity) > MAX_CONVERSATIONS:
            self._prompts_by_identity.pop(next(iter(self._prompts_by_identity)))
        return self._prompts_by_identity[identity][1]

    async def prompt_opens_block(self, messages: Messages, tools: Tools = ()) -> bool:
        """Return whether a thinking block is open after the prompt of this conversation."""
        return (await self._conversation_prompt((messages, tools, True))).opened

    async def is_inside_block(self, chain: Chain) -> bool:
        """Return whether a thinking block is open after the last step of *chain*."""
        if chain.closed:
            return False
        return await self._begins_inside_block(chain) or opens_block(chain.text)

    async def _begins_inside_block(self, chain: Chain) -> bool:
        """
        Return whether a thinking block is open before the first step of *chain*.

        The text of the chain then has no opening marker.
        """
        return chain.thinks and await self.prompt_opens_block(chain.messages, chain.tools)

    async def markers(self, chain: Chain) -> ThinkingMarkers:
        """Return the markers of the thinking block of *chain*."""
        if await self._begins_inside_block(chain):
            return self.template.markers
        return opened_by(chain.text) or self.template.markers

    async def encode_chain(self, chain: Chain) -> list[int]:
        """Encode a whole chain. Tokens that were written in this vocabulary keep their ids."""
        prompt = await ChainPromptCache(lambda: self).prompt(chain)
        return prompt.ids

    async def has_block(self, chain: Chain) -> bool:
        """
        Return whether *chain* has a thinking block for this model, open or closed.

        If so, `THINK_END` at the end of the thinking is encoded as the closing marker. Otherwise
        `THINK_END` is left out.
        """
        return await self.prompt_opens_block(chain.messages, chain.tools) or opens_block(chain.text)

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

        If the step ends the thinking block, *closes* has the markers of the block. Then the closing
        marker is encoded, and after it the handover: the text of the template between the thinking
        and the answer. If *has_block* is false, the marker and the handover are left out. If
        *has_tools* is true, only the handover is left out, because the model decides how an answer
        that may call tools begins.
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
        """Encode an empty thinking block. A parser of answers expects no thinking after it."""
        markers = self.template.markers
        return await self.encode_special(f"{markers.opening}\n\n{markers.closing}\n\n")

    async def continued_tokens(self, step: Step) -> tuple[Token, ...]:
        """
        Return the tokens of the unfinished *step*. The next request continues this step.

        Text that has no ids of this vocabulary is encoded.
        """
        if not self._has_ids(step):
            return await self.tokens_of_text(step.text)
        tokens: list[Token] = []
        for token in step.tokens:
            if token.id >= 0:
                tokens.append(token)
                continue
            if token.text:
                # The encoded text includes the bytes of the tokens without text before it.
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
        """
        Encode *step*. Its tokens keep their ids if possible.

        *closing* has the same meaning as in `encode`.
        """
        if not self._has_ids(step):
            return await self.encode(step.text, closing=closing)
        tokens = self._without_turn_ids(step)
        if -1 in tokens.ids:
            return await self.token_ids(tokens, closing=closing)
        return tokens.ids

    def _without_turn_ids(self, step: Step) -> Tokens:
        """
        Return the tokens of *step*, without the ids of special tokens that stand between turns.

        The texts of these tokens are then encoded as ordinary text. A token that ends the thinking
        keeps its id.
        """
        tokens = Tokens.of(step.tokens)
        if self._turn_ids.isdisjoint(tokens.ids):
            return tokens
        reasoning_length = len(step.reasoning)
        position = 0  # the number of characters up to the end of the token
        checked: list[Token] = []
        for token in tokens:
            position += len(token.text)
            in_reasoning = position <= reasoning_length
            if in_reasoning and token.text and token.id in self._turn_ids:
                token = replace(token, id=-1)
            checked.append(token)
        return Tokens.of(checked)

    async def token_ids(self, tokens: Sequence[Token], *, closing: str = "") -> list[int]:
        """
        Return the ids of *tokens*. The text of a token without an id is encoded.

        A token that has only the first bytes of a character has no text. If encoded text follows,
        this text includes these bytes already. So the token without text is left out. *closing* has
        the same meaning as in `encode`.
        """
        ids: list[int] = []
        textless_count = 0  # tokens without text at the end of `ids`
        rest = len(tokens)  # tokens after the group
        for has_id, group in groupby(tokens, lambda token: token.id >= 0):
            members = list(group)
            rest -= len(members)
            if has_id:
                ids += [token.id for token in members]
                textless = takewhile(lambda token: not token.text, reversed(members))
                textless_count = len(list(textless))
            else:
                is_last_group = rest == 0
                text = text_of(members)
                encoded = await self.encode(text, closing=closing if is_last_group else "")
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
        """
        Render and encode *conversation*.

        Append the text that opens the thinking block, or the text that closes it.
        """
        messages, tools, thinks = conversation
        rendered = await self._render_conversation(messages, tools)
        prompt_end = await self.source.decode(rendered.last(PROMPT_END_TOKENS))
        extended_end = self.template.begin(prompt_end, thinks=thinks)
        added = extended_end.removeprefix(prompt_end)
        if tools:
            # The model decides how an answer that may call tools begins.
            added = added.removesuffix(self.template.head)
        ids = rendered.plus(await self.encode_special(added))
        return ConversationPrompt(ids, self.template.opens(extended_end))

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
        return await self.encode_messages(
            [message_fields(message) for message in messages],
            [tool_fields(tool) for tool in tools],
            kept=self._texts_sought_in_content,
        )

    @property
    def _texts_sought_in_content(self) -> Sequence[str]:
        """
        The texts that the chat template looks for in the assistant's content.

        With these texts the template finds the thinking of earlier turns, and leaves it out.
        """
        markers = self.template.markers
        if markers.opens_message:
            return ()
        texts = (markers.opening, markers.closing, self.template.head, self.template.ending)
        return [text.strip() for text in texts if text.strip()]

    async def _detect_thinking(self, template: Template, first_words: FirstWords) -> Template:
        """
        Learn from the first words of an answer whether the model opens a thinking block.

        *template* shows no thinking block. Warn if the answer begins with an unknown marker.
        """
        written = await first_words(await self.source.render(PLAIN_QUESTION))
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


def _drop_partial_character(tokens: list[Token]) -> None:
    """Remove the tokens without text at the end. They have the first bytes of a character."""
    while tokens and not tokens[-1].text:
        tokens.pop()


@dataclass(frozen=True, slots=True)
class _EncodedChain:
    """A chain and its ids."""

    chain: Chain
    """The chain."""
    prompt: EncodedPrompt
    """The ids of the whole chain."""
    token_counts: array[int]
    """
    Index 0 has the number of tokens of the conversation. Index i has the number of tokens of the
    conversation and the first i steps.
    """
    json_sizes: array[int]
    """Each index has the number of bytes of JSON for the tokens at this index of `token_counts`."""

    @classmethod
    def without_steps(cls, chain: Chain, prefix: EncodedPrompt) -> Self:
        """Return the encoded conversation of *chain*. It has no steps. Its ids are *prefix*."""
        return cls(
            replace(chain, steps=()),
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
        """
        Return the encoded *chain*.

        It shares its first *shared* steps with this chain. The ids of the other steps are *steps*.
        """
        token_counts = self.token_counts[: shared + 1]
        json_sizes = self.json_sizes[: shared + 1]
        prompt = self.prompt.beginning(token_counts[-1], json_sizes[-1])
        for step in steps:
            prompt = prompt.followed(step)
            token_counts.append(prompt.count)
            json_sizes.append(prompt.size)
        return type(self)(chain, prompt, token_counts, json_sizes)


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
        self._tokenizer = get_tokenizer()
        self._last: _EncodedChain | None = None

    async def prompt(self, chain: Chain) -> EncodedPrompt:
        """Encode *chain*. Tokens that were written in this vocabulary keep their ids."""
        tokenizer = self._get_tokenizer()
        if tokenizer is not self._tokenizer:
            self._tokenizer = tokenizer
            self._last = None
        has_block = await tokenizer.has_block(chain)
        last = self._last  # Another call may replace `_last` while this call waits.
        if last is None or not has_block or _conversation(last.chain) != _conversation(chain):
            prefix = await tokenizer.encode_prefix(
                chain.messages,
                chain.tools,
                thinks=chain.thinks,
            )
            last = _EncodedChain.without_steps(chain, prefix)
        shared = shared_length(last.chain.steps, chain.steps)
        thinking = chain.totals.thinking
        last_thinking_step = 0 if thinking is None else thinking.count  # counted from 1
        added: list[EncodedPrompt] = []
        for number, step in enumerate(chain.steps[shared:], shared + 1):
            ids = await tokenizer.encode_step(
                step,
                closes=await tokenizer.markers(chain) if number == last_thinking_step else None,
                has_block=has_block,
                has_tools=bool(chain.tools),
            )
            added.append(EncodedPrompt.of(ids))
        encoded = last.extended(chain, shared, added)
        # Without a thinking block, later steps can change how a step is encoded.
        self._last = encoded if has_block else None
        return encoded.prompt


def _conversation(chain: Chain) -> Conversation:
    return chain.messages, chain.tools, chain.thinks
