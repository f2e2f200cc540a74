"""Write TOML, which the standard library only reads. Used by the launcher and by evaluations."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def document(values: Mapping[str, Any], *above: str) -> str:
    """
    Return *values* as a TOML document, mappings as tables.

    The table *above* holds the values. Values that are None are left out, because TOML has no null.
    """
    inner: dict[str, Any] = {
        key: value for key, value in values.items() if isinstance(value, Mapping)
    }
    plain = {key: value for key, value in values.items() if key not in inner and value is not None}
    lines = [f"{_key(key)} = {_value(value)}\n" for key, value in plain.items()]
    if above and (lines or not inner):
        lines.insert(0, f"\n[{'.'.join(map(_key, above))}]\n")
    return "".join(lines + [document(value, *above, key) for key, value in inner.items()])


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(value: object) -> str:
    """Return *value* as JSON, which TOML reads: it is a number, a text, or a list of them."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.replace("\x7f", "\\u007f")  # TOML has to escape this character.
