"""Values written as TOML are read back unchanged."""

from __future__ import annotations

import math
import tomllib
from typing import Any

from stepspec.orchestrator.toml import document

VALUES: dict[str, Any] = {
    "text": 'a "b" \\ \n\t\x7f ü 🙂',
    "truth": True,
    "whole": 10**15,
    "tiny": 1e-07,
    "huge": math.inf,
    "list": [1, 2.5, "x", [False]],
    "empty": {},
    "table": {"a b": 1, "inner": {"deep": {"x": []}}, "1.5": "quoted"},
}


def test_values_survive_a_round_trip() -> None:
    assert tomllib.loads(document(VALUES)) == VALUES


def test_a_dot_puts_a_table_into_another_and_none_is_left_out() -> None:
    written = document(
        {"told": {"x": 1, "no": None}, "nothing": None, "told.more": {"y": [None, 2]}}
    )
    assert tomllib.loads(written) == {"told": {"x": 1, "more": {"y": [2]}}}


def test_nan_survives_a_round_trip() -> None:
    assert math.isnan(tomllib.loads(document({"value": math.nan}))["value"])
