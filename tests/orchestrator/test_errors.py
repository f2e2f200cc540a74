"""Errors name their cause and their cure, and can be caught by their remedy."""

from __future__ import annotations

from stepspec.orchestrator import errors


def test_an_endpoints_error_without_a_role_names_its_address_or_nothing() -> None:
    assert (
        str(errors.EndpointError("no answer", url="http://here:8001"))
        == "http://here:8001: no answer"
    )
    assert str(errors.EndpointError("no answer")) == "no answer"


def test_the_nearest_word_is_suggested_in_brackets_if_any_is_near() -> None:
    assert errors.near("polcy", ["option", "policy", "police"]) == " (did you mean 'policy'?)"
    assert errors.near("polcy", frozenset({"ahead"})) == ""


def test_an_extra_is_installed_from_the_index_or_in_a_clone() -> None:
    command = 'pip install "stepspec[evals,ray]" (in a clone: ".[evals,ray]")'
    assert errors.install_command("evals", "ray") == command
