"""Policies are found by name; wrong names, options and values are errors."""

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from stepspec import policies
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.interfaces import foreseeable
from stepspec.policies import METHODS, Solo, SpecReason, make, options, threshold

from ..fakes import ScriptedModel, counting
from ..orchestrator.arms import ARMS, ScriptedCritic

SMALL, LARGE = (ScriptedModel(role, counting(role, 3)) for role in ("small", "large"))
CRITIC = ScriptedCritic(lambda chain: 1.0)


@pytest.mark.parametrize("name", METHODS)
def test_every_policy_can_be_made_with_its_defaults(name: str) -> None:
    made = make(name, SMALL, LARGE, critic=CRITIC)
    assert made.answerer is (SMALL if name in ("small", "relay") else LARGE)
    defaults = {key: option.default for key, option in options(name).items()}
    assert made == make(name, SMALL, LARGE, critic=CRITIC, **defaults)


def test_the_promises_to_every_policy_are_tried_on_all_of_them() -> None:
    assert set(METHODS) < set(ARMS)


@pytest.mark.parametrize("name", METHODS)
def test_policies_are_values(name: str) -> None:
    made: Any = make(name, SMALL, LARGE, critic=CRITIC)
    with pytest.raises(FrozenInstanceError):
        setattr(made, fields(made)[0].name, LARGE)
    assert not hasattr(made, "__dict__")  # a place to keep anything in


def test_a_policy_states_whether_its_repair_depends_on_the_chain_alone() -> None:
    foreseen = {name for name in METHODS if foreseeable(make(name, SMALL, LARGE, critic=CRITIC))}
    assert foreseen == {"specreason", "bild", "cascade", "choose", "reading", "reflective", "reward"}


def test_options_are_those_of_the_policy_without_its_models() -> None:
    assert {key: option.default for key, option in options("specreason").items()} == {
        "threshold": 7,
        "read": "expected",
        "sure": 0.05,
        "judge_every": 1,
    }
    assert options("large") == options("small") == {}


@pytest.mark.parametrize("name", METHODS)
def test_a_threshold_is_what_scores_are_compared_with(name: str) -> None:
    found, moved = threshold(name, {}), METHODS[name].threshold
    assert found is None or found[1] == options(name)[found[0]].default
    if moved and moved.compared:
        assert found == (moved.option, options(name)[moved.option].default)


def test_a_chosen_threshold_is_that_of_the_run() -> None:
    assert threshold("specreason", {"threshold": 5, "sure": 0.5}) == ("threshold", 5.0)
    assert threshold("bild", {"rollback": 2.5}) == ("rollback", 2.5)
    assert threshold("random", {"p": 0.5}) is threshold("large", {}) is None


def test_chosen_options_arrive_and_may_be_texts_of_a_command_line() -> None:
    made = make("specreason", SMALL, LARGE, threshold="5.5", read="expected", sure="0.5")
    assert made == SpecReason(SMALL, LARGE, threshold=5.5, read="expected", sure=0.5)
    assert made.__class__ is SpecReason


def test_the_baselines_are_one_model_alone() -> None:
    assert make("small", SMALL, LARGE) == Solo(SMALL)
    assert make("large", SMALL, LARGE) == Solo(LARGE)


def test_an_unknown_policy_is_an_error_with_the_closest_and_all_names() -> None:
    with pytest.raises(ConfigurationError, match=r"no policy 'specreson' \(did you mean 'specreason'") as caught:
        make("specreson", SMALL, LARGE)
    assert all(name in str(caught.value) for name in METHODS)
    with pytest.raises(ConfigurationError, match=r"no policy 'zzz'; the policies: "):
        options("zzz")


def test_an_unknown_option_is_an_error_with_the_closest_and_all_options() -> None:
    with pytest.raises(ConfigurationError, match=r"has no option 'thresholds' \(did you mean 'threshold'") as caught:
        make("specreason", SMALL, LARGE, thresholds=3)
    assert all(f"{key}={option.default!r}" in str(caught.value) for key, option in options("specreason").items())
    with pytest.raises(ConfigurationError, match="'large' has no option 'zzz'; its options: none"):
        make("large", SMALL, LARGE, zzz=3)


def test_the_former_option_for_first_steps_is_an_error_with_its_replacement() -> None:
    with pytest.raises(ConfigurationError, match=r"'specreason' has no option 'first' .*pass lead=N, or --lead N"):
        make("specreason", SMALL, LARGE, first=2)


@pytest.mark.parametrize("models", ["small", "large"])
def test_the_models_are_no_options(models: str) -> None:
    assert models not in options("specreason")


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"threshold": "high"}, r"'threshold': a number from 0 to 9 \(got 'high'"),
        ({"read": "average"}, r"'read': 'greedy' or 'expected' \(got 'average'"),
        ({"sure": None}, r"'sure': a number from 0 to 1 \(got None"),
    ],
)
def test_a_wrong_value_is_an_error_with_the_valid_ones(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"policy 'specreason', option {words}"):
        make("specreason", SMALL, LARGE, **chosen)


def test_every_name_that_is_offered_exists() -> None:
    assert all(hasattr(policies, name) for name in policies.__all__)
