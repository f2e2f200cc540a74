"""The options of policies: the types of their values, and how they are described to users."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import Field, TypeAdapter

from stepspec.orchestrator.run_options import Share

__all__ = [
    "MOST",
    "Above0",
    "Amount",
    "AtLeast1",
    "Few",
    "Grade",
    "Several",
    "Share",
    "Top",
    "describe",
    "meaning",
]

MOST = 20  # likeliest tokens of one position; vLLM returns more only if it was started with --max-logprobs

Above0: TypeAlias = Annotated[float, Field(gt=0, le=1)]
Amount: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AtLeast1: TypeAlias = Annotated[int, Field(ge=1)]
Few: TypeAlias = Annotated[int, Field(ge=1, le=8)]
Grade: TypeAlias = Annotated[float, Field(ge=0, le=9)]
Several: TypeAlias = Annotated[int, Field(ge=2, le=MOST)]
Top: TypeAlias = Annotated[int, Field(ge=1, le=MOST)]

NOUNS = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "array": "a list of texts"}
SENTENCE_ENDS = re.compile(r"(?<=\.)\s+(?=[A-Z*])|\n\n")


def describe(kind: TypeAdapter[Any]) -> str:
    """Describe the values that *kind* accepts: "a number from 0 to 9"."""
    return _describe(kind.json_schema())


def _describe(schema: Mapping[str, Any]) -> str:
    kind: str = schema.get("type", "")
    noun = NOUNS.get(kind, kind)
    match schema:
        case {"anyOf": kinds}:
            return " or ".join(map(_describe, kinds))
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
    """Return the sentences of *documentation* about *option*: those with its name between asterisks."""
    sentences = (" ".join(sentence.split()) for sentence in SENTENCE_ENDS.split(documentation))
    return " ".join(sentence for sentence in sentences if f"*{option}*" in sentence)
