"""Chains to token ids, by one model's tokenizer and chat template, with one request per text."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import groupby, takewhile
from typing import Self, TypeAlias

from ...chain import THINK_END, Chain, Message, Step, Token, Tokens, Tool
from ...endpoints.chat_template import CONVERSATIONS, PLAIN_QUESTION, Messages, Template, cut
from ...endpoints.settings import GREEDY, Endpoint
from ...errors import ConfigurationError, ContextTooLong, EndpointRejected, MissingCapability
from ...markers import ThinkingMarkers, mark_after, opened_by, opens_block
from .bodies import (
    COMPLETIONS,
    completion_body,
    tokenize_body,
    tokenize_messages_body,
)
from .client import Connection
from .http_errors import reading
from .prompts import EncodedPrompt
from .replies import spell
from .text_encoder import TEXTS, AsyncCache, TextEncoder
from .tool_protocol import message_fields, tool_fields

log = logging.getLogger(__name__)

# entries of the caches
CONVERSATIONS_KEPT = 256
CHOICES_KEPT = 64
LAST_WORDS = 96  # tokens; the end of a prompt that says whether a block is open
FIRST_WORDS = 16  # tokens; a model that thinks opens its block within them

Conversation: TypeAlias = tuple[tuple[Message, ...], tuple[Tool, ...], bool]
"""What a chain begins with: messages, tools, and whether the model may think."""

PROBE = (
    "The quick brown fox; don't stop: 0123456789 3.14159 1,000,000 ... \n\n\n    def"
    " f(x):\n\treturn x**2 != -1  # ok?"
    "\\frac{a}{b} \\boxed{42} $\\sqrt{2}$ Wait, Hmm. naïve Größe Ελληνικά русский 你好世界 日本語"
    " 한국어 🙂👍🏽 "
    "<think></think><s></s><|endoftext|><|im_start|><|im_end|><|eot_id|><|begin_of_text|><|end_of_text|>"
    "<|start_header_id|><|end_header_id|><\uff5cUser\uff5c><\uff5cAssistant\uff5c><\uff5cend\u2581of\u2581sentence\uff5c>"
)
"""A text that different tokenizers are unlikely to encode to the same ids."""


class ModelTokenizer(TextEncoder):
    """
    The tokenizer and the chat template of one served model.

    *vocabulary* is equal for models that encode every text to the same ids. *ending_id* is the one
    token that ends a reply; -1 if that takes several. *marks* are the spellings, by their ids, of
    that and of the end of the thinking. *room* is the longest sequence that the model takes, in
    tokens. *faithful*: the rendered chat template, encoded as text, gives the ids of the rendering.
    """

    vocabulary: str
    template: Template
    ending_id: int
    marks: Mapping[int, str]
    room: int
    faithful: bool
    rendered_last: list[int]  # the ids of the last of `CONVERSATIONS`

    def __init__(self, connection: Connection, model: str, settings: Endpoint) -> None:
        super().__init__(connection, model)
        self._settings = settings
        self.spelt = AsyncCache(self._spell, TEXTS)
        self._prefixes = AsyncCache(self._prefix, CONVERSATIONS_KEPT)
        self._same: dict[object, tuple[Conversation, tuple[EncodedPrompt, bool]]] = {}
        self.choices = AsyncCache(self._choices, CHOICES_KEPT)
        self._turns: frozenset[int] = frozenset()  # the special tokens between turns
        self._system_first = False  # whether the template refuses later system messages

    async def learn(self) -> None:
        """
        Learn the vocabulary and the chat template. Raise `MissingCapability` if the template cannot
        be learnt.
        """
        ids, self.room = await self.tokenize(tokenize_body(self._model, PROBE))
        self.vocabulary = blake2b(repr(ids).encode(), digest_size=8).hexdigest()
        rendered = [
            await self._shown(messages, generate=generate) for messages, generate in CONVERSATIONS
        ]
        self.rendered_last = rendered[-1]
        texts = [await self.decode(ids) for ids in rendered]
        self.faithful = list(await self._encode(texts[-1])) == rendered[-1]
        if not self.faithful:
            await self.learn_marks(number for ids in rendered for number in ids)
            self.faithful = list(await self._encode(texts[-1])) == rendered[-1]
        try:
            shown = cut(texts, self._settings.marks)
            found = await self._by_effect(shown) if shown.source == "unknown" else shown
            self.template = found.overridden(self._settings.thinks)
        except MissingCapability as exc:
            raise MissingCapability(
                f"the {self._call.role} model at {self._call.url}: {exc}"
            ) from exc
        self.ending_id = await self.one_token(self.template.ending)
        closing = self.template.markers.closing
        self.marks = {await self.one_token(closing): closing, self.ending_id: self.template.ending}
        block = await self.literally(self.template.markers.opening + self.template.markers.closing)
        between = await self.literally(self.template.turn + self.template.answer)
        self._turns = frozenset(await self._mark_ids(between)) - frozenset(block)

    async def _shown(self, messages: Messages, *, generate: bool) -> list[int]:
        """
        Render one of `CONVERSATIONS`, or the last one in its place.

        Mistral's and DeepSeek's own templates refuse some replies at the end of a conversation:
        another question follows then. Mistral's older ones refuse all reasoning.
        """
        last = CONVERSATIONS[-1][0]
        template = self._settings.template
        for shown, prompted in ((messages, generate), ((*messages, last[-1]), True)):
            try:
                return await self.render(shown, generate=prompted, template=template)
            except EndpointRejected:
                if generate:
                    raise
        return await self.render(last, template=template)

    async def one_token(self, mark: str) -> int:
        """The id of *mark*; -1 if it takes several tokens, or none."""
        ids = await self.literally(mark) if mark else ()
        return ids[0] if len(ids) == 1 else -1

    async def changed(self) -> bool:
        """
        Whether the server has another vocabulary, chat template or context than when it was learnt.
        """
        messages, generate = CONVERSATIONS[-1]
        body = tokenize_messages_body(
            self._model, messages, generate=generate, template=self._settings.template
        )
        return await self.tokenize(body) != (self.rendered_last, self.room)

    async def encode(self, text: str, *, closing: str = "") -> tuple[int, ...]:
        """
        Encode *text* of a chain; the mark *closing*, if given, stands for an end of the thinking at
        its end.
        """
        if closing and text.endswith(THINK_END):
            return await self.between("", text.removesuffix(THINK_END), closing)
        return await self.between("", text)

    async def question(self, question: str, opening: str) -> tuple[int, ...]:
        """
        Encode what follows the steps when a judge answers *question*, beginning with *opening*:
        `Template.ask`.
        """
        answer = self.template.headed(self.template.answer)
        return await self.between(self.template.turn, question, answer + opening)

    async def prefix(
        self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = (), *, thinks: bool = True
    ) -> EncodedPrompt:
        """
        Encode what stands before the first step: the conversation, with the *tools* that the
        template shows.

        Without *thinks*, a thinking block that would be open is closed.
        """
        return (await self._begun((messages, tools, thinks)))[0]

    async def _begun(self, conversation: Conversation) -> tuple[EncodedPrompt, bool]:
        """
        Look *conversation* up by the objects that it consists of, and then by what they say.

        To hash thousands of messages takes longer than the rest of a step.
        """
        messages, tools, thinks = conversation
        objects = id(messages), id(tools), thinks
        if objects not in self._same:
            # The conversation is kept with its prompt: its objects keep their ids.
            self._same[objects] = conversation, await self._prefixes(conversation)
        if len(self._same) > CONVERSATIONS_KEPT:
            self._same.pop(next(iter(self._same)))
        return self._same[objects][1]

    async def opens(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> bool:
        """Whether the model thinks in a block of its own before it answers this conversation."""
        return (await self._begun((messages, tools, True)))[1]

    async def thinking(self, chain: Chain) -> bool:
        """
        Whether what this model writes next in *chain* is in its thinking block, whose mark then
        ends the step.
        """
        if chain.closed:
            return False
        opened = chain.thinks and await self.opens(chain.messages, chain.tools)
        return opened or opens_block(chain.text)

    async def markers(self, chain: Chain) -> ThinkingMarkers:
        """
        The markers of the thinking block of *chain*: the template's, but for a block that the text
        itself opens.
        """
        opened = chain.thinks and await self.opens(chain.messages, chain.tools)
        return self.template.markers if opened else opened_by(chain.text) or self.template.markers

    async def chain(self, chain: Chain) -> list[int]:
        """Encode a whole chain; tokens that were written in this vocabulary keep their ids."""
        ids = (await self.prefix(chain.messages, chain.tools, thinks=chain.thinks)).ids
        marked = await self.marked(chain)
        markers = await self.markers(chain)
        last = chain.totals.thinking.count - 1 if chain.totals.thinking is not None else -1
        for place, step in enumerate(chain.steps):
            closes = markers if place == last else None
            ids += await self.step(step, closes=closes, marked=marked, calls=bool(chain.tools))
        return ids

    async def marked(self, chain: Chain) -> bool:
        """
        Whether this model reads where the thinking of *chain* ended: it has a thinking block, too.
        """
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
        Encode *step* of a chain; if it *closes* a block with these markers, with what stands before
        the answer.

        Without *marked*, leave out the mark, as this model has no thinking block. An answer that
        *calls* tools perhaps begins as the model decides.
        """
        if closes is None:
            return await self._step(step)
        if not marked:
            return await self._step(step.cut(len(step.text) - len(THINK_END)))
        ids = await self._step(step, closing=closes.closing)
        handover = "" if calls else closes.handover
        return [*ids, *await self.literally(handover)] if handover else ids

    async def empty_block(self) -> tuple[int, ...]:
        """Encode an empty thinking block, after which a parser of answers expects no thinking."""
        markers = self.template.markers
        return await self.literally(f"{markers.opening}\n\n{markers.closing}\n\n")

    async def begun(self, step: Step) -> tuple[Token, ...]:
        """
        Return the tokens of *step*, which a write continues; text without ids of this vocabulary is
        encoded.
        """
        if step.vocabulary != self.vocabulary or not step.tokens:
            return await self.spelt(step.text)
        tokens: list[Token] = []
        for token in step.tokens:
            if token.id >= 0:
                tokens.append(token)
                continue
            while tokens and token.text and not tokens[-1].text:
                tokens.pop()  # the first bytes of a character that *token* holds as text
            spelt = await self.spelt(token.text)
            tokens += [replace(token, id=spelt[0].id)] if len(spelt) == 1 else spelt
        return tuple(tokens)

    async def _step(self, step: Step, *, closing: str = "") -> Sequence[int]:
        if step.vocabulary != self.vocabulary or not step.tokens:
            return await self.encode(step.text, closing=closing)
        tokens = self._without_turns(step)
        ids = tokens.ids
        return ids if -1 not in ids else await self._mixed(tokens, closing=closing)

    def _without_turns(self, step: Step) -> Tokens:
        """
        Make text of the special tokens of *step* that stand between turns; the end of the thinking
        stays.
        """
        tokens = Tokens.of(step.tokens)
        if self._turns.isdisjoint(tokens.ids):
            return tokens
        left = len(step.reasoning)
        checked = list[Token]()
        for token in tokens:
            left -= len(token.text)
            checked.append(
                replace(token, id=-1)
                if token.id in self._turns and token.text and left >= 0
                else token
            )
        return Tokens.of(checked)

    async def _mixed(self, tokens: Sequence[Token], *, closing: str) -> list[int]:
        """
        Encode the text of tokens without an id; tokens without text before them are the first bytes
        of that text.

        *closing* is that of `encode`.
        """
        ids: list[int] = []
        shared = 0
        left = len(tokens)
        for known, group in groupby(tokens, lambda token: token.id >= 0):
            members = list(group)
            left -= len(members)
            if known:
                ids += [token.id for token in members]
                shared = len(list(takewhile(lambda token: not token.text, reversed(members))))
            else:
                text = "".join(token.text for token in members)
                ids[len(ids) - shared :] = await self.encode(text, closing="" if left else closing)
        return ids

    async def _spell(self, text: str) -> tuple[Token, ...]:
        ids = await self.encode(text)
        pieces = await self.pieces(ids)
        spelt = spell(text, ids, [pieces[number] for number in ids]) if ids else ()
        return tuple([Token(part, id=number) for part, number in spelt])

    async def _choices(self, choices: tuple[str, ...]) -> Mapping[str, int]:
        """
        The token id of each of *choices*. Raise `ConfigurationError` if one is not a single token.
        """
        encoded = {choice: await self.literally(choice) for choice in choices}
        wrong = [choice for choice, ids in encoded.items() if len(ids) != 1]
        if wrong or not encoded:
            names = ", ".join(map(repr, wrong)) or "there are none"
            raise ConfigurationError(
                f"choices have to be single tokens of the {self._call.role} model: {names}"
            )
        return {choice: ids[0] for choice, ids in encoded.items()}

    async def _prefix(self, conversation: Conversation) -> tuple[EncodedPrompt, bool]:
        """
        Encode a conversation and its tools; also say whether the thinking block is open after it.
        """
        messages, tools, thinks = conversation
        shown = await self._conversation(messages, tools)
        prompt = await self.decode(shown.last(LAST_WORDS))
        begun = self.template.begin(prompt, thinks=thinks)
        added = begun.removeprefix(prompt).removesuffix(self.template.head if tools else "")
        return shown.plus(await self.literally(added)), self.template.opens(begun)

    async def _conversation(
        self, messages: tuple[Message, ...], tools: tuple[Tool, ...]
    ) -> EncodedPrompt:
        """
        Encode *messages* and *tools* as the template shows them.

        A template that refuses system messages after the first turn gets all of them as the first
        turn, as vLLM does it in Anthropic's API.
        """
        leading = with_leading_system(messages)
        if self._system_first:
            messages = leading
        try:
            return await self._as_shown(messages, tools)
        except EndpointRejected as exc:
            if isinstance(exc, ContextTooLong) or messages == leading:
                raise
        shown = await self._as_shown(leading, tools)
        self._system_first = True
        return shown

    async def _as_shown(
        self, messages: tuple[Message, ...], tools: tuple[Tool, ...]
    ) -> EncodedPrompt:
        return await self.rendered(
            [message_fields(message) for message in messages],
            [*map(tool_fields, tools)],
            template=self._settings.template,
            kept=self._shown_marks,
        )

    @property
    def _shown_marks(self) -> Sequence[str]:
        """The marks for which chat templates look in what the assistant said, to leave parts out."""
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
                " marks = [%s, %s] in [%s], with the text that closes it",
                *(
                    self._call.role,
                    self._call.url,
                    mark,
                    f'"{mark}"',
                    '"..."',
                    self._call.table or self._call.role,
                ),
            )
        return found

    async def _first_words(self) -> str:
        """Have the model answer a plain question, greedily, and return the first words."""
        prompt = await self.render(PLAIN_QUESTION, template=self._settings.template)
        body = completion_body(self._model, prompt, GREEDY, FIRST_WORDS)
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
    """The number of tokens up to the end of the conversation, and of each step."""
    sizes: array[int]
    """The bytes of the JSON of these tokens."""

    @classmethod
    def begun(cls, chain: Chain, prefix: EncodedPrompt) -> Self:
        """Begin *chain* with the ids of its conversation."""
        beginning = replace(chain, steps=())
        return cls(beginning, prefix, array("q", [prefix.count]), array("q", [prefix.size]))

    def extended(self, chain: Chain, shared: int, steps: Iterable[EncodedPrompt]) -> Self:
        """Keep the first *shared* steps, and add the *steps* that *chain* has after them."""
        counts = self.counts[: shared + 1]
        sizes = self.sizes[: shared + 1]
        prompt = self.prompt.beginning(counts[-1], sizes[-1])
        size = sizes[-1]
        for step in steps:
            prompt = prompt.followed(step)
            size += step.size + (1 if counts[-1] and step.count else 0)
            sizes.append(size)
            counts.append(prompt.count)
        return type(self)(chain, prompt, counts, sizes)


def with_leading_system(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return *messages* with all system messages as one, at the beginning."""
    system = [message.content for message in messages if message.role == "system"]
    if not system:
        return messages
    others = [message for message in messages if message.role != "system"]
    return (Message("system", "\n".join(system)), *others)


class ChainIds:
    """
    The ids of the chain of one run, which grows: the steps that the chain before had too are not
    encoded again.

    *encoder* returns the encoder of the served model, which is another one if the server was
    started again.
    """

    def __init__(self, encoder: Callable[[], ModelTokenizer]) -> None:
        self._current = encoder
        self._encoder = encoder()
        self._known: _Encoded | None = None

    async def __call__(self, chain: Chain) -> EncodedPrompt:
        """Return the ids that `ModelTokenizer.chain` returns for *chain*."""
        if self._current() is not self._encoder:
            self._encoder = self._current()
            self._known = None
        encoder = self._encoder
        # How a step is encoded may depend on the rest of the chain then.
        if not await encoder.marked(chain):
            return EncodedPrompt.of(await encoder.chain(chain))
        known = self._known  # Other calls may change it from here on.
        if known is None or _begun(known.chain) != _begun(chain):
            prefix = await encoder.prefix(chain.messages, chain.tools, thinks=chain.thinks)
            known = _Encoded.begun(chain, prefix)
        shared = _shared(known.chain.steps, chain.steps)
        added = list[EncodedPrompt]()
        last = chain.totals.thinking.count - 1 if chain.totals.thinking is not None else -1
        for place, step in enumerate(chain.steps[shared:], shared):
            markers = await encoder.markers(chain) if place == last else None
            ids = await encoder.step(step, closes=markers, calls=bool(chain.tools))
            added.append(EncodedPrompt.of(ids))
        self._known = known = known.extended(chain, shared, added)
        return known.prompt


def _begun(chain: Chain) -> tuple[object, ...]:
    """What a chain begins with."""
    return chain.messages, chain.tools, chain.thinks


def _shared(one: Sequence[Step], other: Sequence[Step]) -> int:
    """
    How many steps *one* and *other* begin with alike; steps that are the same object compare fast.
    """
    least = 0
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
