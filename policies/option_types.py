"""
The options of policies: the types of their values, how they are described to users, and which one is a threshold.

A threshold makes its policy stricter or looser. Calibration and adaptation move it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import Field, TypeAdapter

from stepspec.orchestrator.feedback.adaptation import Threshold
from stepspec.orchestrator.run_options import Share

__all__ = [
    "MOST",
    "THRESHOLDS",
    "Above0",
    "Amount",
    "AtLeast1",
    "Few",
    "Grade",
    "Several",
    "Share",
    "Skip",
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
Skip: TypeAlias = Annotated[int, Field(ge=0, le=16)]
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


THRESHOLDS: Mapping[str, Threshold] = {
    "specreason": Threshold("threshold", (9, 8.5, 8, 7.5, 7, 6, 5, 4, 3, 2, 1, 0), compared=True),
    "reward": Threshold("threshold", (1, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0), compared=True),
    "cascade": Threshold("sure", (1, 0.99, 0.97, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)),
    "bild": Threshold("rollback", (0, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10)),
    "glimpse": Threshold("threshold", (0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1, 1.5, 2, 3)),
    "random": Threshold("p", (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)),
}
