"""One precedence, unknown keys refused everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepspec import Endpoint, NestedPair, settings
from stepspec.orchestrator.endpoints import CriticEndpoint
from stepspec.orchestrator.errors import ConfigurationError


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_arguments_go_before_variables_before_the_file_before_defaults(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "stepspec.toml").write_text('policy = "large"\nahead = 5\n[budget]\nsteps = 7\n')
    assert settings.load().policy == "large"
    monkeypatch.setenv("STEPSPEC_POLICY", "small")
    loaded = settings.load(ahead=0)
    assert (loaded.policy, loaded.ahead, loaded.budget.steps, loaded.budget.tokens) == ("small", 0, 7, 8192)
    assert settings.load(policy="specreason").policy == "specreason"


def test_an_endpoint_is_a_url_or_a_table(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nowhere / "stepspec.toml").write_text('[small]\nurl = "http://a:1/v1"\nmodel = "tiny"\n')
    monkeypatch.setenv("STEPSPEC_LARGE", "http://b:2")
    loaded = settings.load()
    assert isinstance(loaded.small, Endpoint)
    assert loaded.large is not None
    assert (loaded.small.role, loaded.small.v1, loaded.small.model) == ("small", "http://a:1/v1", "tiny")
    assert (loaded.large.role, loaded.large.v1) == ("large", "http://b:2/v1")


@pytest.mark.parametrize(
    ("file", "variables", "arguments", "url"),
    [
        ('large = "http://f:1"', {}, {}, "http://f:1"),
        ('[large]\nurl = "http://f:1"', {}, {}, "http://f:1"),
        ("", {"STEPSPEC_LARGE": "http://v:1"}, {}, "http://v:1"),
        ("", {}, {"large": "http://a:1"}, "http://a:1"),
        ('[large]\nurl = "http://f:1"\nmodel = "other"', {}, {"large": "http://a:1"}, "http://a:1"),
    ],
    ids=["line", "table", "variable", "argument", "argument before table"],
)
def test_the_key_of_a_variable_is_used_wherever_the_url_stands(
    file: str,
    variables: dict[str, str],
    arguments: dict[str, Any],
    url: str,
    nowhere: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (nowhere / "stepspec.toml").write_text(file)
    for name, value in {**variables, "STEPSPEC_LARGE__API_KEY": "secret"}.items():
        monkeypatch.setenv(name, value)
    large = settings.load(**arguments).large
    assert large is not None
    assert (large.url, large.model) == (url, None)
    assert large.api_key is not None
    assert large.api_key.get_secret_value() == "secret"
    monkeypatch.setenv("STEPSPEC_CRITIC__API_KEY", "other")
    critic = settings.load(critic="http://c:1", **arguments).critic
    assert isinstance(critic, CriticEndpoint)
    assert critic.api_key is not None


def test_the_key_of_a_model_in_a_nested_pair_is_used_beside_its_url(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "stepspec.toml").write_text('[small]\nlarge = "http://m:1"\nsmall = "http://t:1"\n')
    monkeypatch.setenv("STEPSPEC_SMALL__LARGE__API_KEY", "secret")
    small = settings.load().small
    assert isinstance(small, NestedPair)
    assert small.large.api_key is not None
    assert (small.large.url, small.small) == ("http://m:1", Endpoint(role="small", url="http://t:1"))


def test_a_key_that_an_endpoint_has_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSPEC_LARGE__API_KEY", "secret")
    own = Endpoint.model_validate({"role": "large", "url": "http://a:1", "api_key": "own"})
    assert settings.load(large=own).large == own
    without = own.model_copy(update={"api_key": None})
    assert settings.load(large=without).large == without


def test_replicas_are_a_list_in_the_file_and_separated_by_commas_in_a_variable(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "stepspec.toml").write_text('[small]\nurl = "http://a:1/v1"\nreplicas = ["http://a:2/v1"]\n')
    monkeypatch.setenv("STEPSPEC_LARGE", "http://b:1,http://b:2/v1")
    loaded = settings.load()
    assert isinstance(loaded.small, Endpoint)
    assert loaded.large is not None
    assert (loaded.small.urls, loaded.large.urls) == (("http://a:1", "http://a:2"), ("http://b:1", "http://b:2"))


def test_a_partial_sampling_keeps_the_other_defaults() -> None:
    sampling = settings.load(sampling={"seed": 3}).sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.6, 0.95, 3)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"polcy": "x"}, r"unknown setting 'polcy' \(did you mean 'policy'\?\)"),
        ({"budget": {"token": 1}}, "unknown setting 'budget.token'"),
        ({"small": "nonsense"}, "small.url: 'nonsense' is not the URL of a server"),
        ({"ahead": -1}, "ahead"),
        ({"lead": -1}, "lead"),
        ({"large": "http://a,http://a"}, "large: a URL is given twice"),
        ({"sampling": {"temperature": 9}}, "sampling.temperature"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        settings.load(**arguments)


def test_unknown_variables_and_keys_of_the_file_are_errors(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nowhere / "stepspec.toml").write_text("aheda = 1\n")
    with pytest.raises(ConfigurationError, match=r"unknown setting 'aheda' \(did you mean 'ahead'\?\)"):
        settings.load()
    (nowhere / "stepspec.toml").write_text("ahead = \n")
    with pytest.raises(ConfigurationError):
        settings.load()
    monkeypatch.setenv("STEPSPEC_AHAED", "1")
    with pytest.raises(ConfigurationError, match=r"STEPSPEC_AHAED \(did you mean 'STEPSPEC_AHEAD'\?\)"):
        settings.load()


def test_a_file_that_is_named_has_to_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSPEC_CONFIG", "/does/not/exist.toml")
    with pytest.raises(ConfigurationError, match=r"exist\.toml"):
        settings.load()
