"""One file per paper, found by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from ..orchestrator import Model, Policy
from ..orchestrator.errors import ConfigurationError
from .solo import Solo, large_alone, small_alone
from .specreason import SpecReason

__all__ = ["POLICIES", "Solo", "SpecReason", "make", "options"]

POLICIES: Mapping[str, Callable[..., Policy]] = {"large": large_alone, "small": small_alone, "specreason": SpecReason}


def options(name: str) -> Mapping[str, inspect.Parameter]:
    """The options of the policy called *name*, with their defaults and annotations."""
    parameters = inspect.signature(_find(name)).parameters
    return {key: value for key, value in parameters.items() if key not in ("small", "large")}


def make(name: str, small: Model, large: Model, **chosen: Any) -> Policy:
    """Build the policy called *name*. Raise `ConfigurationError` for unknown names or options and for wrong values."""
    factory, known = _find(name), options(name)
    for option in chosen:
        if option not in known:
            listed = ", ".join(f"{p.name}={p.default!r}" for p in known.values()) or "none"
            raise ConfigurationError(
                f"policy {name!r} has no option {option!r}{_near(option, known)}; its options: {listed}"
            )
    hints = get_type_hints(factory)
    return factory(small=small, large=large, **{key: _checked(name, key, hints[key], chosen[key]) for key in chosen})


def _checked(policy: str, option: str, kind: Any, value: object) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as exc:
        wrong = "; ".join(error["msg"] for error in exc.errors())
        raise ConfigurationError(f"policy {policy!r}, option {option!r}: {wrong} (got {value!r})") from exc


def _find(name: str) -> Callable[..., Policy]:
    if name not in POLICIES:
        raise ConfigurationError(
            f"there is no policy {name!r}{_near(name, POLICIES)}; the policies: {', '.join(POLICIES)}"
        )
    return POLICIES[name]


def _near(word: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {close[0]!r}?" if close else ""
