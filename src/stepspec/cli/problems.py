"""Problems without answers: those of a user's own file, or some that need no download."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import AliasChoices, BaseModel, Field, StrictInt, StrictStr, StringConstraints

from stepspec.orchestrator.errors import ConfigurationError

PROBLEMS: tuple[str, ...] = (
    (
        "A train leaves at 14:05 and travels 210 km at 84 km/h, with a stop of 12 minutes. When"
        " does it arrive?"
    ),
    "How many positive integers below 1000 are divisible by 6 or by 15, but not by 10?",
    (
        "A rectangle's length is 3 cm more than twice its width, and its area is 119 square cm."
        " Find its perimeter."
    ),
    "Three dice are rolled. What is the probability that their sum is 11?",
    "Find all real x with x^4 - 13x^2 + 36 = 0, and the sum of their squares.",
    (
        "A shop raises a price by 20%, then lowers it by 15%, then by another 5%. By how much has"
        " it changed in all?"
    ),
    (
        "In how many ways can 7 people sit around a round table if two of them do not want to be"
        " neighbours?"
    ),
    "What is the remainder when 7^2026 is divided by 100?",
    (
        "The sides of a triangle are 13, 14 and 15. Find its area and the radius of its inscribed"
        " circle."
    ),
    (
        "A tank is filled by one pipe in 6 hours and by another in 4, and a drain empties it in 12."
        " All three are open. How long does it take to fill the tank?"
    ),
    "Find the number of integer solutions of x + y + z = 20 with x >= 1, y >= 2 and z >= 3.",
    (
        "A geometric sequence has the second term 12 and the fifth term 324. Find the sum of its"
        " first six terms."
    ),
    "What is the largest prime factor of 10! + 11! + 12!?",
    (
        "Two cards are drawn from a deck of 52 without replacement. What is the probability that"
        " both are red or both are face cards?"
    ),
    (
        "A circle passes through (0, 0), (8, 0) and (0, 6). Find its centre, its radius, and the"
        " length of the chord on the line y = x."
    ),
    (
        "Anna is three times as old as Ben was when Anna was as old as Ben is now. Together they"
        " are 50. How old are they?"
    ),
    "How many zeros are at the end of 2026!, written in base 10?",
    "Let f(x) = (2x + 3)/(x - 1). Find f(f(x)) and every x for which f(f(x)) = x.",
    (
        "From the digits 1 to 6, each used at most once, how many four-digit numbers divisible by 4"
        " can be formed?"
    ),
    (
        "A boat takes 3 hours for 36 km downstream and 4.5 hours back. Find the speed of the boat"
        " and of the current, and the time for 20 km upstream."
    ),
)

ANSWERS: tuple[str, ...] = (
    "16:47",
    "166",
    "48",
    "1/8",
    "26",
    "3.1",
    "480",
    "49",
    "84, 4",
    "3",
    "120",
    "1456",
    "7",
    "188/663",
    "5, 7",
    "30, 20",
    "505",
    "3, 21",
    "96",
    "10, 2, 2.5",
)
"""The numbers in the right answers to `PROBLEMS`."""


@dataclass(frozen=True, slots=True)
class FileProblem:
    """One problem of a file."""

    id: str | int
    """Its id, which is unique in the file."""
    text: str
    """Its text."""


def read_text(path: Path) -> str:
    """
    Read the file at *path*. ``-`` is standard input, which is empty if it is closed.

    Raise `ConfigurationError` if it cannot be read.
    """
    if path.is_char_device() and not _ends(path):
        raise ConfigurationError(f"no problems in {path}: it is a device without an end")
    try:
        text = _standard_input() if path == Path("-") else path.read_text("utf-8")
    except OSError as exc:
        raise ConfigurationError(f"no problems in {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigurationError(f"no problems in {path}: it is not UTF-8") from exc
    return text.removeprefix("\ufeff")


def _standard_input() -> str:
    return sys.stdin.read() if sys.stdin else ""


def _ends(device: Path) -> bool:
    """Whether the *device* has an end, as a terminal and /dev/null have."""
    with device.open("rb") as file:
        return file.isatty() or device.samefile(os.devnull)


def read_problems(path: Path, limit: int | None = None) -> list[FileProblem]:
    """
    Read the problems in the file at *path*, at most *limit*. ``-`` is standard input.

    Each line is a text, or a JSON object with a "problem" or "question" and perhaps an "id".
    Without one the id is a hash of the text. Raise `ConfigurationError` if there are no problems,
    for a line that is neither, and for an id that stands twice.
    """
    content = read_text(path)
    found: dict[str, FileProblem] = {}
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        if limit is not None and len(found) == limit:
            break
        id, text = _parse(path, number, line.strip())
        if id is None:
            id = _unused(text_digest(text), found)
        elif str(id) in found:
            raise ConfigurationError(f"{path}, line {number}: the id {id!r} is there twice")
        found[str(id)] = FileProblem(id, text)
    if not found:
        raise ConfigurationError(f"no problems in {path}: the file is empty")
    return list(found.values())


class _Row(BaseModel):
    """A problem as a JSON object."""

    problem: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = Field(
        validation_alias=AliasChoices("problem", "question")
    )
    """The text of the problem."""
    id: Annotated[StrictStr, Field(min_length=1)] | StrictInt | None = None
    """Its id. None: it has none."""


def _parse(path: Path, number: int, line: str) -> tuple[str | int | None, str]:
    """Return the id and the text of the problem in a *line*."""
    if not line.startswith("{"):
        return None, line
    try:
        row = _Row.model_validate(orjson.loads(line))
    except ValueError as exc:  # of orjson and of pydantic
        raise ConfigurationError(
            f"{path}, line {number}: a line that begins with a brace has to be a JSON object with"
            ' "problem", a text, and perhaps "id", a text or a whole number'
        ) from exc
    return row.id, row.problem


def _unused(id: str, taken: dict[str, FileProblem]) -> str:
    """Return *id*, with a number if it is taken. The same text may stand in a file twice."""
    unused = id
    copies = count(2)
    while unused in taken:
        unused = f"{id}-{next(copies)}"
    return unused


def text_digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
