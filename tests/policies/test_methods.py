"""Methods are found by name, or are a user's own; wrong names, options and values are errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter

from stepspec import Method, Threshold
from stepspec.evals.calibration.policy_file import find_threshold
from stepspec.orchestrator import (
    Accept,
    Budget,
    Chain,
    Model,
    Policy,
    Rollback,
    Step,
    Verdict,
    reason,
)
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Judged
from stepspec.orchestrator.interfaces import repair_may_start_early
from stepspec.policies import METHODS, Solo, SpecReason, check, defaults, make, named, threshold
from stepspec.policies.method import Drafting, Top, describe, meaning, read_method
from stepspec.prompts import load

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import ARMS, BOUNDED, PROBLEM, ScriptedCritic, arm, taste

ROLES: tuple[Role, ...] = ("small", "large")
SMALL, LARGE = (ScriptedModel(role, counting(role, 3)) for role in ROLES)
CRITIC = ScriptedCritic(lambda chain: 1.0)
OPTIONS = [(name, option) for name in METHODS for option in METHODS[name].options]
every_method = pytest.mark.parametrize("name", METHODS)
every_option = pytest.mark.parametrize(("name", "option"), OPTIONS)


@every_method
def test_every_method_is_made_with_its_defaults_and_is_a_value(name: str) -> None:
    made: Any = make(name, SMALL, LARGE, critic=CRITIC)
    assert name in ARMS, "the promises to every policy are tried on all of them"
    assert made.answerer is (SMALL if name in ("small", "relay") else LARGE)
    assert made == make(name, SMALL, LARGE, critic=CRITIC, **defaults(name))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, dataclasses.fields(made)[0].name, LARGE)
    assert not hasattr(made, "__dict__")  # a place to keep anything in


def test_a_policy_states_whether_its_repair_depends_on_the_chain_alone() -> None:
    foreseen = {
        name
        for name in METHODS
        if repair_may_start_early(make(name, SMALL, LARGE, critic=CRITIC), PROBLEM)
    }
    assert foreseen == {
        "specreason",
        "bild",
        "cascade",
        "choose",
        "reading",
        "reflective",
        "reward",
    }


def test_options_are_those_of_the_policy_without_its_models_and_their_defaults_the_papers() -> None:
    assert {name: defaults(name) for name in METHODS if name not in ("reading", "relay")} == {
        "large": {},
        "small": {},
        "specreason": {"threshold": 7, "read": "expected", "sure": 0.05},
        "speculative-thinking": {
            "n1": 20,
            "n2": 125,
            "n3": 125,
            "limit": 15,
            "begin": 100,
            "reasoning": True,
        },
        "bild": {"fallback": 0.6, "rollback": 5.0, "run": 10, "scale": "token"},
        "glimpse": {"threshold": 1.0, "top": 20},
        "cascade": {"sure": 0.9, "threshold": 0.5},
        "choose": {"candidates": 4, "least": 0.05, **defaults("specreason")},
        "random": {"p": 0.5, "seed": 0},
        "reflective": {
            **{"alpha": 0.3, "accept": None, "top": None, "epsilon": 0.09, "delta": 0.3}
        },
        "lookahead-reasoning": {"sure": 0.05},
        "reward": {"threshold": 0.7},
    }
    # as from a command line
    made = make("specreason", SMALL, LARGE, threshold="5.5", read="expected", sure="0.5")
    assert made == SpecReason(SMALL, LARGE, threshold=5.5, read="expected", sure=0.5)
    assert (make("small", SMALL, LARGE), make("large", SMALL, LARGE)) == (Solo(SMALL), Solo(LARGE))


@every_method
def test_a_threshold_is_what_scores_are_compared_with(name: str) -> None:
    found = threshold(name, {})
    assert found is None or found[1] == defaults(name)[found[0]]
    assert threshold("specreason", {"threshold": 5, "sure": 0.5}) == ("threshold", 5.0)
    assert threshold("random", {"p": 0.5}) is threshold("large", {}) is None


@pytest.mark.parametrize(
    ("name", "chosen", "words"),
    [
        (
            "specreson",
            {},
            r"no policy 'specreson' \(did you mean 'specreason'.*; the policies: .*relay",
        ),
        (
            "specreason",
            {"thresholds": 3},
            r"no option 'thresholds' \(did you mean 'threshold'.*sure=0.05",
        ),
        ("large", {"zzz": 3}, "'large' has no option 'zzz'; its options: none"),
        ("specreason", {"small": 2}, "has no option 'small'"),
        (
            "specreason",
            {"threshold": "high"},
            r"option 'threshold': a number from 0 to 9 \(got 'high'",
        ),
        (
            "specreason",
            {"read": "average"},
            r"option 'read': 'greedy' or 'expected' \(got 'average'",
        ),
        ("specreason", {"sure": None}, r"option 'sure': a number from 0 to 1 \(got None"),
        ("specreason", {"threshold": 9.5}, r"option 'threshold': a number from 0 to 9 \(got 9.5"),
        ("specreason", {"threshold": "nan"}, "a number from 0 to 9"),
        ("bild", {"rollback": -1}, r"a number of 0 or more \(got -1"),
        ("bild", {"rollback": "inf"}, "a number of 0 or more"),
        ("bild", {"run": 0}, r"a whole number of 1 or more \(got 0"),
        ("bild", {"run": 2.5}, "a whole number of 1 or more"),
        ("glimpse", {"top": 1}, "a whole number from 2 to 20"),
        ("choose", {"candidates": 21}, "a whole number from 1 to 20"),
        ("choose", {"least": 0}, "a number above 0, 1 at most"),
        (
            "relay",
            {"cues": []},
            r"'cues': a list of texts, at least one and none empty \(got \[\]\)",
        ),
        ("relay", {"cues": ["So", ""]}, "at least one and none empty"),
        ("relay", {"cues": "So"}, r"'cues': a list of texts.* \(got 'So'\)"),
    ],
)
def test_a_wrong_name_option_or_value_is_an_error_with_the_valid_ones(
    name: str, chosen: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        check(name, chosen)
    with pytest.raises((ConfigurationError, TypeError)):
        make(name, SMALL, LARGE, **chosen)


def test_a_check_needs_no_models() -> None:
    assert check("specreason", {"threshold": "5.5"}) == {"threshold": 5.5}
    assert check("reward", {}) == {}
    with pytest.raises(
        ConfigurationError, match=r"'reward' needs a reward model .* STEPSPEC_CRITIC"
    ):
        check("reward", {}, has_critic=False)
    assert check("specreason", {}, has_critic=False) == {}


@every_option
def test_every_option_is_explained_has_a_valid_default_and_a_number_a_range(
    name: str, option: str
) -> None:
    described = METHODS[name].describe_options()[option]
    default = defaults(name)[option]
    assert described.default == default
    assert check(name, {option: default}) == {option: default}
    assert f"*{option}*" in described.means
    if "number" in described.values and option != "seed":
        assert any(word in described.values for word in (" from ", " above ", " or more")), (
            described.values
        )


@every_option
def test_at_the_ends_of_a_range_a_run_still_ends(name: str, option: str) -> None:
    schema = METHODS[name].kinds[option].json_schema()
    for value in (schema[key] for key in ("minimum", "maximum") if key in schema):
        tried = arm(name, 3, trouble=0.0, budget=Budget(tokens=200, answer=20))
        policy: Any = getattr(tried.policy, "policy", tried.policy)
        tried.policy = dataclasses.replace(policy, **check(name, {option: value}))
        assert run(tried.run(1))[0][1] in ("finished", "budget", "repetition")


LIMITS: list[tuple[str, dict[str, Any], str]] = [
    ("specreason", {"threshold": 10}, "large"),
    ("specreason", {"threshold": 0, "sure": 0}, "small"),
    ("reward", {"critic": CRITIC, "threshold": 1.5}, "large"),
    ("reward", {"critic": CRITIC, "threshold": 0}, "small"),
    ("random", {"p": 0.0}, "large"),
    ("random", {"p": 1.0}, "small"),
    ("lookahead-reasoning", {"sure": 1.5}, "large"),
    ("bild", {"fallback": 1.1}, "large"),
    ("bild", {"fallback": 0, "rollback": 0}, "large"),
    ("bild", {"fallback": 0, "rollback": 0, "scale": "step"}, "large"),
    ("bild", {"fallback": 0, "rollback": 99, "run": 3}, "small"),
    ("reading", {"threshold": 0, "words": 0, "measure": "logprob"}, "large"),
]


@pytest.mark.parametrize(("name", "chosen", "author"), LIMITS)
@given(seed=st.integers(0, 10_000), ahead=st.sampled_from([0, 2]))
@BOUNDED
def test_at_its_limits_a_method_writes_what_one_model_alone_does(
    name: str, chosen: dict[str, Any], author: str, seed: int, ahead: int
) -> None:
    tried = arm(name, seed, trouble=0.0)
    (chain, end), _ = run(
        reason(METHODS[name].build(tried.small, tried.large, **chosen), PROBLEM, ahead=ahead)
    )
    (alone, _), _ = run(reason(make(author, tried.small, tried.large), PROBLEM))
    assert (chain.text, end) == (alone.text, "finished")
    assert author == "large" or {step.author for step in chain.steps} == {"small"}


class Listening(ScriptedModel):
    """A judge that notes what it is asked, and is in doubt."""

    asked: list[tuple[Role, Chain, str, object, str]]

    async def ask(
        self, chain: Chain, question: str, choices: Sequence[str], *, opening: str = ""
    ) -> Mapping[str, float]:
        self.asked.append((self.role, chain, question, choices, opening))
        return dict.fromkeys(choices, 1 / len(choices))


@pytest.mark.parametrize(
    ("name", "prompt", "judges", "choices"),
    [
        ("specreason", "specreason.grade", ["large"], "0123456789"),
        ("cascade", "check", ["small", "large"], ("Yes", "No")),
        ("lookahead-reasoning", "lookahead-reasoning.same", ["large"], ("Yes", "No")),
    ],
)
def test_the_judge_gets_the_methods_prompt_after_the_chain_with_the_draft(
    name: str, prompt: str, judges: list[Role], choices: Sequence[str]
) -> None:
    small, large = (Listening(role, counting(role, 3)) for role in ROLES)
    small.asked = large.asked = []
    draft = Step("So it is.\n\n", "small")
    loaded = load(prompt)
    run(make(name, small, large).verify(PROBLEM, draft))
    # its own step, which the draft is compared with
    question = loaded.fill(step="The large one says 0.")
    assert large.asked == [
        (role, PROBLEM.extend(draft), question, choices, loaded.opening) for role in judges
    ]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (bool, "true or false"),
        (Literal["one", "two"], "'one' or 'two'"),
        (Top | None, "a whole number from 1 to 20 or null"),
        (Annotated[str, Field(min_length=1)], "string"),
    ],
)
def test_types_are_described_in_words(kind: Any, words: str) -> None:
    assert describe(TypeAdapter(kind)) == words


def test_the_meaning_of_an_option_is_its_sentences() -> None:
    text = (
        "Take *this*\n    or *that*. It is 0.5 (see a.b) at first.\n\n*that* is more.\n\nMore on"
        " *this*, at last."
    )
    assert meaning(text, "that") == "Take *this* or *that*. *that* is more."
    assert meaning(text, "this") == "Take *this* or *that*. More on *this*, at last."
    assert meaning(text, "other") == ""


THRESHOLDS = {name: method.threshold for name, method in METHODS.items() if method.threshold}


def accepted(policy: str, value: float) -> float:
    """
    The share of the drafts that *policy* accepts with that *value* of its threshold, over a few
    seeds.
    """
    verdicts: list[bool] = []
    for seed in range(12):
        tried = arm(policy, seed)
        critic = ScriptedCritic(lambda chain: taste(chain.text))
        chosen: dict[str, Any] = {THRESHOLDS[policy].option: value}
        tried.policy = make(policy, tried.small, tried.large, critic=critic, **chosen)
        run(tried.run())
        verdicts += [
            isinstance(event.verdict, Accept) for event in tried.events if isinstance(event, Judged)
        ]
    return sum(verdicts) / len(verdicts)


@pytest.mark.parametrize("policy", THRESHOLDS)
def test_a_threshold_moves_from_its_strictest_to_its_loosest_value(policy: str) -> None:
    option = THRESHOLDS[policy].option
    values = THRESHOLDS[policy].values
    assert defaults(policy)[option] in values
    assert all(check(policy, {option: value}) == {option: value} for value in values)
    assert list(values) in (sorted(set(values)), sorted(set(values), reverse=True))
    assert accepted(policy, values[0]) < accepted(policy, values[-1])


# A user's own: a class, a function or a `Method` in place of a name.


@dataclass(frozen=True, slots=True)
class Alternate(Drafting):
    """
    Reject every draft at an even place.

    At most *most* drafts are accepted.
    """

    most: Annotated[int, Field(ge=0, le=9)] = 3

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        return Accept() if len(chain.steps) % 2 and len(chain.steps) < self.most else Rollback()


@pytest.fixture
def forgetting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the registry forget what a test adds."""
    monkeypatch.setattr(METHODS, "_added", {})


@pytest.mark.usefixtures("forgetting")
def test_a_class_or_a_function_is_chosen_by_its_name_and_its_options_are_checked() -> None:
    name = named(Alternate)
    assert name == named(Alternate) == "Alternate"
    assert make(name, SMALL, LARGE, most="5") == Alternate(SMALL, LARGE, most=5)
    with pytest.raises(
        ConfigurationError, match="policy 'Alternate', option 'most': a whole number from 0 to 9"
    ):
        check(name, {"most": 10})
    assert METHODS[name].about == "Reject every draft at an even place."
    assert METHODS[name].describe_options()["most"].means == "At most *most* drafts are accepted."

    def strict(small: Model, large: Model, *, at: float = 8) -> Policy:
        """Be strict."""
        return SpecReason(small, large, threshold=at)

    assert make(named(strict), SMALL, LARGE) == SpecReason(SMALL, LARGE, threshold=8)


@pytest.mark.usefixtures("forgetting")
def test_bound_arguments_are_defaults_and_a_method_brings_its_threshold() -> None:
    name = named(partial(SpecReason, threshold=5))
    assert name != named(partial(SpecReason, threshold=6))
    assert make(name, SMALL, LARGE) == SpecReason(SMALL, LARGE, threshold=5)
    assert make(name, SMALL, LARGE, threshold=8) == SpecReason(SMALL, LARGE, threshold=8)
    assert METHODS[name].documentation == METHODS["specreason"].documentation
    moved = Threshold("most", (0, 1, 2, 3))
    plain = named(Alternate)
    name = METHODS.add(Method(Alternate, threshold=moved), "Alternate")
    assert (plain, name) == ("Alternate", "Alternate-2")
    assert find_threshold(name) == moved


def takes_one(large: Model) -> Any: ...
def takes_any(small: Model, large: Model, **others: float) -> Any: ...
def takes_more(small: Model, large: Model, threshold: float) -> Any: ...
def takes_anything(  # type: ignore[no-untyped-def]
    small: Model,
    large: Model,
    threshold=7,  # pyright: ignore[reportMissingParameterType]
) -> Any: ...
def takes_a_model(small: Model, large: Model, other: Model | None = None) -> Any: ...


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (7, "7 is neither a policy's class, nor a function that builds one, nor a Method"),
        (dict, "mine is no policy: it has no draft, verify, repair, answerer"),
        (takes_one, "mine has to take the parameters small and large"),
        (takes_any, r"\*\*others: 'float' cannot be set by name"),
        (takes_more, "the option 'threshold' has no default"),
        (takes_anything, "the option 'threshold' has no type"),
        (takes_a_model, "the type of an option cannot be used"),
        (
            Method(Alternate, threshold=Threshold("least", (1, 0))),
            "the threshold 'least' is none of its options",
        ),
        (Method(Alternate, prompts=("gone",)), "there is no prompt 'gone'"),
    ],
)
def test_what_cannot_be_a_policy_is_refused_with_the_reason(value: object, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        read_method("mine", value)
