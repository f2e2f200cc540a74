r"""
The text that surrounds the turns of a conversation, learnt by rendering sentinels. Pure: text in, text out.

A chain is laid out as ``prefix + steps``, where

    prefix    is what the chat template renders for the messages with ``add_generation_prompt``, followed by
              `Template.opened`: the assistant's turn and its thinking block are open;
    steps     is the text of the steps, joined. The thinking stays open, whatever is appended.

A judge's question about a chain is laid out as ``prefix + steps + Template.ask(question, opening)``, which is

    turn      ends the assistant's turn where the steps end (the thinking is not closed) and opens a user's turn;
    question  the text, as it is;
    answer    ends the user's turn and opens the assistant's. If the model thinks, the answer's own thinking block is
              closed at once: ``<think>``, a blank line, ``</think>``, a blank line;
    opening   the first words of the answer, as they are. The model goes on with one token.

For a template in the manner of Qwen3 that is, with the user's words in capitals::

    <|im_start|>user\nPROBLEM<|im_end|>\n<|im_start|>assistant\n<think>\nstep\n\nstep\n\n
    <|im_end|>\n<|im_start|>user\nQUESTION<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nopening

Whether a model thinks, and by which marks (`ThinkingMarkers`), is found in one of three ways, `Template.source`:

    template  the generation prompt ends in an open block, or in an empty one (thinking is switched off), or an empty
              block stands before a finished answer. In the last case the template leaves it to the model to open the
              block, and `Template.opened` does it in the model's place, so that the steps of two models never differ;
    effect    the template shows no block, as those of SmolLM3 and LFM2.5: then the model is asked a plain question, and
              `Template.after` looks at the first tokens that it writes;
    setting   the user has set ``thinks`` for the endpoint, and that differs from what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from ..chain import THINK_END
from ..errors import MissingCapability
from ..markers import KNOWN, THINK, ThinkingMarkers

Messages: TypeAlias = Sequence[Mapping[str, str]]
Render: TypeAlias = Callable[[Messages, bool], str]
Source: TypeAlias = Literal["template", "effect", "setting", "unknown"]

_FIRST, _REPLY, _SECOND = "stepspecfirst", "stepspecreply", "stepspecsecond"
_ASKED = ({"role": "user", "content": _FIRST},)
_REPLIED = (*_ASKED, {"role": "assistant", "content": _REPLY})
_ASKED_AGAIN = (*_REPLIED, {"role": "user", "content": _SECOND})

CONVERSATIONS: tuple[tuple[Messages, bool], ...] = ((_ASKED, True), (_REPLIED, False), (_ASKED_AGAIN, True))
"""What has to be rendered to learn a template: messages, and whether a generation prompt is added."""

PLAIN_QUESTION: Messages = ({"role": "user", "content": "What is 17 + 25?"},)
"""What a model is asked whose template shows no thinking block."""


@dataclass(frozen=True, slots=True)
class Template:
    """
    What one model's chat template puts around the turns; the module's docstring says where each piece goes.

    *markers* are those of the thinking block, if the model *thinks*. *skipped* leaves an empty block behind when it
    follows the generation prompt; "" if nothing shows a block, or if the template has closed it already.
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
        """The mark that opens the thinking block; "" if nothing shows one."""
        return self.markers.opening.rstrip() if self.thinks or self.skipped else ""

    @property
    def closing(self) -> str:
        """How the model spells the end of its thinking."""
        return self.markers.closing if self.thinks else THINK.closing

    @property
    def handover(self) -> str:
        """What has to follow the end of the thinking before the model's answer can begin."""
        return self.markers.handover if self.thinks else ""

    def spelt(self, text: str) -> str:
        """Spell the end of the thinking in *text*, of a chain, as the model does."""
        return text if self.closing == THINK_END else text.replace(THINK_END, self.closing)

    def ask(self, question: str, opening: str = "") -> str:
        """Lay out everything that follows the steps when a judge is asked *question*."""
        return f"{self.turn}{question}{self.answer}{opening}"

    def begin(self, rendered: str) -> str:
        """Open the thinking block after messages that were *rendered* with a generation prompt."""
        return rendered + self.opened

    def after(self, written: str) -> Template:
        """Learn by effect from what the model has *written* after `PLAIN_QUESTION`; what is shown already stands."""
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
    """Cut the pieces out of the renderings of `CONVERSATIONS`. Raise `MissingCapability` as `learn` does."""
    asked, replied, asked_again = rendered
    start = _after(asked, _FIRST)
    head = _between(replied, _FIRST, _REPLY)
    turn = _between(asked_again, _REPLY, _SECOND)
    answer = _after(asked_again, _SECOND)
    if not turn or not answer:
        raise MissingCapability("the chat template puts nothing between two turns, so that no question can be asked")
    for markers in KNOWN:
        shown = _shown(markers, start, head, turn, answer)
        if shown is not None:
            return shown
    return Template(turn, answer)


def disagreement(small: bool, large: bool) -> str:
    """
    Say why two models of which these think cannot be a pair, with the cure; "" if they can.

    A small model that does not think may draft for a large one that does: it drafts as if it answered, and where it
    ends its turn the thinking is closed. The other way round there is no answer: where the small model closes its
    thinking, the large one would go on in the middle of its own answer.
    """
    if not small or large:
        return ""
    return (
        "the small model thinks in a block of its own before it answers, and the large one does not. Let both think: "
        "switch it on in the template (chat_template_kwargs) of [large], for example template = { enable_thinking = "
        "true }, or set thinks = true in [large] if its chat template does not show the block. Or let neither think: "
        "set thinks = false in [small]"
    )


def _shown(markers: ThinkingMarkers, start: str, head: str, turn: str, answer: str) -> Template | None:
    """
    Read what the renderings show of a block with these *markers*; None if they show none.

    *start* is the generation prompt, *head* what stands before a finished answer, both after the user's words.
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
