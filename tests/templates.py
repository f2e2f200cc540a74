"""Chat templates as programs outside of a server need them."""

from __future__ import annotations

from collections.abc import Callable

from stepspec.orchestrator.endpoints.chat_template import (
    CONVERSATIONS,
    Fields,
    Marks,
    Template,
    template_from_renderings,
)


def learn(render: Callable[[Fields, bool], str], marks: Marks | None = None) -> Template:
    """
    Learn a chat template as `template_from_renderings` does.

    *render* takes messages and whether to add a generation prompt.
    """
    return template_from_renderings(
        [render(messages, generate) for messages, generate in CONVERSATIONS], marks
    )


def ask(template: Template, question: str, opening: str = "") -> str:
    """
    Return the text that follows the steps when a judge answers *question*.

    The answer begins with *opening*.
    """
    return f"{template.turn}{question}{template.headed(template.answer)}{opening}"
