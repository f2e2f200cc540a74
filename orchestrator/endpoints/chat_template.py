r"""
The text around the turns of a conversation, learnt by rendering sentinels. Pure: text in, text out.

A chain is laid out as ``prefix + steps``:

- ``prefix`` is what the chat template renders for the messages with ``add_generation_prompt``, and
  then `Template.opened`: the assistant's turn and its thinking block are open.
- ``steps`` is the joined text of the steps. The thinking stays open.

A judge's question about a chain is laid out as
``prefix + steps + turn + question + answer + opening``:

- ``turn`` ends the assistant's turn and opens a user's turn. The thinking is not closed.
- ``question`` is the text, unchanged.
- ``answer`` ends the user's turn and opens the assistant's. If the model thinks, the answer has a
  thinking block that is closed at once: ``<think>``, a blank line, ``</think>``, a blank line.
- ``opening`` is the first words of the answer, unchanged. The model continues with one token.

For a template like Qwen3's that is, with the user's words in capitals::

    <|im_start|>user\nPROBLEM<|im_end|>\n<|im_start|>assistant\n<think>\nstep\n\nstep\n\n
    <|im_end|>\n<|im_start|>user\nQUESTION<|im_end|>\n
    <|im_start|>assistant\n<think>\n\n</think>\n\nopening

Whether a model thinks, and by which marks (`ThinkingMarkers`), is found in one of three ways
(`Template.source`):

- *template*: the generation prompt ends in an open block or in an empty one (thinking is switched
  off), or an empty block stands before a finished answer. In the last case the template leaves it
  to the model to open the block, and `Template.opened` opens it in the model's place, so that the
  steps of two models never differ.
- *effect*: the template shows no block, like SmolLM3's and LFM2.5's. The model then answers a plain
  question, and `Template.after` reads the first tokens that it writes.
- *setting*: the user has set ``thinks`` for the endpoint, against the template or the effect.

This holds for a plain question. A conversation may differ: some templates open no block after the
result of a tool, and a ``/no_think`` in a message closes the block at once. `Template.opens` and
`Template.begin` therefore look at the end of each prompt.

The marks are those of a known family, a pair that speaks of thinking (`markers.pairs_in`), the pair
in which the template shows the reasoning of an earlier turn, or those of the setting ``marks``.
Some templates show further marks between the block and the reply, and one after the reply: the
`ThinkingMarkers.handover` and `Template.ending`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from ..errors import MissingCapability
from ..markers import (
    KNOWN,
    THINK,
    ThinkingMarkers,
    begun_marks,
    closing_of,
    mark_after,
    mark_before,
    paired,
    pairs_in,
)

Fields: TypeAlias = Sequence[Mapping[str, Any]]
"""Messages or tools in the form of a chat completion's request."""
Marks: TypeAlias = tuple[str, ...]
"""The texts that open and close the thinking block and, if there are more, the reply."""
Source: TypeAlias = Literal["template", "effect", "setting", "unknown"]
"""How it was found whether a model thinks."""

_FIRST = "stepspecfirst"
_REPLY = "stepspecreply"
_SECOND = "stepspecsecond"
_REASONS = "stepspecreasons"
_FIRST_TURN = ({"role": "user", "content": _FIRST},)
_REPLIED = (*_FIRST_TURN, {"role": "assistant", "content": _REPLY})
_SECOND_TURN = (*_REPLIED, {"role": "user", "content": _SECOND})
_REASONED = (*_FIRST_TURN, {"role": "assistant", "content": _REPLY, "reasoning": _REASONS})
_WRAP = "<answer>"  # Hunyuan's
_WRAPPED = (
    *_FIRST_TURN,
    {"role": "assistant", "content": f"{_WRAP}\n{_REPLY}\n{closing_of(_WRAP)}"},
)

CONVERSATIONS: Sequence[tuple[Fields, bool]] = (
    (_FIRST_TURN, True),
    (_REPLIED, False),
    (_REASONED, False),
    (_WRAPPED, False),
    (_SECOND_TURN, True),
)
"""
The conversations rendered to learn a template: messages, and whether a generation prompt is added.
"""

PLAIN_QUESTION: Fields = ({"role": "user", "content": "What is 17 + 25?"},)
"""The question for a model whose template shows no thinking block."""


@dataclass(frozen=True, slots=True)
class Template:
    """The text that one model's chat template puts around the turns."""

    turn: str
    """Ends the assistant's turn and opens a user's turn."""
    answer: str
    """Ends the user's turn and opens the assistant's, whose thinking is over."""
    opened: str = ""
    """Opens the thinking block after a generation prompt. "": the prompt opens it, or none is."""
    thinks: bool = False
    """Whether the model thinks in a block of its own."""
    markers: ThinkingMarkers = THINK
    """The marks of the thinking block, if the model thinks."""
    skipped: str = field(default="", compare=False)
    """Makes an empty block after a generation prompt. "": there is no block, or one is closed."""
    source: Source = field(default="unknown", compare=False)
    """How it was found whether the model thinks."""
    pairs: tuple[ThinkingMarkers, ...] = field(default=KNOWN, compare=False)
    """All marks that the model may have."""
    head: str = ""
    """Stands before every reply. "": nothing does, as in most templates."""
    ending: str = ""
    """The mark after every reply. "": there is none, as in most templates."""

    @property
    def block(self) -> str:
        """The mark that opens the thinking block; "" if there is none."""
        return self.markers.opening.rstrip() if self.thinks or self.skipped else ""

    def headed(self, prompt: str) -> str:
        """Return *prompt*, which an answer follows, with the part of `head` that it lacks."""
        end = prompt.rstrip()
        head = self.head.strip()
        if not head or end.endswith(head):
            return prompt
        begun = begun_marks(end, head)
        if begun:
            return prompt + head[begun:]
        return prompt + (self.head if prompt == end else self.head.lstrip())

    def opens(self, prompt: str) -> bool:
        """Return whether the thinking block is open after *prompt* and what `begin` adds to it."""
        return self._would_open(prompt) and (self.thinks or self.source != "setting")

    def begin(self, prompt: str, *, thinks: bool = True) -> str:
        """
        Return *prompt*, the rendered messages with a generation prompt, with the block opened.

        Without *thinks*, a block that would be open is closed at once.
        """
        if not self._would_open(prompt):
            return self.headed(prompt)
        shown = self._shows_open(prompt)
        if thinks and self.opens(prompt):
            return prompt if shown else prompt + self.opened
        skipped_opens = self.skipped.lstrip().startswith(self.markers.opening.rstrip())
        if shown != skipped_opens:
            return prompt + self.skipped
        # The prompt opens the block, or not, unlike the prompt of a plain question.
        skipped = self.markers.skipped
        return prompt + (skipped.partition(self.markers.opening)[2] if shown else skipped)

    def _shows_open(self, prompt: str) -> bool:
        """
        Return whether *prompt* ends in an open block.

        The block has to be in the assistant's turn, as users may write the opening mark, too.
        """
        at = self.markers.open_at(prompt)
        turn = self.answer.partition(self.markers.opening.rstrip())[0].strip()
        return at >= 0 and not (turn and turn in prompt[at:])

    def _would_open(self, prompt: str) -> bool:
        if self._shows_open(prompt):
            return True
        return bool(self.opened) and not self.markers.closed_in(prompt)

    def after(self, written: str) -> Template:
        """Return the template of a model that has *written* this after `PLAIN_QUESTION`."""
        if self.source != "unknown":
            return self
        for markers in (*self.pairs, *pairs_in(mark_after(written))):
            opened = markers.begun(written)
            if opened:
                replying = markers.replying(markers.handover or self.head)
                return self._opened_by_the_model(opened, replying, "effect")
        return replace(self, source="effect")

    def overridden(self, thinks: bool | None) -> Template:
        """
        Return the template as the setting *thinks* wants it. None: as it was found.

        Raise `MissingCapability` for a model that has to think while its template has closed the
        block already.
        """
        if thinks is None or thinks == self.thinks:
            return self
        if not thinks:
            return replace(
                self,
                opened=self.skipped,
                thinks=False,
                source="setting",
            )
        if self.source == "template":
            raise MissingCapability(
                "thinks = true is set, but the chat template switches thinking off: pass what"
                " switches it on in the endpoint's template (chat_template_kwargs), for example"
                " template = { enable_thinking = true }, or { thinking = true } for DeepSeek"
            )
        return self._opened_by_the_model(
            f"{self.pairs[0].opening}\n",
            self.pairs[0],
            "setting",
        )

    def _opened_by_the_model(
        self,
        opened: str,
        markers: ThinkingMarkers,
        source: Source,
    ) -> Template:
        """Return the template of a model that writes *opened* itself."""
        space = opened[: len(opened) - len(opened.lstrip())]
        skipped = space + markers.skipped
        return replace(
            self,
            answer=self.answer + skipped,
            opened=opened,
            thinks=True,
            markers=markers,
            skipped=skipped,
            source=source,
        )


def template_from_renderings(rendered: Sequence[str], marks: Marks | None = None) -> Template:
    """
    Make the template from the *rendered* `CONVERSATIONS`. *marks* are the setting of that name.

    Raise `MissingCapability` if the template does not show its turns one after the other, word for
    word.
    """
    question, reply, reasoned, wrapped, second_question = rendered
    [start] = _after(question, _FIRST)
    head, end = _after(reply, _FIRST, _REPLY)
    turn, answer = _after(second_question, _REPLY, _SECOND)
    if not turn or not answer:
        raise MissingCapability(
            "the chat template puts nothing between two turns, so that no question can be asked"
        )
    before_reasons, _, after_reasons = reasoned.partition(_REASONS)
    between = after_reasons.partition(_REPLY)[0]
    reply_head, ending = _around_reply(start, head, end, wrapped)
    if marks is None:
        pairs = (*KNOWN, *_shown_pairs(start, head, before_reasons, between))
    else:
        opening, closing, reply_opening, reply_closing = (*marks, "", "")[:4]
        pairs = (paired(opening, closing).replying(reply_opening),)
        reply_head = reply_opening or reply_head
        ending = reply_closing or ending
    pairs = tuple([_handing_over(pair, start, (between, head), reply_head) for pair in pairs])
    plain = Template(
        turn,
        answer,
        markers=pairs[0],
        pairs=pairs,
        head=reply_head,
        ending=ending,
    )
    for markers in pairs:
        head_of_pair = markers.handover or reply_head
        found = _with_block(replace(plain, markers=markers, head=head_of_pair), start, head)
        if found is not None:
            return replace(found, source="template")
    return plain


def _around_reply(start: str, head: str, end: str, wrapped: str) -> tuple[str, str]:
    """
    Return the marks before a finished reply that the prompt *start* lacks, and the mark after it.

    *head* stands before the reply, and *end* after it.

    "": there are none. A template that leaves a mark out of an earlier turn, as from *wrapped*, has
    its model write that mark.
    """
    if _REPLY in wrapped and _WRAP not in wrapped:
        return f"\n{_WRAP}\n", closing_of(_WRAP)
    last = mark_before(head)
    ending = ""
    if last and end.lstrip().startswith(closing_of(last)):
        ending = closing_of(last)
    marks = head.removeprefix(start) if head.startswith(start) else last
    is_block = any(word in marks.lower() for word in ("think", "thought", "reason"))
    return "" if is_block or last in start else marks, ending


def _handing_over(
    markers: ThinkingMarkers,
    start: str,
    shown: Sequence[str],
    reply_head: str,
) -> ThinkingMarkers:
    """
    Return *markers* with the marks that the texts *shown* have between the thinking and the reply.
    """
    if markers.handover:
        return markers
    for text in shown:
        _, closing, after = text.rpartition(markers.closing)
        if closing and mark_before(after):
            return markers.replying(after)
    return markers.replying(reply_head if markers.open_at(start) >= 0 else "")


def _shown_pairs(start: str, head: str, before: str, between: str) -> Iterator[ThinkingMarkers]:
    """
    Yield the pairs that a template shows and that are not known.

    An earlier turn may have its reasoning after a mark, at the end of *before*, and then a mark and
    perhaps more marks, *between* reasoning and reply. The generation prompt *start* may have an
    opening that speaks of thinking.
    """
    opening = mark_before(before)
    closing = mark_after(between, opening)
    handover = between.lstrip().removeprefix(closing)
    known = any(pair.closing == closing and pair.handover in ("", handover) for pair in KNOWN)
    fits = opening and closing and (mark_before(handover) or not handover.strip())
    if fits and not known and not head.rstrip().endswith(opening):
        yield paired(opening, closing)
    yield from pairs_in(start + head.removeprefix(start))


def disagreement(small: bool, large: bool) -> str:
    """
    Return why two models cannot be a pair, with the cure; "" if they can.

    *small* and *large* say whether the models think. A small model that does not think may draft
    for a large one that does: it drafts as if it answered, and the thinking is closed at the end of
    its turn. The other way round there is no answer: when the small model closes its thinking, the
    large one goes on in the middle of its own answer.
    """
    if not small or large:
        return ""
    return (
        "the small model thinks in a block of its own before it answers, and the large one does"
        " not. Let both think: switch it on in the template (chat_template_kwargs) of [large], for"
        " example template = { enable_thinking = true }, or set thinks = true in [large] if its"
        " chat template does not show the block. Or let neither think: set thinks = false in"
        " [small]"
    )


def _with_block(template: Template, start: str, head: str) -> Template | None:
    """
    Return *template* as that of a model whose renderings show a block with its markers. None: they
    do not.

    *start* is the generation prompt, and *head* the text before a finished answer.
    """
    markers = template.markers
    answer = template.answer
    opened_at = markers.open_at(start)
    if opened_at >= 0:
        begun = start[opened_at:]
        before = _rest(head, start[:opened_at])
        skipped = before if markers.skips(before) else markers.skipped
        closed = begun + markers.closing + markers.handover
        for block in (markers.skipped, skipped):
            if block.startswith(begun):
                closed = block
        answer_opened_at = markers.open_at(answer)
        if answer_opened_at >= 0:
            answer = answer[:answer_opened_at]
        closed = closed.removeprefix(begun)
        return replace(template, answer=answer + skipped, thinks=True, skipped=closed)
    added = _rest(head, start)
    if markers.closed_in(start):
        return template if added.strip() else replace(template, answer=answer + added)
    if not markers.skips(added):
        return None
    return replace(
        template,
        answer=answer + added,
        opened=markers.opened(added),
        thinks=True,
        skipped=added,
    )


def _rest(text: str, beginning: str) -> str:
    """Return what follows *beginning* in *text*; "" if *text* begins otherwise."""
    return text[len(beginning) :] if text.startswith(beginning) else ""


def _after(text: str, *sentinels: str) -> Sequence[str]:
    """Return the texts that follow the *sentinels* in *text*."""
    found = re.fullmatch(".*" + "".join([f"{name}(.*)" for name in sentinels]), text, re.DOTALL)
    if found is None:
        raise MissingCapability(
            f"the chat template leaves out a turn: {' and '.join(sentinels)} in {text!r}"
        )
    return found.groups()
