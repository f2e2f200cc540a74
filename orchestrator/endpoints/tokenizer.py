"""Chains to token ids, by one model's tokenizer and chat template, with one request per text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import groupby, takewhile

from ..chain import THINK_END, Chain, Message, Step, Token, Tool
from ..errors import ConfigurationError, EndpointRejected, MissingCapability
from ..markers import ThinkingMarkers, mark_after, opened_by, opens_block
from .chat_template import CONVERSATIONS, PLAIN_QUESTION, Messages, Template, cut
from .client import Connection
from .settings import Endpoint
from .text_encoder import TEXTS, AsyncCache, TextEncoder
from .tool_protocol import message_fields, tool_fields
from .vllm_protocol import (
    COMPLETIONS,
    GREEDY,
    EncodedPrompt,
    completion_body,
    reading,
    spell,
    tokenize_body,
    tokenize_messages_body,
)

log = logging.getLogger(__name__)

CONVERSATIONS_KEPT, CHOICES_KEPT = 256, 64  # entries of the caches
LAST_WORDS = 96  # tokens; the end of a prompt that says whether a block is open
FIRST_WORDS = 16  # tokens; a model that thinks opens its block within them

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
        self.choices = AsyncCache(self._choices, CHOICES_KEPT)
        self._turns: frozenset[int] = frozenset()  # the special tokens between turns

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
        last, template = CONVERSATIONS[-1][0], self._settings.template
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
    ) -> tuple[int, ...]:
        """
        Encode what stands before the first step: the conversation, with the *tools* that the
        template shows.

        Without *thinks*, a thinking block that would be open is closed.
        """
        return (await self._prefixes((messages, tools, thinks)))[0]

    async def opens(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> bool:
        """Whether the model thinks in a block of its own before it answers this conversation."""
        return (await self._prefixes((messages, tools, True)))[1]

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
        ids = list(await self.prefix(chain.messages, chain.tools, thinks=chain.thinks))
        marked, markers = await self.marked(chain), await self.markers(chain)
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
        ids, handover = (
            await self._step(step, closing=closes.closing),
            ("" if calls else closes.handover),
        )
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
        ids = [token.id for token in tokens]
        return ids if -1 not in ids else await self._mixed(tokens, closing=closing)

    def _without_turns(self, step: Step) -> Sequence[Token]:
        """
        Make text of the special tokens of *step* that stand between turns; the end of the thinking
        stays.
        """
        tokens = step.tokens
        if self._turns.isdisjoint(token.id for token in tokens):
            return tokens
        left, checked = len(step.reasoning), list[Token]()
        for token in tokens:
            left -= len(token.text)
            checked.append(
                replace(token, id=-1)
                if token.id in self._turns and token.text and left >= 0
                else token
            )
        return checked

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

    async def _prefix(
        self, conversation: tuple[tuple[Message, ...], tuple[Tool, ...], bool]
    ) -> tuple[tuple[int, ...], bool]:
        """
        Encode a conversation and its tools; also say whether the thinking block is open after it.
        """
        messages, tools, thinks = conversation
        ids = await self.rendered(
            [message_fields(message) for message in messages],
            [*map(tool_fields, tools)],
            template=self._settings.template,
            kept=self._shown_marks,
        )
        prompt = await self.decode(ids[-LAST_WORDS:])
        begun = self.template.begin(prompt, thinks=thinks)
        added = begun.removeprefix(prompt).removesuffix(self.template.head if tools else "")
        return (*ids, *await self.literally(added)), self.template.opens(begun)

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
        found, mark = shown.after(written), mark_after(written)
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
        self._chain: Chain | None = None
        self._parts: list[EncodedPrompt] = []  # the messages, then each step

    async def __call__(self, chain: Chain) -> EncodedPrompt:
        """Return the ids that `ModelTokenizer.chain` returns for *chain*."""
        if self._current() is not self._encoder:
            self._encoder, self._chain = self._current(), None
        # together: others change them meanwhile
        encoder, known, parts = self._encoder, self._chain, self._parts
        # How a step is encoded may depend on the rest of the chain then.
        if not await encoder.marked(chain):
            return EncodedPrompt.of(await encoder.chain(chain))
        if known is not None and _begun(known) == _begun(chain):
            shared = _shared(known.steps, chain.steps)
            parts = parts[: shared + 1]
        else:
            prefix = await encoder.prefix(chain.messages, chain.tools, thinks=chain.thinks)
            shared, parts = 0, [EncodedPrompt.of(prefix)]
        last = chain.totals.thinking.count - 1 if chain.totals.thinking is not None else -1
        for place, step in enumerate(chain.steps[shared:], shared):
            markers = await encoder.markers(chain) if place == last else None
            parts.append(
                EncodedPrompt.of(await encoder.step(step, closes=markers, calls=bool(chain.tools)))
            )
        self._chain, self._parts = chain, parts
        return EncodedPrompt.joined(parts)


def _begun(chain: Chain) -> tuple[object, ...]:
    """What a chain begins with."""
    return chain.messages, chain.tools, chain.thinks


def _shared(one: Sequence[Step], other: Sequence[Step]) -> int:
    """
    How many steps *one* and *other* begin with alike; steps that are the same object compare fast.
    """
    least, most = 0, min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
