"""The values of options are checked before a run and described for users."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, TypeAdapter

from stepspec.orchestrator import Accept, Budget
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Judged
from stepspec.policies import METHODS, THRESHOLDS, check, describe_options, make, options
from stepspec.policies.option_types import Above0, Amount, Grade, Top, describe, meaning

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import ScriptedCritic, arm, taste

SMALL, LARGE = (ScriptedModel(role, counting(role, 3)) for role in ("small", "large"))
OPTIONS = [(name, option) for name in METHODS for option in options(name)]
RANGES: list[tuple[str, str, tuple[float, ...], tuple[object, ...]]] = [
    ("specreason", "threshold", (0, 9), (-0.5, 9.5, 10, "nan", "inf")),
    ("specreason", "sure", (0, 1), (-0.1, 7, "nan")),
    ("specreason", "judge_every", (1, 8), (0, 9, 1.5)),
    ("speculative-thinking", "n1", (1,), (0, -3, 2.5)),
    ("speculative-thinking", "n2", (1,), (0, -3)),
    ("speculative-thinking", "n3", (1,), (0, -3)),
    ("speculative-thinking", "limit", (1,), (0, -3)),
    ("speculative-thinking", "begin", (1,), (0, -3)),
    ("bild", "fallback", (0, 1), (-0.1, 60, "nan")),
    ("bild", "rollback", (0,), (-1, "nan", "inf")),
    ("bild", "run", (1,), (0, -1)),
    ("reading", "threshold", (0,), (-1, "nan", "inf")),
    ("reading", "words", (0,), (-1, "nan", "inf")),
    ("reading", "mean", (0,), (-1, "nan", "inf")),
    ("glimpse", "threshold", (0,), (-1, "nan", "inf")),
    ("glimpse", "top", (2, 20), (0, 1, 21)),
    ("cascade", "sure", (0, 1), (-1, 7, "nan")),
    ("cascade", "threshold", (0, 1), (-1, 7, "nan")),
    ("choose", "candidates", (1, 20), (0, 21, 99)),
    ("choose", "least", (1,), (0, 1.5, "nan")),
    ("choose", "temperature", (0,), (-1, "nan", "inf")),
    ("choose", "threshold", (0, 9), (-1, 10, "nan")),
    ("choose", "sure", (0, 1), (-1, 7, "nan")),
    ("random", "p", (0, 1), (-1, 5, "nan")),
    ("reflective", "alpha", (0, 1), (-1, 7, "nan")),
    ("reflective", "top", (1, 20), (0, 21, 30)),
    ("reflective", "epsilon", (0, 1), (-1, 7, "nan")),
    ("reflective", "delta", (0,), (-1, "nan", "inf")),
    ("lookahead-reasoning", "sure", (0, 1), (-1, 7, "nan")),
    ("reward", "threshold", (0, 1), (-1, 5, "nan")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "option", "allowed", "refused"), RANGES)
def test_a_value_outside_its_range_is_refused_with_the_range(
    name: str, option: str, allowed: tuple[float, ...], refused: tuple[object, ...]
) -> None:
    for value in allowed:
        assert check(name, {option: value}) == {option: value}
    for wrong in refused:
        options: dict[str, Any] = {option: wrong}
        with pytest.raises(ConfigurationError) as caught:
            make(name, SMALL, LARGE, critic=ScriptedCritic(lambda chain: 1.0), **options)
        described = describe_options(name)[option].values
        assert str(caught.value) == f"policy {name!r}, option {option!r}: {described} (got {wrong!r})"


@pytest.mark.parametrize(("name", "option", "value"), [(*one[:2], value) for one in RANGES for value in one[2]])
def test_at_the_ends_of_a_range_a_run_still_ends(name: str, option: str, value: float) -> None:
    tried = arm(name, 3, trouble=0.0, budget=Budget(tokens=200, answer=20))
    policy: Any = getattr(tried.policy, "policy", tried.policy)
    tried.policy = dataclasses.replace(policy, **check(name, {option: value}))
    assert run(tried.run(1))[0][1] in ("finished", "budget", "repetition")


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_option_is_explained_and_every_number_has_a_range(name: str, option: str) -> None:
    described = describe_options(name)[option]
    assert described.default == options(name)[option].default
    assert f"*{option}*" in described.means
    if "number" in described.values and option != "seed":
        assert any(word in described.values for word in (" from ", " above ", " or more")), described.values


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_default_is_a_valid_value(name: str, option: str) -> None:
    default = options(name)[option].default
    assert check(name, {option: default}) == {option: default}


@pytest.mark.parametrize("name", THRESHOLDS)
def test_the_values_of_a_knob_are_in_its_range(name: str) -> None:
    for value in THRESHOLDS[name].values:
        assert check(name, {THRESHOLDS[name].option: value}) == {THRESHOLDS[name].option: value}


def test_a_check_needs_no_models_and_finds_the_same_errors() -> None:
    assert check("specreason", {"threshold": "5.5"}) == {"threshold": 5.5}
    assert check("reward", {}) == {}
    with pytest.raises(ConfigurationError, match=r"'reward' needs a reward model .* STEPSPEC_CRITIC"):
        check("reward", {}, has_critic=False)
    assert check("specreason", {}, has_critic=False) == {}
    with pytest.raises(ConfigurationError, match="'relay' needs cues"):
        check("relay", {"cues": []})
    with pytest.raises(ConfigurationError, match=r"'cues': a list of texts \(got 'So'\)"):
        check("relay", {"cues": "So"})


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (int, "a whole number"),
        (bool, "true or false"),
        (Top, "a whole number from 1 to 20"),
        (Grade, "a number from 0 to 9"),
        (Above0, "a number above 0, 1 at most"),
        (Amount, "a number of 0 or more"),
        (Literal["one", "two"], "'one' or 'two'"),
        (tuple[str, ...], "a list of texts"),
        (Top | None, "a whole number from 1 to 20 or null"),
        (Annotated[str, Field(min_length=1)], "string"),
    ],
)
def test_types_are_described_in_words(kind: Any, words: str) -> None:
    assert describe(TypeAdapter(kind)) == words


def test_the_meaning_of_an_option_is_its_sentences() -> None:
    text = "Take *this*\n    or *that*. It is 0.5 (see a.b) at first.\n\n*that* is more.\n\nMore on *this*, at last."
    assert meaning(text, "that") == "Take *this* or *that*. *that* is more."
    assert meaning(text, "this") == "Take *this* or *that*. More on *this*, at last."
    assert meaning(text, "other") == ""


@pytest.mark.parametrize("policy", THRESHOLDS)
def test_a_knob_is_turned_one_way_through_values_that_its_option_may_have(policy: str) -> None:
    knob = THRESHOLDS[policy]
    assert options(policy)[knob.option].default in knob.values
    for value in knob.values:
        assert check(policy, {knob.option: value}) == {knob.option: value}
    ordered = sorted(set(knob.values))
    assert knob.values in (tuple(ordered), tuple(reversed(ordered)))


def accepted(policy: str, value: float) -> float:
    """The share of the drafts that *policy* accepts with that *value* of its knob, over a few seeds."""
    verdicts: list[bool] = []
    options: dict[str, Any] = {THRESHOLDS[policy].option: value}
    for seed in range(12):
        tried = arm(policy, seed)
        critic = ScriptedCritic(lambda chain: taste(chain.text))
        tried.policy = make(policy, tried.small, tried.large, critic=critic, **options)
        run(tried.run())
        verdicts += [isinstance(event.verdict, Accept) for event in tried.events if isinstance(event, Judged)]
    return sum(verdicts) / len(verdicts)


@pytest.mark.parametrize("policy", THRESHOLDS)
def test_the_first_value_is_the_strictest_and_the_last_the_loosest(policy: str) -> None:
    first, *_, last = THRESHOLDS[policy].values
    assert accepted(policy, first) < accepted(policy, last)


@pytest.mark.parametrize(("policy", "highest"), [("specreason", 9), ("reward", 1)])
def test_where_a_score_is_compared_the_strictest_value_is_the_highest_score(policy: str, highest: float) -> None:
    assert THRESHOLDS[policy].compared
    assert THRESHOLDS[policy].values[0] == highest
    assert {name for name, knob in THRESHOLDS.items() if knob.compared} == {"specreason", "reward"}
