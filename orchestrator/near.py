"""The word that somebody may have meant. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(word: str, known: Iterable[str]) -> str:
    """Suggest the one of the *known* words that is most like *word*, in brackets to put behind it; if any is."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
