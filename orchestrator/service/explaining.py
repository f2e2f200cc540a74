"""What is wrong with a request, read off what pydantic says of it: the parameter as it was sent, and the cure. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeAlias, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..budget import Budget
from ..near import near
from .cures import CURES, ELSEWHERE
from .errors import Refusal, bad, place
from .schemas import Turn, Wishes

Where: TypeAlias = tuple[int | str, ...]

EXPECTED = "Input should be "
OBJECTS = ("model_type", "model_attributes_type", "dict_type")  # pydantic names the class, which no client knows


def explain(kind: type[BaseModel], given: object, exc: ValidationError) -> Refusal:
    """Refuse what was *given* instead of a request of this *kind*."""
    found = [(error, spelt(error["loc"], given, error["type"])) for error in exc.errors()]
    error, where = min(found, key=_weight)
    param = place(where)
    if error["type"] == "missing":
        return bad(f"{param} is missing", param, "missing")
    name, unknown = ".".join(part for part in where if isinstance(part, str)), error["type"] == "extra_forbidden"
    other = ELSEWHERE.get(name, "") if unknown else ""
    if other.partition(".")[0] in kind.model_fields:
        return bad(f"{param} is called {other} in this API", param, "unknown_parameter")
    if name in CURES:
        verb = "is not known here" if unknown else "cannot be honoured"
        return bad(f"{param} {verb}: {CURES[name]}", param, "unsupported_parameter")
    if unknown:
        hint = near(str(where[-1]), _known(kind, where))
        return bad(f"unknown parameter {param!r}{hint}", param, "unknown_parameter")
    words = _joined(_words(each) for each, its in found if its == where)
    return bad(f"{param}: {words}", param, "invalid_value")


def spelt(location: Where, given: object, kind: str) -> Where:
    """Leave out of an error's *location* what only names an alternative, and stands nowhere in what was *given*."""
    walked = _walk(location, given, kind)
    return location[:1] if walked is None else walked


def _walk(location: Where, given: object, kind: str) -> Where | None:
    if not location:
        return ()
    part, rest = location[0], location[1:]
    inner = _at(given, part)
    if inner is not None:
        walked = _walk(rest, inner[0], kind)
        if walked is not None:
            return (part, *walked)
    if not rest and kind == "missing" and inner is None:
        return (part,)
    if isinstance(part, int) or (not rest and kind == "extra_forbidden"):
        return None
    return _walk(rest, given, kind)


def _at(given: object, part: int | str) -> tuple[object] | None:
    """What stands at *part*, in a tuple; None if there is no such place."""
    if isinstance(given, dict) and part in given:
        return (cast("dict[Any, object]", given)[part],)
    if isinstance(given, list) and isinstance(part, int):
        items = cast("list[object]", given)
        return (items[part],) if part < len(items) else None
    return None


def _weight(one: tuple[ErrorDetails, Where]) -> tuple[bool, int]:
    """Unknown parameters come first, and of the alternatives that failed the one that fitted farthest."""
    error, where = one
    return error["type"] != "extra_forbidden", -len(where)


def _words(error: ErrorDetails) -> str:
    return EXPECTED + "an object" if error["type"] in OBJECTS else error["msg"].removeprefix("Value error, ")


def _joined(words: Iterable[str]) -> str:
    first, *others = dict.fromkeys(words)
    return " or ".join([first, *(other.removeprefix(EXPECTED) for other in others)])


def _known(kind: type[BaseModel], where: Sequence[int | str]) -> list[str]:
    if where[0] == "stepspec":
        return [*Wishes.model_fields, *[one.name for one in fields(Budget)]]
    if where[0] in ("messages", "input"):
        return [*Turn.model_fields]
    return [*kind.model_fields] if len(where) == 1 else []
