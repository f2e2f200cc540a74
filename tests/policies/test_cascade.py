"""ConfSpec: the small model's sure verdicts are final, and the others are the large one's."""

from collections.abc import Mapping

import pytest

from stepspec.orchestrator import Accept, Rollback, Step, Verdict
from stepspec.policies import Cascade

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import PROBLEM

DRAFT = Step("So it is.\n\n", "small")


def pair(
    small: Mapping[str, float], large: Mapping[str, float]
) -> tuple[ScriptedModel, ScriptedModel]:
    writer = ScriptedModel("small", counting("small", 3), judge=lambda chain, question: small)
    return writer, ScriptedModel(
        "large", counting("large", 3), judge=lambda chain, question: large, log=writer.log
    )


@pytest.mark.parametrize(
    ("small", "large", "verdict"),
    [
        ({"Yes": 0.9}, {}, Accept(0.9)),
        ({"Yes": 0.97}, {}, Accept(0.97)),
        ({"Yes": 0.1, "No": 0.9}, {}, Rollback(reason="small check", score=0.1)),
        ({"Yes": 0.05, "No": 0.95}, {}, Rollback(reason="small check", score=0.05)),
        ({"Yes": 0.89, "No": 0.11}, {"Yes": 0.5}, Accept(0.5)),
        (
            {"Yes": 0.89, "No": 0.11},
            {"Yes": 0.49, "No": 0.3},
            Rollback(reason="large check", score=0.49),
        ),
        # nine times likelier than No, but unsure
        ({"Yes": 0.1, "Well": 0.9}, {"Yes": 0.75, "No": 0.25}, Accept(0.75)),
        ({}, {"Well": 1.0}, Rollback(reason="large check", score=0.0)),
    ],
)
def test_the_large_model_judges_where_the_small_one_is_in_doubt(
    small: Mapping[str, float], large: Mapping[str, float], verdict: Verdict
) -> None:
    models = pair(small, large)
    assert run(Cascade(*models).verify(PROBLEM, DRAFT))[0] == verdict
    questions = [line for line in models[0].log if "done" not in line]
    assert questions == ["small ask 1", "large ask 1"][: 2 if large else 1]


def test_thresholds_may_be_chosen() -> None:
    models = pair({"Yes": 0.6, "No": 0.4}, {"Yes": 0.6})
    assert run(Cascade(*models, sure=0.6).verify(PROBLEM, DRAFT))[0] == Accept(0.6)
    assert run(Cascade(*models, threshold=0.7).verify(PROBLEM, DRAFT))[0] == Rollback(
        reason="large check", score=0.6
    )
