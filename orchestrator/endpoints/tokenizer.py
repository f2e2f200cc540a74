"""Chains to token ids, by one model's tokenizer and chat template, with one request per text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import groupby, takewhile
from typing import Any

from ..chain import THINK_END, Chain, Message, Step, Token, Tool
from ..errors import ConfigurationError, MalformedReply, MissingCapability
from ..markers import opens_block
from .chat_template import CONVERSATIONS, PLAIN_QUESTION, Template, cut
from .client import Connection
from .settings import Endpoint
from .text_encoder import TEXTS, AsyncCache, TextEncoder
from .tool_protocol import message_fields, tool_fields
from .vllm_protocol import (
    COMPLETIONS,
    GREEDY,
    EncodedPrompt,
    completion_body,
    spell,
    tokenize_body,
    tokenize_messages_body,
)

CONVERSATIONS_KEPT, CHOICES_KEPT = 256, 64  # entries of the caches
FIRST_WORDS = 16  # tokens; a model that thinks opens its block within them

PROBE = (
    "The quick brown fox; don't stop: 0123456789 3.14159 1,000,000 ... \n\n\n    def f(x):\n\treturn x**2 != -1  # ok?"
    "\\frac{a}{b} \\boxed{42} $\\sqrt{2}$ Wait, Hmm. naïve Größe Ελληνικά русский 你好世界 日本語 한국어 🙂👍🏽 "
    "<think></think><s></s><|endoftext|><|im_start|><|im_end|><|eot_id|><|begin_of_text|><|end_of_text|>"
    "<|start_header_id|><|end_header_id|><\uff5cUser\uff5c><\uff5cAssistant\uff5c><\uff5cend\u2581of\u2581sentence\uff5c>"
)
"""A text that different tokenizers are unlikely to encode to the same ids."""


class ModelTokenizer(TextEncoder):
    """
    The tokenizer and the chat template of one served model.

    *vocabulary* is equal for models that encode every text to the same ids. *room* is the longest sequence that the
    model takes, in tokens. *faithful*: the rendered chat template, encoded as text, gives the ids of the rendering.
    """

    vocabulary: str
    template: Template
    room: int
    faithful: bool
    rendered_last: list[int]  # the ids of the last of `CONVERSATIONS`

    def __init__(self, connection: Connection, model: str) -> None:
        super().__init__(connection, model)
        self.spelt = AsyncCache(self._spell, TEXTS)
        self._prefixes = AsyncCache(self._prefix, CONVERSATIONS_KEPT)
        self.choices = AsyncCache(self._choices, CHOICES_KEPT)
        self._turns: frozenset[int] = frozenset()  # the special tokens between turns

    async def learn(self) -> None:
        """Learn the vocabulary and the chat template. Raise `MissingCapability` if the template cannot be learnt."""
        ids, self.room = await self.tokenize(tokenize_body(self._model, PROBE))
        self.vocabulary = blake2b(repr(ids).encode(), digest_size=8).hexdigest()
        rendered = [
            await self.render(messages, generate=generate, template=self._variables)
            for messages, generate in CONVERSATIONS
        ]
        self.rendered_last = rendered[-1]
        texts = [await self.decode(ids) for ids in rendered]
        try:
            shown = cut(texts)
            found = shown.after(await self._first_words()) if shown.source == "unknown" else shown
            self.template = found.overridden(self._thinks)
        except MissingCapability as exc:
            raise MissingCapability(f"the {self._call.role} model at {self._call.url}: {exc}") from exc
        self.faithful = list(await self.literally(texts[-1])) == rendered[-1]
        block = await self.literally(self.template.markers.opening + self.template.markers.closing)
        between = await self.literally(self.template.turn + self.template.answer)
        self._turns = frozenset(await self._mark_ids(between)) - frozenset(block)

    async def changed(self) -> bool:
        """Whether the server has another vocabulary, chat template or context than when it was learnt."""
        messages, generate = CONVERSATIONS[-1]
        body = tokenize_messages_body(self._model, messages, generate=generate, template=self._variables)
        return await self.tokenize(body) != (self.rendered_last, self.room)

    def on(self, connection: Connection) -> ModelTokenizer:
        """Return an encoder that has learnt the same, and sends its requests over *connection*."""
        other = ModelTokenizer(connection, self._model)
        other.vocabulary, other.template, other.room = self.vocabulary, self.template, self.room
        other.faithful, other.rendered_last, other._turns = self.faithful, self.rendered_last, self._turns
        return other

    async def encode(self, text: str) -> tuple[int, ...]:
        """Encode *text* of a chain, with the model's own spelling of `THINK_END`, its only special token."""
        texts = text.split(THINK_END)
        closings = [self.template.closing] * (len(texts) - 1)
        return await self.between("", *(part for pair in zip(texts, [*closings, ""], strict=True) for part in pair))

    async def question(self, question: str, opening: str) -> tuple[int, ...]:
        """Encode what follows the steps when a judge answers *question*, beginning with *opening*: `Template.ask`."""
        return await self.between(self.template.turn, question, self.template.answer + opening)

    async def prefix(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> tuple[int, ...]:
        """Encode what stands before the first step: the conversation, with the *tools* that the template shows."""
        return await self._prefixes((messages, tools))

    async def chain(self, chain: Chain) -> list[int]:
        """Encode a whole chain; tokens that were written in this vocabulary keep their ids."""
        ids = list(await self.prefix(chain.messages, chain.tools))
        marked = self.template.thinks or opens_block(chain.text)
        for step in chain.steps:
            ids += await self.step(step, marked=marked)
        return ids

    async def step(self, step: Step, *, marked: bool = True) -> Sequence[int]:
        """
        Encode *step* of a chain, and what the template puts between the end of the thinking and the answer.

        Without *marked*, leave out `THINK_END`, as this model has no thinking block.
        """
        ids = await self._step(step, marked=marked)
        if self.template.handover and step.text.endswith(THINK_END):
            return [*ids, *await self.literally(self.template.handover)]
        return ids

    async def answer_opening(self) -> tuple[int, ...]:
        """Encode the end of a thinking block, which stands before every answer; () for a model that does not think."""
        return await self.literally(self.template.closing + "\n\n") if self.template.thinks else ()

    async def begun(self, step: Step) -> tuple[Token, ...]:
        """Return the tokens of *step*, which a write continues; text without ids of this vocabulary is encoded."""
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

    async def _step(self, step: Step, *, marked: bool) -> Sequence[int]:
        """Encode *step*; without *marked*, leave out `THINK_END`, as this model has no thinking block."""
        if step.vocabulary != self.vocabulary or not step.tokens:
            return await self.encode(step.text if marked else step.text.replace(THINK_END, ""))
        tokens = self._without_turns(step)
        ids = [token.id for token in tokens]
        return ids if -1 not in ids else await self._mixed(tokens)

    def _without_turns(self, step: Step) -> Sequence[Token]:
        """Make text of the special tokens of *step* that stand between turns; the end of the thinking stays."""
        tokens = step.tokens
        if self._turns.isdisjoint(token.id for token in tokens):
            return tokens
        left, checked = len(step.text) - (len(THINK_END) if step.text.endswith(THINK_END) else 0), list[Token]()
        for token in tokens:
            left -= len(token.text)
            checked.append(replace(token, id=-1) if token.id in self._turns and token.text and left >= 0 else token)
        return checked

    async def _mixed(self, tokens: Sequence[Token]) -> list[int]:
        """Encode the text of tokens without an id; tokens without text before them are the first bytes of that text."""
        ids: list[int] = []
        shared = 0
        for known, group in groupby(tokens, lambda token: token.id >= 0):
            members = list(group)
            if known:
                ids += [token.id for token in members]
                shared = len(list(takewhile(lambda token: not token.text, reversed(members))))
            else:
                ids[len(ids) - shared :] = await self.encode("".join(token.text for token in members))
        return ids

    async def _spell(self, text: str) -> tuple[Token, ...]:
        ids = await self.encode(text)
        pieces = await self.pieces(ids)
        spelt = spell(text, ids, [pieces[number] for number in ids]) if ids else ()
        return tuple([Token(part, id=number) for part, number in spelt])

    async def _choices(self, choices: tuple[str, ...]) -> Mapping[str, int]:
        """The token id of each of *choices*. Raise `ConfigurationError` if one is not a single token."""
        encoded = {choice: await self.literally(choice) for choice in choices}
        wrong = [choice for choice, ids in encoded.items() if len(ids) != 1]
        if wrong or not encoded:
            names = ", ".join(map(repr, wrong)) or "there are none"
            raise ConfigurationError(f"choices have to be single tokens of the {self._call.role} model: {names}")
        return {choice: ids[0] for choice, ids in encoded.items()}

    async def _prefix(self, conversation: tuple[tuple[Message, ...], tuple[Tool, ...]]) -> tuple[int, ...]:
        messages, tools = conversation
        ids = await self.rendered(
            [message_fields(message) for message in messages],
            [*map(tool_fields, tools)],
            template=self._variables,
            kept=() if self.template.handover else (self.template.markers.opening.strip(), self.template.closing),
        )
        return (*ids, *await self.literally(self.template.opened))

    async def _first_words(self) -> str:
        """Have the model answer a plain question, greedily, and return the first words."""
        prompt = await self.render(PLAIN_QUESTION, template=self._variables)
        body = completion_body(self._model, prompt, GREEDY, FIRST_WORDS)
        reply = await self._connection.post(self._call, COMPLETIONS, body)
        try:
            return str(reply["choices"][0]["text"])
        except (LookupError, TypeError) as exc:
            raise self._call.error(MalformedReply, f"{COMPLETIONS} answered {str(reply)[:200]}") from exc

    @property
    def _thinks(self) -> bool | None:
        endpoint = self._connection.endpoint
        return endpoint.thinks if isinstance(endpoint, Endpoint) else None

    @property
    def _variables(self) -> Mapping[str, Any] | None:
        """What the user has the chat template be given."""
        endpoint = self._connection.endpoint
        return endpoint.template if isinstance(endpoint, Endpoint) else None


class ChainIds:
    """
    The ids of the chain of one run, which grows: the steps that the chain before had too are not encoded again.

    *encoder* returns the encoder of the served model, which is another one if the server was started again.
    """

    def __init__(self, encoder: Callable[[], ModelTokenizer]) -> None:
        self._current = encoder
        self._encoder = encoder()
        self._messages: tuple[Message, ...] = ()
        self._tools: tuple[Tool, ...] = ()
        self._steps: tuple[Step, ...] = ()
        self._parts: list[EncodedPrompt] = []  # the messages, then each step

    async def __call__(self, chain: Chain) -> EncodedPrompt:
        """Return the ids that `ModelTokenizer.chain` returns for *chain*."""
        if self._current() is not self._encoder:
            self._encoder, self._parts = self._current(), []
        if not self._encoder.template.thinks:  # How a step is encoded depends on the rest of the chain then.
            return EncodedPrompt.of(await self._encoder.chain(chain))
        if self._parts and (self._messages, self._tools) == (chain.messages, chain.tools):
            shared = _shared(self._steps, chain.steps)
            parts = self._parts[: shared + 1]
        else:
            shared, parts = 0, [EncodedPrompt.of(await self._encoder.prefix(chain.messages, chain.tools))]
        for step in chain.steps[shared:]:
            parts.append(EncodedPrompt.of(await self._encoder.step(step)))
        self._messages, self._tools, self._steps, self._parts = chain.messages, chain.tools, chain.steps, parts
        return EncodedPrompt.joined(parts)


def _shared(one: Sequence[Step], other: Sequence[Step]) -> int:
    """How many steps *one* and *other* begin with alike; steps that are the same object compare fast."""
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
