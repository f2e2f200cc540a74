"""The kinds of values that options of policies have, and what users are told of an option."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import Field, TypeAdapter

from stepspec.orchestrator.run_options import Share

__all__ = ["MOST", "Above0", "Amount", "AtLeast1", "Few", "Grade", "Several", "Share", "Top", "meaning", "said"]

MOST = 20  # of the likeliest tokens of a place: servers of vLLM tell no more, unless they are started to

Above0: TypeAlias = Annotated[float, Field(gt=0, le=1)]
Amount: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AtLeast1: TypeAlias = Annotated[int, Field(ge=1)]
Few: TypeAlias = Annotated[int, Field(ge=1, le=8)]
Grade: TypeAlias = Annotated[float, Field(ge=0, le=9)]
Several: TypeAlias = Annotated[int, Field(ge=2, le=MOST)]
Top: TypeAlias = Annotated[int, Field(ge=1, le=MOST)]

NOUNS = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "array": "a list of texts"}
SENTENCE_ENDS = re.compile(r"(?<=\.)\s+(?=[A-Z*])|\n\n")


def said(kind: TypeAdapter[Any]) -> str:
    """Say which values are of this *kind*: "a number from 0 to 9"."""
    return _said(kind.json_schema())


def _said(schema: Mapping[str, Any]) -> str:
    kind: str = schema.get("type", "")
    noun = NOUNS.get(kind, kind)
    match schema:
        case {"anyOf": kinds}:
            return " or ".join(map(_said, kinds))
        case {"enum": words}:
            return " or ".join(map(repr, words))
        case {"minimum": least, "maximum": most}:
            return f"{noun} from {least:g} to {most:g}"
        case {"exclusiveMinimum": least, "maximum": most}:
            return f"{noun} above {least:g}, {most:g} at most"
        case {"minimum": least}:
            return f"{noun} of {least:g} or more"
        case _:
            return noun


def meaning(documentation: str, option: str) -> str:
    """The sentences of the *documentation* that speak of an *option*: those that have its name between asterisks."""
    sentences = (" ".join(sentence.split()) for sentence in SENTENCE_ENDS.split(documentation))
    return " ".join(sentence for sentence in sentences if f"*{option}*" in sentence)
