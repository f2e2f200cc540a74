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

A model is taken to think if its template says so: the generation prompt ends in an open ``<think>``, or an empty
thinking block stands before a finished answer. In the second case the template leaves it to the model to open the
block, and `Template.opened` does it in the model's place, so that the steps of two models never differ by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..chain import THINK_END
from ..errors import MissingCapability

THINK = "<think>"
OPENED = f"{THINK}\n"
SKIPPED = f"{THINK}\n\n{THINK_END}\n\n"

Messages: TypeAlias = Sequence[Mapping[str, str]]
Render: TypeAlias = Callable[[Messages, bool], str]

_FIRST, _REPLY, _SECOND = "stepspecfirst", "stepspecreply", "stepspecsecond"
_ASKED = ({"role": "user", "content": _FIRST},)
_REPLIED = (*_ASKED, {"role": "assistant", "content": _REPLY})
_ASKED_AGAIN = (*_REPLIED, {"role": "user", "content": _SECOND})

CONVERSATIONS: tuple[tuple[Messages, bool], ...] = ((_ASKED, True), (_REPLIED, False), (_ASKED_AGAIN, True))
"""What has to be rendered to learn a template: messages, and whether a generation prompt is added."""


@dataclass(frozen=True, slots=True)
class Template:
    """What one model's chat template puts around the turns; the module's docstring says where each piece goes."""

    turn: str
    answer: str
    opened: str = ""
    thinks: bool = False

    def ask(self, question: str, opening: str = "") -> str:
        """Lay out everything that follows the steps when a judge is asked *question*."""
        return f"{self.turn}{question}{self.answer}{opening}"

    def begin(self, rendered: str) -> str:
        """Open the thinking block after messages that were *rendered* with a generation prompt."""
        return rendered + self.opened


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
    if _is_open(start):
        return Template(turn, _skip(answer), thinks=True)
    if head.startswith(start) and THINK in head[len(start) :]:
        return Template(turn, answer + SKIPPED, opened=OPENED, thinks=True)
    return Template(turn, answer)


def _is_open(text: str) -> bool:
    return text.rstrip().endswith(THINK)


def _skip(answer: str) -> str:
    """Close at once the thinking block that *answer* may end in."""
    if not _is_open(answer):
        return answer + SKIPPED
    return answer[: answer.rindex(THINK)] + SKIPPED


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
