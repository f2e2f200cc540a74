"""Errors name their cause and can be caught by their remedy."""

from stepspec.orchestrator import errors


def test_an_endpoints_error_names_its_model_and_keeps_the_parts() -> None:
    error = errors.EndpointUnavailable("no answer", role="small", url="http://here:8001", verb="write")
    assert str(error) == "the small model at http://here:8001: no answer"
    assert (error.role, error.url, error.verb, error.cause) == ("small", "http://here:8001", "write", "no answer")


def test_an_endpoints_error_without_a_role_names_its_address_or_nothing() -> None:
    assert str(errors.EndpointError("no answer", url="http://here:8001")) == "http://here:8001: no answer"
    assert str(errors.EndpointError("no answer")) == "no answer"


def test_the_nearest_word_is_suggested_in_brackets_if_any_is_near() -> None:
    assert errors.near("polcy", ["option", "policy", "police"]) == " (did you mean 'policy'?)"
    assert errors.near("polcy", frozenset({"ahead"})) == ""
    assert errors.near("polcy", {}) == ""
