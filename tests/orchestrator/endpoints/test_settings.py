from __future__ import annotations

import pytest
from pydantic import ValidationError

from stepspec.orchestrator.endpoints import Endpoint


@pytest.mark.parametrize(
    ("value", "base"),
    [
        ("http://localhost:8000", "http://localhost:8000"),
        ("http://localhost:8000/", "http://localhost:8000"),
        ("http://localhost:8000/v1", "http://localhost:8000"),
        (" https://host/models/large/v1/ ", "https://host/models/large"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("https://größe.example", "https://größe.example"),
        ("http://gpu_1:8000", "http://gpu_1:8000"),
    ],
)
def test_a_url_may_include_its_version(value: str, base: str) -> None:
    endpoint = Endpoint(role="small", url=value)
    assert (endpoint.url, endpoint.v1) == (base, f"{base}/v1")


@pytest.mark.parametrize(
    "value",
    [
        *("localhost:8000", "ftp://host", "http://", "http://host/v1?key=1", ""),
        *("http://a b:8000", "http://a..b:8000", "http://host:99999", "http://host:no"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused(value: str) -> None:
    with pytest.raises(ValidationError, match="write it like http://localhost:8000/v1"):
        Endpoint(role="small", url=value)


@pytest.mark.parametrize(("value", "key"), [("", None), (None, None), ("sesame", "sesame")])
def test_a_key_that_is_empty_is_none(value: str | None, key: str | None) -> None:
    endpoint = Endpoint.model_validate({"role": "small", "url": "http://a", "api_key": value})
    assert (endpoint.api_key and endpoint.api_key.get_secret_value()) == key


@pytest.mark.parametrize(
    "value",
    [
        {"url": "http://a/v1, http://b/,http://c"},
        {"url": "http://a,http://b/v1/ ,http://c/"},
    ],
)
def test_replicas_are_further_urls_in_any_notation(value: dict[str, object]) -> None:
    endpoint = Endpoint.model_validate({"role": "small", "model": "m", **value})
    assert endpoint.urls == ("http://a", "http://b", "http://c")
    assert endpoint.url == "http://a,http://b,http://c"
    assert [each.urls for each in endpoint.each] == [("http://a",), ("http://b",), ("http://c",)]
    assert {each.model for each in endpoint.each} == {"m"}


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"url": "http://a,http://a/v1"}, "a URL is given twice: http://a, http://a"),
        ({"url": "http://a,"}, "'' is not the URL of a server"),
        ({"url": "http://a,b"}, "'b' is not the URL of a server"),
    ],
)
def test_replicas_that_are_none_are_refused(value: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Endpoint.model_validate({"role": "small", **value})


def test_unknown_settings_and_impossible_limits_are_refused() -> None:
    for wrong in (
        {"retry": 3},
        {"requests_per_second": 0},
        {"max_concurrency": 0},
        {"retries": -1},
        {"model": ""},
    ):
        with pytest.raises(ValidationError):
            Endpoint.model_validate({"role": "small", "url": "http://host", **wrong})


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(
        Endpoint.model_validate({"role": "small", "url": "http://host", "api_key": "secret"})
    )
