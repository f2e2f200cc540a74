"""The arm with a nested pair as its small model."""

from __future__ import annotations

from dataclasses import dataclass, field

from lab import bench
from lab.arms import measure
from lab.bench import NESTED, THREE
from stepspec import NestedPair, policies
from stepspec.evals.arms import LARGE
from stepspec.evals.grading.graders import Answer
from stepspec.evals.sample import Sample, Task
from stepspec.orchestrator.chain import Role

from ..evals.scripted import ScriptedSolver, solution
from ..fakes import ScriptedModel, counting


def test_it_is_measured_unless_other_arms_are_chosen() -> None:
    assert THREE in bench.chosen(None, baselines=False)
    assert THREE in bench.chosen([THREE.name], baselines=False)
    assert THREE not in bench.chosen(["choose"], baselines=False)


def test_its_pair_can_be_made() -> None:
    pair = NestedPair.model_validate(
        {**NESTED[THREE.name], "small": "http://a:1", "large": "http://b:1"}
    )
    models = (
        ScriptedModel("small", counting("small", 2)),
        ScriptedModel("large", counting("large", 2)),
    )
    policies.make(pair.policy, *models, **pair.options)


@dataclass
class Silent:
    """An endpoint that drafts no tokens in its server."""

    role: Role

    async def acceptance(self) -> None:
        return None


@dataclass
class Served(ScriptedSolver):
    """A solver that has endpoints."""

    small: Silent = field(default_factory=lambda: Silent("small"))
    large: Silent = field(default_factory=lambda: Silent("large"))


async def test_an_arm_may_have_a_solver_of_its_own() -> None:
    plain = Served(lambda call: solution("1"))
    nested = Served(lambda call: solution("2"))
    tasks = [Task("a", Answer("2", "exact")), Task("b", Answer("2", "exact"))]
    samples = list[Sample]()
    solvers = {THREE.name: nested.solver}
    await measure(
        plain.solver,
        (LARGE, THREE),
        tasks,
        on_sample=lambda _, each: samples.append(each),
        solvers=solvers,
    )
    assert (
        sorted((sample.arm, sample.correct) for sample in samples)
        == [("large alone", False)] * 2 + [("three models", True)] * 2
    )
    assert (len(plain.calls), len(nested.calls)) == (2, 2)
