r"""
The text around the turns of a conversation, learnt by rendering sentinels. Pure: text in, text out.

A chain is laid out as ``prefix + steps``, where

    prefix    is what the chat template renders for the messages with ``add_generation_prompt``,
              followed by `Template.opened`: the assistant's turn and its thinking block are open;
              steps     is the text of the steps, joined. The thinking stays open, whatever is
              appended.

A judge's question about a chain is laid out as ``prefix + steps + turn + question + answer``, which
is

    turn      ends the assistant's turn where the steps end (the thinking is not closed) and opens a
    user's turn; question  the text, unchanged; answer    ends the user's turn and opens the
    assistant's. If the model thinks, the answer's own thinking block is closed at once:
    ``<think>``, a blank line, ``</think>``, a blank line; opening   the first words of the answer,
    unchanged. The model continues with one token.

For a template like Qwen3's that is, with the user's words in capitals::

    <|im_start|>user\nPROBLEM<|im_end|>\n<|im_start|>assistant\n<think>\nstep\n\nstep\n\n
    <|im_end|>\n<|im_start|>user\nQUESTION<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nopening

Whether a model thinks, and by which marks (`ThinkingMarkers`), is found in one of three ways,
`Template.source`:

    template  the generation prompt ends in an open block, or in an empty one (thinking is switched
              off), or an empty block stands before a finished answer. In the last case the template
              leaves it to the model to open the block, and `Template.opened` does it in the model's
              place, so that the steps of two models never differ; effect    the template shows no
              block, like SmolLM3's and LFM2.5's: then the model answers a plain question, and
              `Template.after` reads the first tokens that it writes; setting   the user has set
              ``thinks`` for the endpoint, and that differs from the template or the effect.

That is about a plain question. A conversation may differ: some templates open no block after the
result of a tool, and a ``/no_think`` in a message closes it at once. So `Template.opens` and
`Template.begin` look at the end of each prompt.

The marks are those of a known family, a pair that speaks of thinking (`markers.pairs_in`), the pair
in which the template shows the reasoning of an earlier turn, or those of the setting ``marks``.
Some templates show further marks between that and the reply, and one after it: the
`ThinkingMarkers.handover` and `Template.ending`.
"""

from __future__ import annotations

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

Messages: TypeAlias = Sequence[Mapping[str, Any]]
# what opens and closes the thinking block and, if given, the reply
Marks: TypeAlias = tuple[str, ...]
Source: TypeAlias = Literal["template", "effect", "setting", "unknown"]

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

CONVERSATIONS: Sequence[tuple[Messages, bool]] = (
    *(
        (_FIRST_TURN, True),
        (_REPLIED, False),
        (_REASONED, False),
        (_WRAPPED, False),
        (_SECOND_TURN, True),
    ),
)
"""
The conversations rendered to learn a template: messages, and whether a generation prompt is added.
"""

PLAIN_QUESTION: Messages = ({"role": "user", "content": "What is 17 + 25?"},)
"""The question for a model whose template shows no thinking block."""


@dataclass(frozen=True, slots=True)
class Template:
    """
    The text that one model's chat template puts around the turns; the module's docstring explains
    each piece.

    *markers* are the marks of the thinking block, if the model *thinks*. *skipped* is the text
    that, after the generation prompt, makes an empty block; "" without a block, or if the template
    has closed it already. *pairs* are all marks that the model may have. *head* stands before a
    reply, whether the model thinks or not, and *ending* after it; "" if nothing does, as in most
    templates.
    """

    turn: str
    answer: str
    opened: str = ""
    thinks: bool = False
    markers: ThinkingMarkers = THINK
    skipped: str = field(default="", compare=False)
    source: Source = field(default="unknown", compare=False)
    pairs: tuple[ThinkingMarkers, ...] = field(default=KNOWN, compare=False)
    head: str = ""
    ending: str = ""

    @property
    def block(self) -> str:
        """The mark that opens the thinking block; "" if there is none."""
        return self.markers.opening.rstrip() if self.thinks or self.skipped else ""

    def headed(self, prompt: str) -> str:
        """
        Return *prompt*, after which the model answers at once, with as much of `head` as it does
        not end in.
        """
        end = prompt.rstrip()
        head = self.head.strip()
        if not head or end.endswith(head):
            return prompt
        if begun := begun_marks(end, head):
            return prompt + head[begun:]
        return prompt + (self.head if prompt == end else self.head.lstrip())

    def opens(self, prompt: str) -> bool:
        """
        Whether the thinking block is open after *prompt*, the rendered messages with what `begin`
        adds.
        """
        return self._would_open(prompt) and (self.thinks or self.source != "setting")

    def begin(self, prompt: str, *, thinks: bool = True) -> str:
        """
        Return *prompt*, the rendered messages with a generation prompt, and the opening of the
        thinking block.

        Without *thinks* a block that would be open is closed at once.
        """
        if not self._would_open(prompt):
            return self.headed(prompt)
        shown = self._shows_open(prompt)
        if thinks and self.opens(prompt):
            return prompt if shown else prompt + self.opened
        # not as after a plain question
        if shown == self.skipped.lstrip().startswith(self.markers.opening.rstrip()):
            return prompt + (
                self.markers.skipped.partition(self.markers.opening)[2]
                if shown
                else self.markers.skipped
            )
        return prompt + self.skipped

    def _shows_open(self, prompt: str) -> bool:
        """
        Whether *prompt* ends in an open block: in this turn, as users may write the opening mark,
        too.
        """
        at = self.markers.open_at(prompt)
        turn = self.answer.partition(self.markers.opening.rstrip())[0].strip()
        return at >= 0 and not (turn and turn in prompt[at:])

    def _would_open(self, prompt: str) -> bool:
        if self._shows_open(prompt):
            return True
        return bool(self.opened) and not self.markers.closed_in(prompt)

    def after(self, written: str) -> Template:
        """
        Learn from the text that the model has *written* after `PLAIN_QUESTION` whether it opens a
        block.
        """
        if self.source != "unknown":
            return self
        for markers in (*self.pairs, *pairs_in(mark_after(written))):
            if opened := markers.begun(written):
                return self._opened_by_the_model(
                    opened, markers.replying(markers.handover or self.head), "effect"
                )
        return replace(self, source="effect")

    def overridden(self, thinks: bool | None) -> Template:
        """
        Do as the setting *thinks* says; None leaves everything as it was found.

        Raise `MissingCapability` for a model that has to think while its template has closed the
        block already.
        """
        if thinks is None or thinks == self.thinks:
            return self
        if not thinks:
            return replace(self, opened=self.skipped, thinks=False, source="setting")
        if self.source == "template":
            raise MissingCapability(
                "thinks = true is set, but the chat template switches thinking off: pass what"
                " switches it on in the endpoint's template (chat_template_kwargs), for example"
                " template = { enable_thinking = true }, or { thinking = true } for DeepSeek"
            )
        return self._opened_by_the_model(f"{self.pairs[0].opening}\n", self.pairs[0], "setting")

    def _opened_by_the_model(
        self, opened: str, markers: ThinkingMarkers, source: Source
    ) -> Template:
        skipped = opened[: len(opened) - len(opened.lstrip())] + markers.skipped
        answer = self.answer + skipped
        return replace(
            self,
            answer=answer,
            opened=opened,
            thinks=True,
            markers=markers,
            skipped=skipped,
            source=source,
        )


def cut(rendered: Sequence[str], marks: Marks | None = None) -> Template:
    """
    Cut a template out of the *rendered* `CONVERSATIONS`. *marks* are those that the user has set,
    if any.

    Raise `MissingCapability` if the template does not show its turns one after the other, word for
    word.
    """
    question, reply, reasoned, wrapped, second_question = rendered
    start = _after(question, _FIRST)
    head = _between(reply, _FIRST, _REPLY)
    turn = _between(second_question, _REPLY, _SECOND)
    answer = _after(second_question, _SECOND)
    if not turn or not answer:
        raise MissingCapability(
            "the chat template puts nothing between two turns, so that no question can be asked"
        )
    pairs = (paired(*marks[:2]),) if marks else (*KNOWN, *_shown_pairs(start, head, reasoned))
    reply_head, ending = _around_reply(start, head, reply, wrapped)
    if marks and marks[2:]:
        pairs = (pairs[0].replying(marks[2]),)
        reply_head = marks[2]
        ending = marks[3] if marks[3:] else ending
    pairs = tuple([_handing_over(markers, start, head, reasoned, reply_head) for markers in pairs])
    for markers in pairs:
        template = _with_block(markers, start, head, turn, answer)
        if template is not None:
            return replace(
                template, pairs=pairs, head=markers.handover or reply_head, ending=ending
            )
    return Template(turn, answer, markers=pairs[0], pairs=pairs, head=reply_head, ending=ending)


def _around_reply(start: str, head: str, reply: str, wrapped: str) -> tuple[str, str]:
    """
    Return the marks before a finished reply that the prompt *start* does not have, and the mark
    after it; "" for none.

    A template that leaves a mark out of an earlier turn, as from *wrapped*, has its model write it.
    """
    if _REPLY in wrapped and _WRAP not in wrapped:
        return f"\n{_WRAP}\n", closing_of(_WRAP)
    last = mark_before(head)
    after = _after(reply, _REPLY)
    ending = closing_of(last) if last and after.lstrip().startswith(closing_of(last)) else ""
    marks = head.removeprefix(start) if head.startswith(start) else last
    block = any(word in marks.lower() for word in ("think", "thought", "reason"))
    return "" if block or last in start else marks, ending


def _handing_over(
    markers: ThinkingMarkers, start: str, head: str, reasoned: str, reply_head: str
) -> ThinkingMarkers:
    """
    Return *markers* with the marks that the template shows between the end of the thinking and the
    reply.
    """
    if markers.handover:
        return markers
    between = reasoned.partition(_REASONS)[2].partition(_REPLY)[0]
    parts = [shown.rpartition(markers.closing) for shown in (between, head)]
    handovers = [after for _, closed, after in parts if closed and mark_before(after)]
    return markers.replying(
        next(iter(handovers), reply_head if markers.open_at(start) >= 0 else "")
    )


def _shown_pairs(start: str, head: str, reasoned: str) -> Iterator[ThinkingMarkers]:
    """
    The pairs that are not known, and that a template shows.

    Its generation prompt *start* has an opening that speaks of thinking; or an earlier turn, as in
    *reasoned*, has its reasoning between two marks, perhaps with more before the reply.
    """
    before, shown, after = reasoned.partition(_REASONS)
    between = after.partition(_REPLY)[0]
    opening = mark_before(before)
    closing = mark_after(between, opening)
    handover = between.lstrip().removeprefix(closing)
    known = any(each.closing == closing and each.handover in ("", handover) for each in KNOWN)
    fits = opening and closing and (mark_before(handover) or not handover.strip())
    if shown and fits and not known and not head.rstrip().endswith(opening):
        yield paired(opening, closing)
    yield from pairs_in(start + head.removeprefix(start))


def disagreement(small: bool, large: bool) -> str:
    """
    Explain why two models cannot be a pair, with the cure; "" if they can. *small* and *large* are
    whether they think.

    A small model that does not think may draft for a large one that does: it drafts as if it
    answered, and the thinking is closed at the end of its turn. The other way round there would be
    no answer: where the small model closes its thinking, the large one would continue in the middle
    of its own answer.
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


def _with_block(
    markers: ThinkingMarkers, start: str, head: str, turn: str, answer: str
) -> Template | None:
    """
    Make the template of a model whose renderings show a block with these *markers*; None if they
    show none.

    *start* is the generation prompt, *head* the text before a finished answer, both after the
    user's words.
    """
    at = markers.open_at(start)
    if at >= 0:
        stem = start[:at]
        begun = start[at:]
        before = head[len(stem) :] if head.startswith(stem) else ""
        skipped = before if markers.skips(before) else markers.skipped
        closed = next(
            (block for block in (skipped, markers.skipped) if block.startswith(begun)),
            begun + markers.closing + markers.handover,
        )
        open_at = markers.open_at(answer)
        stem = answer[:open_at] if open_at >= 0 else answer
        rest = closed.removeprefix(begun)
        return Template(
            turn, stem + skipped, thinks=True, markers=markers, skipped=rest, source="template"
        )
    if markers.closed_in(start):
        space = head[len(start) :] if head.startswith(start) else ""
        return Template(
            turn, answer + (space if not space.strip() else ""), markers=markers, source="template"
        )
    block = head[len(start) :] if head.startswith(start) else ""
    if not markers.skips(block):
        return None
    opened = markers.opened(block)
    return Template(
        turn, answer + block, opened, thinks=True, markers=markers, skipped=block, source="template"
    )


def _after(text: str, sentinel: str) -> str:
    _, found, rest = text.rpartition(sentinel)
    if not found:
        raise MissingCapability(
            f"the chat template leaves out a turn: {sentinel!r} is not in {text!r}"
        )
    return rest


def _between(text: str, left: str, right: str) -> str:
    before, found, _ = text.rpartition(right)
    if not found:
        raise MissingCapability(
            f"the chat template leaves out a turn: {right!r} is not in {text!r}"
        )
    return _after(before, left)
