r"""
The text around the turns of a conversation, learnt by rendering sentinels. Pure: text in, text out.

A chain is laid out as ``prefix + steps``, where

    prefix    is what the chat template renders for the messages with ``add_generation_prompt``, followed by
              `Template.opened`: the assistant's turn and its thinking block are open;
    steps     is the text of the steps, joined. The thinking stays open, whatever is appended.

A judge's question about a chain is laid out as ``prefix + steps + Template.ask(question, opening)``, which is

    turn      ends the assistant's turn where the steps end (the thinking is not closed) and opens a user's turn;
    question  the text, unchanged;
    answer    ends the user's turn and opens the assistant's. If the model thinks, the answer's own thinking block is
              closed at once: ``<think>``, a blank line, ``</think>``, a blank line;
    opening   the first words of the answer, unchanged. The model continues with one token.

For a template like Qwen3's that is, with the user's words in capitals::

    <|im_start|>user\nPROBLEM<|im_end|>\n<|im_start|>assistant\n<think>\nstep\n\nstep\n\n
    <|im_end|>\n<|im_start|>user\nQUESTION<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nopening

Whether a model thinks, and by which marks (`ThinkingMarkers`), is found in one of three ways, `Template.source`:

    template  the generation prompt ends in an open block, or in an empty one (thinking is switched off), or an empty
              block stands before a finished answer. In the last case the template leaves it to the model to open the
              block, and `Template.opened` does it in the model's place, so that the steps of two models never differ;
    effect    the template shows no block, like SmolLM3's and LFM2.5's: then the model answers a plain question, and
              `Template.after` reads the first tokens that it writes;
    setting   the user has set ``thinks`` for the endpoint, and that differs from the template or the effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from ..chain import THINK_END
from ..errors import MissingCapability
from ..markers import KNOWN, THINK, ThinkingMarkers

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Render: TypeAlias = Callable[[Messages, bool], str]
Source: TypeAlias = Literal["template", "effect", "setting", "unknown"]

_FIRST, _REPLY, _SECOND = "stepspecfirst", "stepspecreply", "stepspecsecond"
_FIRST_TURN = ({"role": "user", "content": _FIRST},)
_REPLIED = (*_FIRST_TURN, {"role": "assistant", "content": _REPLY})
_SECOND_TURN = (*_REPLIED, {"role": "user", "content": _SECOND})

CONVERSATIONS: tuple[tuple[Messages, bool], ...] = ((_FIRST_TURN, True), (_REPLIED, False), (_SECOND_TURN, True))
"""The conversations rendered to learn a template: messages, and whether a generation prompt is added."""

PLAIN_QUESTION: Messages = ({"role": "user", "content": "What is 17 + 25?"},)
"""The question for a model whose template shows no thinking block."""


@dataclass(frozen=True, slots=True)
class Template:
    """
    The text that one model's chat template puts around the turns; the module's docstring explains each piece.

    *markers* are the marks of the thinking block, if the model *thinks*. *skipped* is the text that, after the
    generation prompt, makes an empty block; "" without a block, or if the template has closed it already.
    """

    turn: str
    answer: str
    opened: str = ""
    thinks: bool = False
    markers: ThinkingMarkers = THINK
    skipped: str = field(default="", compare=False)
    source: Source = field(default="unknown", compare=False)

    @property
    def block(self) -> str:
        """The mark that opens the thinking block; "" if there is none."""
        return self.markers.opening.rstrip() if self.thinks or self.skipped else ""

    @property
    def closing(self) -> str:
        """How the model spells the end of its thinking."""
        return self.markers.closing if self.thinks else THINK.closing

    @property
    def handover(self) -> str:
        """The text between the end of the thinking and the model's answer."""
        return self.markers.handover if self.thinks else ""

    def spelt(self, text: str) -> str:
        """Spell the end of the thinking in *text*, of a chain, as the model does."""
        return text if self.closing == THINK_END else text.replace(THINK_END, self.closing)

    def ask(self, question: str, opening: str = "") -> str:
        """Return the text that follows the steps when a judge answers *question*, which begins with *opening*."""
        return f"{self.turn}{question}{self.answer}{opening}"

    def begin(self, rendered: str) -> str:
        """Open the thinking block after the messages, *rendered* with a generation prompt."""
        return rendered + self.opened

    def after(self, written: str) -> Template:
        """Learn from the text that the model has *written* after `PLAIN_QUESTION` whether it opens a block."""
        if self.source != "unknown":
            return self
        for markers in KNOWN:
            if opened := markers.begun(written):
                return self._opened_by_the_model(opened, markers, "effect")
        return replace(self, source="effect")

    def overridden(self, thinks: bool | None) -> Template:
        """
        Do as the setting *thinks* says; None leaves everything as it was found.

        Raise `MissingCapability` for a model that has to think while its template has closed the block already.
        """
        if thinks is None or thinks == self.thinks:
            return self
        if not thinks:
            return replace(self, opened=self.skipped, thinks=False, source="setting")
        if self.source == "template":
            raise MissingCapability(
                "thinks = true is set, but the chat template switches thinking off: pass what switches it on in the "
                "endpoint's template (chat_template_kwargs), for example template = { enable_thinking = true }, or "
                "{ thinking = true } for DeepSeek"
            )
        return self._opened_by_the_model(f"{THINK.opening}\n", THINK, "setting")

    def _opened_by_the_model(self, opened: str, markers: ThinkingMarkers, source: Source) -> Template:
        skipped = opened[: len(opened) - len(opened.lstrip())] + markers.skipped
        return replace(
            self,
            answer=self.answer + skipped,
            opened=opened,
            thinks=True,
            markers=markers,
            skipped=skipped,
            source=source,
        )


def learn(render: Render) -> Template:
    """
    Learn a chat template from *render*, which takes messages and whether to add a generation prompt.

    Raise `MissingCapability` if the template does not show its turns one after the other, word for word.
    """
    return cut([render(messages, generate) for messages, generate in CONVERSATIONS])


def cut(rendered: Sequence[str]) -> Template:
    """Cut a template out of the *rendered* `CONVERSATIONS`. Raise `MissingCapability` as `learn` does."""
    question, reply, second_question = rendered
    start = _after(question, _FIRST)
    head = _between(reply, _FIRST, _REPLY)
    turn = _between(second_question, _REPLY, _SECOND)
    answer = _after(second_question, _SECOND)
    if not turn or not answer:
        raise MissingCapability("the chat template puts nothing between two turns, so that no question can be asked")
    for markers in KNOWN:
        template = _with_block(markers, start, head, turn, answer)
        if template is not None:
            return template
    return Template(turn, answer)


def disagreement(small: bool, large: bool) -> str:
    """
    Explain why two models cannot be a pair, with the cure; "" if they can. *small* and *large* are whether they think.

    A small model that does not think may draft for a large one that does: it drafts as if it answered, and the thinking
    is closed at the end of its turn. The other way round there would be no answer: where the small model closes its
    thinking, the large one would continue in the middle of its own answer.
    """
    if not small or large:
        return ""
    return (
        "the small model thinks in a block of its own before it answers, and the large one does not. Let both think: "
        "switch it on in the template (chat_template_kwargs) of [large], for example template = { enable_thinking = "
        "true }, or set thinks = true in [large] if its chat template does not show the block. Or let neither think: "
        "set thinks = false in [small]"
    )


def _with_block(markers: ThinkingMarkers, start: str, head: str, turn: str, answer: str) -> Template | None:
    """
    Make the template of a model whose renderings show a block with these *markers*; None if they show none.

    *start* is the generation prompt, *head* the text before a finished answer, both after the user's words.
    """
    at = markers.open_at(start)
    if at >= 0:
        stem, begun = start[:at], start[at:]
        before = head[len(stem) :] if head.startswith(stem) else ""
        skipped = before if markers.skips(before) else markers.skipped
        closed = next(
            (block for block in (skipped, markers.skipped) if block.startswith(begun)), begun + markers.closing
        )
        open_at = markers.open_at(answer)
        stem = answer[:open_at] if open_at >= 0 else answer
        rest = closed.removeprefix(begun)
        return Template(turn, stem + skipped, thinks=True, markers=markers, skipped=rest, source="template")
    if markers.closed_in(start):
        space = head[len(start) :] if head.startswith(start) else ""
        return Template(turn, answer + (space if not space.strip() else ""), markers=markers, source="template")
    block = head[len(start) :] if head.startswith(start) else ""
    if not markers.skips(block):
        return None
    opened = markers.opened(block)
    return Template(turn, answer + block, opened, thinks=True, markers=markers, skipped=block, source="template")


def _after(text: str, sentinel: str) -> str:
    _, found, rest = text.rpartition(sentinel)
    if not found:
        raise MissingCapability(f"the chat template leaves out a turn: {sentinel!r} is not in {text!r}")
    return rest


def _between(text: str, left: str, right: str) -> str:
    before, found, _ = text.rpartition(right)
    if not found:
        raise MissingCapability(f"the chat template leaves out a turn: {right!r} is not in {text!r}")
    return _after(before, left)
