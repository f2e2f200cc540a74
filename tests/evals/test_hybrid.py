"""The bench of hybrids judges the same texts in every arm, and reports the tokens read."""

from __future__ import annotations

import pytest

from stepspec.evals.experiments.hybrid_cache import CacheArm, VerdictCost, table
from stepspec.orchestrator.chain import Chain
from stepspec.orchestrator.events import Called, Event
from stepspec.policies import SpecReason

from ..fakes import ScriptedModel, counting, run

TEXTS = [f"Step {number}.\n\n" for number in range(1, 13)]


def arm(group: int) -> CacheArm:
    events: list[Called] = []

    def observe(event: Event) -> None:
        if isinstance(event, Called):
            events.append(event)

    model = ScriptedModel("large", counting("large", 40), judge=lambda chain, question: {"0": 1.0}, observe=observe)
    policy = SpecReason(model, model, threshold=0, sure=0, judge_every=group)
    return CacheArm("default", "specreason", policy, model, events, Chain.of("How many?"), group)


@pytest.mark.parametrize(
    ("group", "refuse_every", "verdicts", "repairs"), [(1, 0, 12, 0), (1, 6, 12, 2), (4, 0, 3, 0), (4, 6, 4, 2)]
)
def test_every_arm_ends_with_the_same_text(group: int, refuse_every: int, verdicts: int, repairs: int) -> None:
    tried = arm(group)

    async def judge() -> None:
        while tried.place < len(TEXTS):
            await tried.judge(TEXTS, refuse_every)

    run(judge())
    assert tried.chain.text == "".join(TEXTS)
    assert [place for place, step in enumerate(tried.chain.steps, 1) if step.author == "large"] == [6, 12][:repairs]
    assert (len(tried.verdicts), len(tried.repairs)) == (verdicts, repairs)
    cost = tried.cost(len(TEXTS))
    assert cost.verdicts == verdicts
    assert cost.total == sum(call.prompt - call.cached for calls in tried.verdicts for call in calls) > 0
    assert cost.most >= cost.read > 0


def test_the_table_compares_each_method_with_the_default_server() -> None:
    costs = [
        VerdictCost("default", "bild", 10, 20, 300.0, 640, 3000, 50.0, 0.03),
        VerdictCost("cure", "bild", 10, 20, 30.0, 40, 300, 16.0, 0.02),
        VerdictCost("default", "specreason", 20, 20, 300.0, 640, 6000, 50.0, 0.03),
        VerdictCost("default", "specreason, judge_every=4", 5, 20, 300.0, 640, 1500, 50.0, 0.03),
    ]
    head, _, default, cured, _, several = table(costs).splitlines()
    assert head.startswith("| server | method | verdicts | tokens each |")
    assert default == "| default | bild | 10 | 300 | 640 | 150 | 1.00 | 50 | 0.030 |"
    assert cured == "| cure | bild | 10 | 30 | 40 | 15 | 0.10 | 16 | 0.020 |"
    assert "| 75 | 0.25 |" in several  # of one step at a time
