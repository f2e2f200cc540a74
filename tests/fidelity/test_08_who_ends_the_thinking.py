"""
The small model ended the thinking as soon as its last step was right in itself, which SpecReason's
code prevents.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepspec import policies
from stepspec.orchestrator import Budget, Chain, Policy, Rollback, Step, reason
from stepspec.orchestrator.chain import DELIMITER, THINK_END, Rival, Role, Verdict
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.interfaces import EndedBy, ended_by
from stepspec.orchestrator.run_options import RunOptions
from stepspec.policies import METHODS, Ending, Led, LookaheadReasoning, SpecReason
from stepspec.run_parts import Models
from stepspec.settings import load

from ..fakes import Previous, ScriptedModel, run
from ..orchestrator.arms import PROBLEM

# paragraphs after which each model ends the thinking
EAGER = 2
PATIENT = 4


def says(role: Role, length: int) -> Callable[[Previous], str]:
    """
    Script *length* paragraphs without full stops: only their ends tell whether more is to come.
    """
    return lambda previous: (
        f"The {role} one says {len(previous)}"
        + (DELIMITER if len(previous) + 1 < length else THINK_END)
    )


def pair() -> tuple[ScriptedModel, ScriptedModel]:
    """
    A small model that ends the thinking two paragraphs early, and a judge to whom every step is
    right in itself.
    """
    small = ScriptedModel("small", says("small", EAGER))
    large = ScriptedModel(
        "large",
        says("large", PATIENT),
        log=small.log,
        judge=lambda chain, question: {"9": 1.0, "Yes": 0.0},
    )
    return small, large


def built(
    small: ScriptedModel,
    large: ScriptedModel,
    ending: EndedBy | None = None,
    name: str = "specreason",
) -> Policy:
    options = {"cues": ["large one"]} if name == "relay" else {}
    return Models(small, large, None, Budget()).policy_of(
        RunOptions(policy=name, options=options, ending=ending)
    )


def authors_and_texts(chain: Chain) -> list[tuple[str, str]]:
    return [(step.author, step.text) for step in chain.steps]


TOGETHER = [
    ("small", "The small one says 0\n\n"),
    ("small", "The small one says 1"),
    ("large", "\n\n"),  # not yet: the paragraph is over, the thinking is not
    ("small", "The small one says 2"),
    ("large", "\n\n"),
    ("small", "The small one says 3"),
    ("large", THINK_END),
]


def test_specreason_continues_where_the_small_model_would_end_too_early() -> None:
    (chain, end), _ = run(reason(built(*pair()), PROBLEM))
    assert end == "finished"
    assert authors_and_texts(chain) == TOGETHER
    small, large = pair()
    small.script = says("small", 1)  # its first step would be its last
    assert run(reason(built(small, large), PROBLEM))[0][0].steps[1].text == DELIMITER


def test_the_large_model_may_agree_that_it_is_over_in_no_more_time() -> None:
    def seconds(ending: EndedBy, ahead: int) -> float:
        small, large = pair()
        large.script = says("large", EAGER)
        (chain, end), took = run(reason(built(small, large, ending), PROBLEM, ahead=ahead))
        assert end == "finished"
        assert chain.text == f"The small one says 0\n\nThe small one says 1{THINK_END}"
        return took

    # two drafts and a verdict, or the end, written meanwhile
    assert seconds("small", 1) == seconds("large", 1) == 3.0
    assert seconds("large", 0) == seconds("small", 0) + 1


def test_a_step_that_is_wrong_is_rolled_back_although_it_ends_the_thinking() -> None:
    small, large = pair()
    large.judge = lambda chain, question: {"2": 1.0}
    (chain, _), _ = run(reason(built(small, large), PROBLEM))
    assert {step.note for step in chain.steps} == {"grade"}
    assert len(chain.steps) == PATIENT


def test_a_small_model_that_wants_nothing_but_to_end_cannot_hold_the_run_up() -> None:
    small, large = pair()
    small.script = lambda previous: THINK_END
    (chain, end), _ = run(reason(built(small, large), PROBLEM, ahead=3))
    assert end == "finished"
    assert authors_and_texts(chain) == [
        ("large", says("large", PATIENT)(("",) * place)) for place in range(PATIENT)
    ]
    assert large.open == small.open == 0


def test_models_that_do_not_think_end_their_turn_the_same_way() -> None:
    small, large = pair()
    small.script = lambda previous: (
        f"The small one says {len(previous)}" + DELIMITER * (not previous)
    )
    large.script = lambda previous: (
        f"The large one says {len(previous)}" + DELIMITER * (len(previous) < PATIENT - 1)
    )
    (chain, end), _ = run(reason(built(small, large), PROBLEM))
    assert end == "finished"
    assert [step.author for step in chain.steps] == [author for author, _ in TOGETHER]
    assert chain.text == "\n\n".join(f"The small one says {place}" for place in range(PATIENT))


def test_a_rival_does_not_end_the_thinking_either() -> None:
    class Chosen(SpecReason):
        async def verify(self, chain: Chain, draft: Step) -> Verdict:
            return Rollback(
                reason="grade", rivals=(Rival(Step(f"So.\n{THINK_END}", "small", "end"), 8.0),)
            )

    small, large = pair()
    verdict, _ = run(Ending(Chosen(small, large)).verify(PROBLEM, Step("Hm.\n\n", "small")))
    assert verdict.rivals == (Rival(Step("So.\n", "small", "open"), 8.0),)


def test_the_step_compared_with_the_draft_still_starts_at_the_same_time() -> None:
    small, large = pair()
    large.script = says("small", PATIENT)
    large.latency = lambda chain: 5.0
    policy = Ending(LookaheadReasoning(small, large))
    (chain, _), _ = run(reason(policy, PROBLEM))
    assert [step.author for step in chain.steps[:2]] == ["small", "small"]
    assert large.log.index("large write 1") < small.log.index("small write 1 done")


def test_each_method_ends_the_thinking_as_in_its_paper() -> None:
    found = {
        name: ended_by(method.build)
        for name, method in METHODS.items()
        if name not in policies.BASELINES
    }
    assert {name for name, by in found.items() if by == "large"} == {
        "specreason",
        "choose",
        "random",
    }
    assert {by for by in found.values()} == {"large", "small"}


def test_a_run_may_override_it_but_a_baseline_uses_one_model() -> None:
    small, large = pair()
    assert isinstance(built(small, large, "small"), SpecReason)
    assert isinstance(built(small, large, "large", "bild"), Ending)
    assert not isinstance(built(small, large, None, "bild"), Ending)
    assert not isinstance(built(small, large, "large", "small"), Ending)
    led = Models(small, large, None, Budget()).policy_of(RunOptions(lead=1))
    assert isinstance(led, Led)
    assert isinstance(led.policy, Ending)


def test_ending_is_a_setting_that_bears_on_a_calibration() -> None:
    assert load().ending is None
    assert load().conditions()["ending"] == "large"
    assert load(policy="bild").conditions()["ending"] == "small"
    assert (
        load(ending="large").with_overrides({"ending": "small"}).conditions()["ending"] == "small"
    )
    with pytest.raises(ConfigurationError, match=r"ending: .*'large' or 'small'"):
        load(ending="nobody")
