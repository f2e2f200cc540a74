from __future__ import annotations

import pytest
from pydantic import ValidationError

from stepspec.orchestrator.endpoints import Endpoint, Sampling


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://localhost:8000", "http://localhost:8000"),
        ("http://localhost:8000/", "http://localhost:8000"),
        ("http://localhost:8000/v1", "http://localhost:8000"),
        (" https://host/models/large/v1/ ", "https://host/models/large"),
    ],
)
def test_a_url_is_given_with_or_without_its_version(given: str, base: str) -> None:
    endpoint = Endpoint(role="small", url=given)
    assert (endpoint.url, endpoint.v1) == (base, f"{base}/v1")


@pytest.mark.parametrize("given", ["localhost:8000", "ftp://host", "http://", "http://host/v1?key=1", ""])
def test_a_url_that_leads_nowhere_is_refused(given: str) -> None:
    with pytest.raises(ValidationError, match="write it like http://localhost:8000/v1"):
        Endpoint(role="small", url=given)


def test_unknown_settings_and_impossible_limits_are_refused() -> None:
    for wrong in ({"retry": 3}, {"requests_per_second": 0}, {"max_concurrency": 0}, {"retries": -1}, {"model": ""}):
        with pytest.raises(ValidationError):
            Endpoint.model_validate({"role": "small", "url": "http://host", **wrong})


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(Endpoint.model_validate({"role": "small", "url": "http://host", "api_key": "secret"}))


def test_seeds_differ_by_place_and_repeat() -> None:
    sampling = Sampling(temperature=1, seed=3)
    places = [(role, verb, steps, tokens) for role in ("small", "large") for verb in ("write", "ask")
              for steps in range(3) for tokens in (0, 40)]  # fmt: skip
    seeds = {sampling.seed_for(*place) for place in places}  # type: ignore[arg-type]
    assert len(seeds) == len(places)
    assert sampling.seed_for("small", "write", 1, 9) == Sampling(seed=3).seed_for("small", "write", 1, 9)
    assert sampling.seed_for("small", "write", 1, 9) != Sampling(seed=4).seed_for("small", "write", 1, 9)
