"""Write TOML, which the standard library only reads. Used by the launcher and by evaluations."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def document(values: Mapping[str, Any]) -> str:
    """
    Return *values* as a TOML document, mappings as tables.

    A dot in a table's name puts the table into another one. Values that are None are left out,
    because TOML has no null.
    """
    plain = ""
    tables = ""
    for key, value in values.items():
        if isinstance(value, Mapping):
            tables += f"\n[{key}]\n{_lines(cast('Mapping[str, Any]', value))}"
        else:
            plain += _lines({key: value})
    return plain + tables


def one_line(value: Any) -> str:
    """Return *value* as TOML in one line."""
    if isinstance(value, Mapping):
        pairs = _pairs(cast("Mapping[str, Any]", value))
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, list | tuple):
        items = [one_line(item) for item in cast("list[Any]", value) if item is not None]
        return f"[{', '.join(items)}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{pair}\n" for pair in _pairs(table))


def _pairs(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {one_line(value)}" for key, value in table.items() if value is not None]


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else one_line(key)
