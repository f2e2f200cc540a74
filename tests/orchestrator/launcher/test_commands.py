"""The printed settings of a pair can be read by its users."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from stepspec import Endpoint, NestedPair, settings
from stepspec.orchestrator.launcher.commands import as_toml, outline, solver_settings
from stepspec.orchestrator.launcher.launch import RunningServer
from stepspec.orchestrator.launcher.pair import Pair

BIG, TINY = {"model": "big"}, {"model": "tiny"}
OPTIONS = {
    "scale": "step",
    "rollback": 1.0,
    "run": 10,
    "words": ['Wait"', "é"],
    "fast": True,
    "deep": {"a b": 1e-7, "most": math.inf},
}
THREE: dict[str, Any] = {
    "large": {**BIG, "suffix_scoring": True},
    "small": {
        "policy": "bild",
        "options": OPTIONS,
        "large": {"url": "http://m:1,http://n:1", "api_key": "secret", "model": "mid", "deadlines": {"connect": 1.5}},
        "small": TINY,
    },
}


def printed(described: dict[str, Any]) -> str:
    pair = Pair.model_validate(described)
    places = {path: f"http://{path}:9/v1" for path in pair.started}
    places |= {path: ",".join(each.v1 for each in one.each) for path, one in pair.connected.items()}
    standing = {path: RunningServer(place, "served") for path, place in places.items()}
    return as_toml(solver_settings(pair, standing))


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Print the settings of a pair, and load them as a solver does."""
    monkeypatch.chdir(tmp_path)

    def load(described: dict[str, Any]) -> settings.Settings:
        Path("stepspec.toml").write_text(printed(described), encoding="utf-8")
        return settings.load()

    return load


def test_two_servers_are_a_line_each_and_the_settings_of_a_solver(read: Any) -> None:
    plain = {"large": BIG, "small": TINY}
    assert printed(plain) == 'large = "http://large:9/v1"\nsmall = "http://small:9/v1"'
    found = read(plain)
    assert (found.large, found.small) == (
        Endpoint(role="large", url="http://large:9"),
        Endpoint(role="small", url="http://small:9"),
    )


def test_a_pair_within_is_carried_over_with_all_that_is_set_of_it(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSPEC_SMALL__LARGE__API_KEY", "secret")
    found = read(THREE)
    assert found.large == Endpoint(role="large", url="http://large:9", suffix_scoring=True)
    assert isinstance(found.small, NestedPair)
    assert (found.small.policy, found.small.options) == ("bild", OPTIONS)
    assert found.small.large == Pair.model_validate(THREE).connected["small.large"]
    assert found.small.small == Endpoint(role="small", url="http://small.small:9")


def test_template_arguments_and_the_thinking_setting_are_carried_over(read: Any) -> None:
    found = read({"large": {**BIG, "template": {"enable_thinking": True}}, "small": {**TINY, "thinks": False}})
    assert found.large == Endpoint(role="large", url="http://large:9", template={"enable_thinking": True})
    assert found.small == Endpoint(role="small", url="http://small:9", thinks=False)


def test_a_key_is_never_printed_but_can_be_added() -> None:
    assert "secret" not in printed(THREE)
    keyed = {"large": BIG, "small": {"url": "http://s:1", "api_key": "secret"}}
    assert printed(keyed).splitlines()[1] == 'small = { url = "http://s:1/v1" }'


def test_pairs_nest_in_it_to_any_depth(read: Any) -> None:
    four = {"large": BIG, "small": {"large": "http://m:1", "small": {"large": TINY, "small": {"model": "tiniest"}}}}
    found = read(four)
    assert [(path, one.url) for path, one in found.small.models] == [
        ("small.small.small", "http://small.small.small:9"),
        ("small.small.large", "http://small.small.large:9"),
        ("small.large", "http://m:1"),
    ]
    assert [line.split(" = ")[0] for line in printed(four).splitlines()] == [
        "large",
        *("small.policy", "small.options", "small.large"),
        *("small.small.policy", "small.small.options", "small.small.large", "small.small.small"),
    ]


def test_the_printed_settings_of_a_pair_are_a_file_of_a_running_pair() -> None:
    again = Pair.model_validate(tomllib.loads(printed(THREE)))
    assert not again.started
    assert printed(tomllib.loads(printed(THREE))) == printed(THREE)


def test_an_outline_has_the_shape_of_the_file() -> None:
    assert outline(Pair.model_validate(THREE), str.upper) == {
        "large": "LARGE",
        "small": {"policy": "bild", "options": OPTIONS, "large": "SMALL.LARGE", "small": "SMALL.SMALL"},
    }
