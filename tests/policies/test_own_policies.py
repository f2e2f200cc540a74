"""A policy of a user's own: a class, a function or a `Method` in place of a name, with options as any policy has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import pytest
from pydantic import Field

from stepspec import Accept, Chain, Method, Model, Policy, Rollback, Step, Threshold, Verdict
from stepspec.evals.calibration.policy_file import find_threshold
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.policies import METHODS, SpecReason, check, describe_options, make, named
from stepspec.policies.method import read_method

from ..fakes import ScriptedModel, counting

SMALL, LARGE = (ScriptedModel(role, counting(role, 3)) for role in ("small", "large"))


@dataclass(frozen=True, slots=True)
class Alternate:
    """
    Reject every draft at an even place.

    At most *most* drafts are accepted.
    """

    small: Model
    large: Model
    most: Annotated[int, Field(ge=0, le=9)] = 3

    @property
    def answerer(self) -> Model:
        return self.large

    async def draft(self, chain: Chain) -> Step:
        return await self.small.write(chain)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        return Accept() if len(chain.steps) % 2 and len(chain.steps) < self.most else Rollback()

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.large.write(chain)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the registry forget what a test adds."""
    monkeypatch.setattr(METHODS, "_added", {})


def test_a_class_is_chosen_by_its_name_and_its_options_are_checked() -> None:
    name = named(Alternate)
    assert name == named(Alternate) == "Alternate"
    assert make(name, SMALL, LARGE, most="5") == Alternate(SMALL, LARGE, most=5)
    with pytest.raises(ConfigurationError, match="policy 'Alternate', option 'most': a whole number from 0 to 9"):
        check(name, {"most": 10})
    assert METHODS[name].about == "Reject every draft at an even place."
    assert describe_options(name)["most"].means == "At most *most* drafts are accepted."


def test_bound_arguments_are_defaults_that_may_be_overridden() -> None:
    name = named(partial(SpecReason, threshold=5))
    assert name != named(partial(SpecReason, threshold=6))
    assert make(name, SMALL, LARGE) == SpecReason(SMALL, LARGE, threshold=5)
    assert make(name, SMALL, LARGE, threshold=8) == SpecReason(SMALL, LARGE, threshold=8)
    assert METHODS[name].documentation == METHODS["specreason"].documentation


def test_a_function_may_build_a_policy() -> None:
    def strict(small: Model, large: Model, *, at: float = 8) -> Policy:
        """Be strict."""
        return SpecReason(small, large, threshold=at)

    assert make(named(strict), SMALL, LARGE) == SpecReason(SMALL, LARGE, threshold=8)


def test_a_method_brings_its_threshold_to_calibrate() -> None:
    threshold = Threshold("most", (0, 1, 2, 3))
    plain, name = named(Alternate), METHODS.add(Method(Alternate, threshold=threshold), "Alternate")
    assert (plain, name) == ("Alternate", "Alternate-2")
    assert find_threshold(name) == threshold


def takes_one(large: Model) -> Any: ...
def takes_any(small: Model, large: Model, **others: float) -> Any: ...
def takes_more(small: Model, large: Model, threshold: float) -> Any: ...
def takes_anything(small: Model, large: Model, threshold=7) -> Any: ...  # type: ignore[no-untyped-def]
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
        (Method(Alternate, threshold=Threshold("least", (1, 0))), "the threshold 'least' is none of its options"),
        (Method(Alternate, prompts=("gone",)), "there is no prompt 'gone'"),
    ],
)
def test_what_cannot_be_a_policy_is_refused_with_the_reason(value: object, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        read_method("mine", value)
