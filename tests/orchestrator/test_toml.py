"""Values written as TOML are read back unchanged."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest

from stepspec.orchestrator.toml import document

VALUES: dict[str, Any] = {
    "text": 'a "b" \\ \n\t\x7f ü 🙂',
    "truth": True,
    "whole": 10**15,
    "tiny": 1e-07,
    "huge": 1e300,
    "list": [1, 2.5, "x", [False]],
    "empty": {},
    "table": {"a b": 1, "inner": {"deep": {"x": []}}, "1.5": "quoted"},
}


def test_values_survive_a_round_trip() -> None:
    assert tomllib.loads(document(VALUES)) == VALUES


def test_none_is_left_out() -> None:
    written = document({"told": {"x": 1, "no": None, "more": {"y": [2]}}, "nothing": None})
    assert tomllib.loads(written) == {"told": {"x": 1, "more": {"y": [2]}}}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_wrong_document_is_written(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        document({"value": value})
