"""Chains to token ids, by one model's tokenizer and chat template, with one request per text."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import groupby, takewhile
from typing import Self, TypeAlias

from ...chain import THINK_END, Chain, Message, Step, Token, Tokens
from ...endpoints.chat_template import CONVERSATIONS, PLAIN_QUESTION, Fields, Template, cut
from ...endpoints.interfaces import Messages, Tools
from ...endpoints.settings import GREEDY, Endpoint
from ...errors import ConfigurationError, ContextTooLong, EndpointRejected, MissingCapability
from ...http.client import Connection
from ...http.http_errors import reading
from ...http.paths import COMPLETIONS
from ...http.prompts import EncodedPrompt, Ids
from ...markers import ThinkingMarkers, mark_after, opened_by, opens_block
from ...step_builder import text_of
from ...tokens import shared_length
from .bodies import completion_body, tokenize_body
from .replies import spell
from .text_encoder import MAX_CACHED_TEXTS, AsyncCache, TextEncoder
from .tool_protocol import message_fields, tool_fields

log = logging.getLogger(__name__)

MAX_CONVERSATIONS = 256
"""Conversations whose prompts are cached."""
MAX_CHOICES = 64
"""Sets of choices whose token ids are cached."""
LAST_TOKENS = 96
"""The end of a prompt that says whether a thinking block is open."""
FIRST_TOKENS = 16
"""A model that thinks opens its block within these tokens."""

Conversation: TypeAlias = tuple[Messages, Tools, bool]
"""What a chain begins with: messages, tools, and whether the model may think."""

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
class BegunPrompt:
    """What a chain begins with, encoded."""

    prompt: EncodedPrompt
    """The ids up to the first step."""
    opened: bool
    """Whether a thinking block is open after them."""


class ModelTokenizer(TextEncoder):
    """The tokenizer and the chat template of one served model."""

    vocabulary: str
    """Equal for models that encode every text to the same ids."""
    template: Template
    """The text around the turns."""
    ending_id: int
    """The token that ends a reply. -1: that takes several, or none does."""
    marks: Mapping[int, str]
    """The spellings, by id, of the ends of a reply and of the thinking."""
    room: int
    """The longest sequence that the model takes, in tokens."""
    faithful: bool
    """Whether the rendered chat template, encoded as text, has the ids of the rendering."""
    rendered_last: list[int]
    """The ids of the last of `CONVERSATIONS`."""

    def __init__(self, connection: Connection, model: str, settings: Endpoint) -> None:
        super().__init__(connection, model, settings.template)
        self._settings = settings
        self.spelt = AsyncCache(self._spell, MAX_CACHED_TEXTS)
        """Encodes a text of a chain to tokens."""
        self.choices = AsyncCache(self._choices, MAX_CHOICES)
        """Returns the token ids of choices."""
        self._prefixes = AsyncCache(self._prefix, MAX_CONVERSATIONS)
        self._same: dict[object, tuple[Conversation, BegunPrompt]] = {}
        self._turns: set[int] = set()  # the special tokens between turns
        self._system_first = False  # whether the template refuses later system messages

    async def learn(self) -> None:
        """
        Learn the vocabulary and the chat template. Raise `MissingCapability` if the template cannot
        be learnt.
        """
        ids, self.room = await self.tokenize(tokenize_body(self.model, VOCABULARY_PROBE))
        self.vocabulary = blake2b(repr(ids).encode(), digest_size=8).hexdigest()
        rendered = [
            await self._shown(messages, generate=generate) for messages, generate in CONVERSATIONS
        ]
        self.rendered_last = rendered[-1]
        texts = [await self.decode(ids) for ids in rendered]
        self.faithful = await self._is_faithful(texts[-1])
        if not self.faithful:
            await self.learn_marks({number for ids in rendered for number in ids})
            self.faithful = await self._is_faithful(texts[-1])
        try:
            found = cut(texts, self._settings.marks)
            if found.source == "unknown":
                found = await self._by_effect(found)
            self.template = found.overridden(self._settings.thinks)
        except MissingCapability as exc:
            raise self._call.missing(exc) from exc
        template = self.template
        markers = template.markers
        self.ending_id = await self.one_token(template.ending)
        closing_id = await self.one_token(markers.closing)
        self.marks = {closing_id: markers.closing, self.ending_id: template.ending}
        between = await self.literally(template.turn + template.answer)
        block = await self.literally(markers.opening + markers.closing)
        self._turns = {*await self._mark_ids(between)}.difference(block)

    @property
    def learnt(self) -> tuple[object, ...]:
        """What `learn` found out, to be compared with that of another connection."""
        return self.rendered_last, self.vocabulary, self.template

    async def _is_faithful(self, text: str) -> bool:
        """Return whether *text*, the last rendered conversation, has the ids of the rendering."""
        return list(await self._encode(text)) == self.rendered_last

    async def _shown(self, messages: Fields, *, generate: bool) -> list[int]:
        """
        Render one of `CONVERSATIONS`, or the last one in its place.

        Mistral's and DeepSeek's own templates refuse some replies at the end of a conversation. A
        further question follows then. Mistral's older templates refuse all reasoning.
        """
        last = CONVERSATIONS[-1][0]
        if generate:
            return await self.render(messages)
        with suppress(EndpointRejected):
            return await self.render(messages, generate=False)
        with suppress(EndpointRejected):
            return await self.render((*messages, last[-1]))
        return await self.render(last)

    async def one_token(self, mark: str) -> int:
        """Return the id of *mark*. -1: it takes several tokens, or none."""
        ids = await self.literally(mark) if mark else ()
        return ids[0] if len(ids) == 1 else -1

    async def changed(self) -> bool:
        """Return whether the vocabulary, the chat template or the context changed since `learn`."""
        messages, _ = CONVERSATIONS[-1]
        body = self._messages_body(messages)
        return await self.tokenize(body) != (self.rendered_last, self.room)

    async def encode(self, text: str, *, closing: str = "") -> Ids:
        """
        Encode *text* of a chain.

        *closing* is the mark that the model has in place of an end of the thinking at the text's
        end. "": the end of the thinking is text.
        """
        if closing and text.endswith(THINK_END):
            return await self.between("", text.removesuffix(THINK_END), closing)
        return await self.between("", text)

    async def question(self, question: str, opening: str) -> Ids:
        """
        Encode what follows the steps in a judge's prompt: *question*, and *opening*, with which the
        answer begins. The module `chat_template` has the layout.
        """
        answer = self.template.headed(self.template.answer)
        return await self.between(self.template.turn, question, answer + opening)

    async def prefix(
        self,
        messages: Messages,
        tools: Tools = (),
        *,
        thinks: bool = True,
    ) -> EncodedPrompt:
        """
        Encode what stands before the first step: *messages*, with the *tools* that the template
        shows.

        Without *thinks*, a thinking block that would be open is closed.
        """
        return (await self._begun((messages, tools, thinks))).prompt

    async def _begun(self, conversation: Conversation) -> BegunPrompt:
        """
        Encode *conversation*, looked up by the objects in it first, and then by what they say.

        To hash thousands of messages takes longer than the rest of a step.
        """
        messages, tools, thinks = conversation
        objects = (id(messages), id(tools), thinks)
        if objects not in self._same:
            # The conversation is kept with its prompt: its objects keep their ids.
            self._same[objects] = (conversation, await self._prefixes(conversation))
        if len(self._same) > MAX_CONVERSATIONS:
            self._same.pop(next(iter(self._same)))
        return self._same[objects][1]

    async def opens(self, messages: Messages, tools: Tools = ()) -> bool:
        """Return whether the model thinks in a block before it answers this conversation."""
        return (await self._begun((messages, tools, True))).opened

    async def thinking(self, chain: Chain) -> bool:
        """Return whether this model goes on in its thinking block after *chain*."""
        if chain.closed:
            return False
        return await self._opens_itself(chain) or opens_block(chain.text)

    async def _opens_itself(self, chain: Chain) -> bool:
        """Return whether the model opens the block of *chain*, which its text would not show."""
        return chain.thinks and await self.opens(chain.messages, chain.tools)

    async def markers(self, chain: Chain) -> ThinkingMarkers:
        """Return the markers of the thinking block of *chain*."""
        if await self._opens_itself(chain):
            return self.template.markers
        return opened_by(chain.text) or self.template.markers

    async def chain(self, chain: Chain) -> list[int]:
        """Encode a whole chain. Tokens that were written in this vocabulary keep their ids."""
        return (await ChainIds(lambda: self)(chain)).ids

    async def marked(self, chain: Chain) -> bool:
        """Return whether this model has a thinking block, too, and reads where *chain*'s ended."""
        return await self.opens(chain.messages, chain.tools) or opens_block(chain.text)

    async def step(
        self,
        step: Step,
        *,
        closes: ThinkingMarkers | None = None,
        marked: bool = True,
        calls: bool = False,
    ) -> Sequence[int]:
        """
        Encode *step* of a chain.

        *closes* has the markers of the block that the step ends: what stands before the answer is
        added. None: the step ends no block. Without *marked* the mark is left out, as this model
        has no thinking block. *calls*: the answer may call tools, and begins as the model decides.
        """
        if closes is None:
            return await self._step(step)
        if not marked:
            return await self._step(step.cut(len(step.text) - len(THINK_END)))
        ids = await self._step(step, closing=closes.closing)
        handover = "" if calls else closes.handover
        return [*ids, *await self.literally(handover)] if handover else ids

    async def empty_block(self) -> Ids:
        """Encode an empty thinking block, after which a parser of answers expects no thinking."""
        markers = self.template.markers
        return await self.literally(f"{markers.opening}\n\n{markers.closing}\n\n")

    async def begun(self, step: Step) -> tuple[Token, ...]:
        """
        Return the tokens of *step*, which a write continues.

        Text without ids of this vocabulary is encoded.
        """
        if not self._has_ids(step):
            return await self.spelt(step.text)
        tokens: list[Token] = []
        for token in step.tokens:
            if token.id >= 0:
                tokens.append(token)
                continue
            while tokens and token.text and not tokens[-1].text:
                tokens.pop()  # the first bytes of a character that *token* holds as text
            spelt = await self.spelt(token.text)
            if len(spelt) == 1:
                spelt = (replace(token, id=spelt[0].id),)
            tokens += spelt
        return tuple(tokens)

    def _has_ids(self, step: Step) -> bool:
        """Return whether *step* has tokens of this vocabulary."""
        return bool(step.tokens) and step.vocabulary == self.vocabulary

    async def _step(self, step: Step, *, closing: str = "") -> Sequence[int]:
        if not self._has_ids(step):
            return await self.encode(step.text, closing=closing)
        tokens = self._without_turns(step)
        if -1 in tokens.ids:
            return await self.token_ids(tokens, closing=closing)
        return tokens.ids

    def _without_turns(self, step: Step) -> Tokens:
        """
        Return the tokens of *step*, with text in place of special tokens that stand between turns.

        The end of the thinking stays.
        """
        tokens = Tokens.of(step.tokens)
        if self._turns.isdisjoint(tokens.ids):
            return tokens
        left = len(step.reasoning)
        checked: list[Token] = []
        for token in tokens:
            left -= len(token.text)
            if token.id in self._turns and token.text and left >= 0:
                token = replace(token, id=-1)
            checked.append(token)
        return Tokens.of(checked)

    async def token_ids(self, tokens: Sequence[Token], *, closing: str = "") -> list[int]:
        """
        Return the ids of *tokens*. The text of a token without an id is encoded.

        Tokens without text before them are the first bytes of that text. *closing* is that of
        `encode`.
        """
        ids: list[int] = []
        shared = 0  # tokens without text at the end of `ids`
        left = len(tokens)
        for known, group in groupby(tokens, lambda token: token.id >= 0):
            members = list(group)
            left -= len(members)
            if known:
                ids += [token.id for token in members]
                shared = sum(1 for _ in takewhile(lambda token: not token.text, members[::-1]))
            else:
                text = text_of(members)
                ids[len(ids) - shared :] = await self.encode(text, closing="" if left else closing)
        return ids

    async def _spell(self, text: str) -> tuple[Token, ...]:
        ids = await self.encode(text)
        if not ids:
            return ()
        pieces = await self.pieces(ids)
        spelt = spell(text, ids, [pieces[number] for number in ids])
        return tuple([Token(part, id=number) for part, number in spelt])

    async def _choices(self, choices: tuple[str, ...]) -> Mapping[str, int]:
        """
        Return the token id of each of *choices*. Raise `ConfigurationError` if one takes several.
        """
        numbers = {choice: await self.one_token(choice) for choice in choices}
        wrong = [choice for choice, number in numbers.items() if number < 0]
        if wrong or not numbers:
            names = ", ".join(map(repr, wrong)) or "there are none"
            raise ConfigurationError(
                f"choices have to be single tokens of the {self._call.role} model: {names}"
            )
        return numbers

    async def _prefix(self, conversation: Conversation) -> BegunPrompt:
        messages, tools, thinks = conversation
        shown = await self._conversation(messages, tools)
        prompt = await self.decode(shown.last(LAST_TOKENS))
        begun = self.template.begin(prompt, thinks=thinks)
        added = begun.removeprefix(prompt)
        if tools:
            added = added.removesuffix(self.template.head)
        ids = shown.plus(await self.literally(added))
        return BegunPrompt(ids, self.template.opens(begun))

    async def _conversation(self, messages: Messages, tools: Tools) -> EncodedPrompt:
        """
        Encode *messages* and *tools* as the template shows them.

        A template that refuses system messages after the first turn gets all of them as the first
        turn, as vLLM does it in Anthropic's API.
        """
        leading = with_leading_system(messages)
        if self._system_first or messages == leading:
            return await self._as_shown(leading, tools)
        try:
            return await self._as_shown(messages, tools)
        except ContextTooLong:
            raise
        except EndpointRejected:
            shown = await self._as_shown(leading, tools)
        self._system_first = True
        return shown

    async def _as_shown(self, messages: Messages, tools: Tools) -> EncodedPrompt:
        return await self.rendered(
            [message_fields(message) for message in messages],
            [*map(tool_fields, tools)],
            kept=self._shown_marks,
        )

    @property
    def _shown_marks(self) -> Sequence[str]:
        """The marks that chat templates look for in the assistant's content, to leave parts out."""
        markers = self.template.markers
        if markers.opens_message:
            return ()
        marks = (markers.opening, markers.closing, self.template.head, self.template.ending)
        return [mark.strip() for mark in marks if mark.strip()]

    async def _by_effect(self, shown: Template) -> Template:
        """
        Learn from the first words of an answer whether a model thinks whose template shows no
        block.
        """
        written = await self._first_words()
        found = shown.after(written)
        mark = mark_after(written)
        if mark and not found.thinks and not shown.head.strip().startswith(mark):
            log.warning(
                "the %s model at %s begins its answer with %s: if that opens its thinking, set"
                ' marks = ["%s", "..."] in [%s], with the text that closes it',
                *(self._call.role, self._call.url, mark, mark, self._call.role),
            )
        return found

    async def _first_words(self) -> str:
        """Have the model answer a plain question, greedily, and return the first words."""
        prompt = await self.render(PLAIN_QUESTION)
        body = completion_body(self.model, prompt, GREEDY, FIRST_TOKENS)
        reply = await self.connection.post(self._call, COMPLETIONS, body)
        with reading(self._call, "text", reply):
            return str(reply["choices"][0]["text"])


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A chain and its ids."""

    chain: Chain
    """The chain."""
    prompt: EncodedPrompt
    """The ids of the whole chain."""
    counts: array[int]
    """The tokens up to the end of the conversation, and up to the end of each step."""
    sizes: array[int]
    """The bytes of the JSON up to the same places."""

    @classmethod
    def begun(cls, chain: Chain, prefix: EncodedPrompt) -> Self:
        """Begin *chain* with the ids of its conversation."""
        beginning = replace(chain, steps=())
        return cls(beginning, prefix, array("q", [prefix.count]), array("q", [prefix.size]))

    def extended(self, chain: Chain, shared: int, steps: Iterable[EncodedPrompt]) -> Self:
        """Return *chain*, which has the first *shared* steps of this one and then *steps*."""
        counts = self.counts[: shared + 1]
        sizes = self.sizes[: shared + 1]
        prompt = self.prompt.beginning(counts[-1], sizes[-1])
        for step in steps:
            prompt = prompt.followed(step)
            counts.append(prompt.count)
            sizes.append(prompt.size)
        return type(self)(chain, prompt, counts, sizes)


def with_leading_system(messages: Messages) -> Messages:
    """Return *messages* with all system messages as one, at the beginning."""
    system = [message.content for message in messages if message.role == "system"]
    others = tuple([message for message in messages if message.role != "system"])
    return (Message("system", "\n".join(system)), *others) if system else others


class ChainIds:
    """
    The ids of the chain of one run, which grows. Steps of the chain before are not encoded again.

    *encoder* returns the encoder of the served model: another one after a restart of the server.
    """

    def __init__(self, encoder: Callable[[], ModelTokenizer]) -> None:
        self._current = encoder
        self._encoder = encoder()
        self._known: _Encoded | None = None

    async def __call__(self, chain: Chain) -> EncodedPrompt:
        """Encode *chain*. Tokens that were written in this vocabulary keep their ids."""
        if self._current() is not self._encoder:
            self._encoder = self._current()
            self._known = None
        encoder = self._encoder
        marked = await encoder.marked(chain)
        known = self._known  # Other calls may change it from here on.
        if known is None or not marked or _beginning(known.chain) != _beginning(chain):
            prefix = await encoder.prefix(chain.messages, chain.tools, thinks=chain.thinks)
            known = _Encoded.begun(chain, prefix)
        shared = shared_length(known.chain.steps, chain.steps)
        thinking = chain.totals.thinking
        last_thought = -1 if thinking is None else thinking.count - 1
        added: list[EncodedPrompt] = []
        for index, step in enumerate(chain.steps[shared:], shared):
            markers = await encoder.markers(chain) if index == last_thought else None
            ids = await encoder.step(
                step,
                closes=markers,
                marked=marked,
                calls=bool(chain.tools),
            )
            added.append(EncodedPrompt.of(ids))
        known = known.extended(chain, shared, added)
        # How a step is encoded may depend on later steps if the model has no thinking block.
        self._known = known if marked else None
        return known.prompt


def _beginning(chain: Chain) -> tuple[object, ...]:
    return chain.messages, chain.tools, chain.thinks
