from __future__ import annotations

from stepspec.orchestrator.errors import near


def test_the_nearest_word_is_suggested_in_brackets_if_any_is_near() -> None:
    assert near("polcy", ["option", "policy", "police"]) == " (did you mean 'policy'?)"
    assert near("polcy", frozenset({"ahead"})) == ""
    assert near("polcy", {}) == ""
