"""
The bounds of a body, which is read and checked before it is validated. No I/O.

Without them one body of 4 MiB with 100,000 wrong values, or as many small lists, keeps the process busy for seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import orjson

from ..http.errors import bad_request

MAX_DEPTH = 128  # orjson writes at most 254 levels, and a request gets some more on its way to a server
MAX_ITEMS = 4096  # of one list or object
MAX_VALUES = 65_536  # of a request: what takes a tenth of a second to validate


def parse_json(body: bytes) -> dict[str, Any]:
    """Read a JSON object. Raise `ApiError`."""
    brackets = body.count(b"[") + body.count(b"{")  # those within texts included
    if brackets > MAX_VALUES and _containers(body) > MAX_VALUES:
        raise bad_request(f"the body has more than {MAX_VALUES} lists and objects", code="invalid_json")
    try:
        content: object = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise bad_request(f"the body is not JSON: {exc}", code="invalid_json") from exc
    if not isinstance(content, dict):
        raise bad_request("the body has to be a JSON object", code="invalid_json")
    if brackets > MAX_DEPTH and too_deep(cast("object", content)):
        raise bad_request(f"the body is nested more than {MAX_DEPTH} deep", code="invalid_json")
    return cast("dict[str, Any]", content)


def _containers(body: bytes) -> int:
    """Count the lists and objects of a *body*: millions of them take seconds to build."""
    outside = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    return sum(part.count(b"[") + part.count(b"{") for part in outside)


def too_deep(value: object) -> bool:
    """Whether lists and objects in *value* are nested more than `MAX_DEPTH` deep."""
    level = _containers_in([value])
    for _ in range(MAX_DEPTH):
        if not level:
            return False
        level = _containers_in(_items(level))
    return bool(level)


def check_bounds(content: Mapping[str, Any], max_items: int = MAX_ITEMS) -> None:
    """Raise `ApiError` if *content* has too many values, or one list or object more than *max_items* items."""
    if len(content) > max_items:
        raise bad_request(f"{len(content)} parameters: at most {max_items} are allowed", code="invalid_value")
    values = 0
    for name, value in content.items():
        level = _containers_in([value])
        while level:
            if (longest := max(map(len, level))) > max_items:
                message = f"{name} has a list or an object of {longest} items: at most {max_items} are allowed"
                raise bad_request(message, name, "invalid_value")
            values += sum(map(len, level))
            if values > MAX_VALUES:
                message = f"{name}: the request has more than {MAX_VALUES} values; write long texts as one value"
                raise bad_request(message, name, "invalid_value")
            level = _containers_in(_items(level))


def _containers_in(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if type(value) in (list, dict)]


def _items(containers: Iterable[Any]) -> Iterable[Any]:
    for container in containers:
        yield from container.values() if isinstance(container, dict) else container
