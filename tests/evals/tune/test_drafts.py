"""Recorded models, and what methods make of recorded drafts."""

from __future__ import annotations

from typing import Any

import pytest

from stepspec.evals.sample import Arm
from stepspec.evals.tune.drafts import LargeChain, Place, RecordedModel, Trial, Trier
from stepspec.orchestrator.chain import THINK_END, Chain, Step

from ...fakes import ScriptedModel, counting, run, saying
from .world import SPECREASON, World

RIGHT = "So one plus two is 3.\n\n"
WRONG = "So one plus two is 4.\n\n"


async def recorded(model: ScriptedModel) -> Step:
    """The first step of *model*."""
    return await model.write(Chain.of("How many?"), top=1)


def attempt(arm: Arm, text: str, large: ScriptedModel | None = None) -> Trial:
    """Let *arm* judge a draft with this *text*, where the large model writes `RIGHT`."""
    small = ScriptedModel("small", saying(text))
    judging = large or ScriptedModel("large", saying(RIGHT))

    async def work() -> Trial:
        place = Place(3, Chain.of("How many?"), await recorded(judging))
        solver: Any = World()
        judging.log.clear()
        trial = await Trier(small, judging, solver).attempt(arm, place, await recorded(small))
        assert not [entry for entry in judging.log if entry.startswith("large write")]
        return trial

    return run(work())[0]


def test_a_recorded_model_writes_its_step_again_in_parts() -> None:
    async def work() -> None:
        chain = Chain.of("How many?")
        step = await recorded(ScriptedModel("small", saying(RIGHT)))
        model = RecordedModel(ScriptedModel("large", saying("x")), chain, step)
        assert (await model.write(chain)).text == RIGHT
        first = await model.write(chain, limit=3)
        assert (first.text, first.stop, first.author) == ("So one plus", "length", "large")
        rest = await model.write(chain.extend(first))
        assert (first.text + rest.text, rest.stop) == (RIGHT, "delimiter")
        cut = await model.write(chain, until=lambda part: part.text.endswith("two"))
        assert (cut.text, cut.stop) == ("So one plus two", "until")
        assert model.written == len(step.tokens) + 3 + (len(step.tokens) - 3) + 4
        beyond = await model.write(chain.extend(step))
        assert (len(beyond.tokens), beyond.stop) == (1, "delimiter")

    run(work())


def test_a_draft_is_accepted_whole() -> None:
    trial = attempt(SPECREASON, RIGHT)
    (round,) = trial.rounds
    length = len(trial.rounds) and round.drafted
    assert (trial.accepted, trial.problem, round.kept, round.repaired) == (True, 3, length, 0)
    assert trial.tokens == trial.own == length
    assert round.verdict_seconds == 1.0


def test_a_rejected_draft_costs_the_large_models_step() -> None:
    grading = ScriptedModel("large", saying(RIGHT), judge=lambda chain, question: {"2": 1.0})
    trial = attempt(SPECREASON, WRONG, grading)
    (round,) = trial.rounds
    assert (round.accepted, round.kept, round.repaired) == (False, 0, trial.own)
    assert trial.tokens == trial.own


def test_a_cut_draft_costs_the_rest_of_the_step() -> None:
    trial = attempt(Arm.of("reading", "reading"), WRONG, surprised_by("4"))
    (round,) = trial.rounds
    assert trial.kept_text == len("So one plus two is")
    assert round.kept + round.repaired == trial.own == trial.tokens


def surprised_by(piece: str) -> ScriptedModel:
    """A large model to which tokens with this *piece* are very improbable."""
    return ScriptedModel(
        "large",
        saying(RIGHT),
        logprob=lambda before, token: -9.0 if piece in token else -0.1,
    )


def test_a_method_of_short_runs_goes_through_the_draft_in_rounds() -> None:
    arm = Arm.of("bild", "bild", {"run": 3})
    trial = attempt(arm, RIGHT)
    assert [round.drafted for round in trial.rounds[:-1]] == [3] * (len(trial.rounds) - 1)
    assert trial.accepted
    assert sum(round.drafted for round in trial.rounds) == trial.tokens == trial.own
    cut = attempt(arm, WRONG, surprised_by("4"))
    assert [round.accepted for round in cut.rounds] == [True, False]
    assert (cut.rounds[-1].kept, cut.rounds[-1].repaired) == (2, 1)
    assert cut.tokens == cut.own == 6, "the step is not over: a token for each token"


def test_a_prepared_step_is_written_beside_the_draft() -> None:
    trial = attempt(Arm.of("lookahead", "lookahead-reasoning"), RIGHT)
    (round,) = trial.rounds
    assert (round.accepted, round.prepared, round.repaired) == (True, trial.own, 0)


def test_the_large_model_ends_the_thinking_of_methods_that_say_so() -> None:
    end = f"That is all.\n{THINK_END}"
    trial = attempt(Arm.of("specreason", "specreason"), end, ScriptedModel("large", saying(end)))
    drafted, closing = trial.rounds
    assert (drafted.accepted, closing.drafted) == (True, 0)
    assert closing.repaired > 0


def test_an_answer_that_the_large_model_writes_alone_is_no_draft() -> None:
    arm = Arm.of("cut", "random", answer="large")
    closed = Chain.of("How many?").extend(Step(THINK_END, "large", "end"))

    async def work() -> Trial:
        large = ScriptedModel("large", saying(RIGHT))
        own = await large.write(closed)
        solver: Any = World()
        place = Place(0, closed, own)
        return await Trier(large, large, solver).attempt(arm, place, own)

    trial, _ = run(work())
    assert [(round.drafted, round.repaired) for round in trial.rounds] == [(0, trial.own)]


@pytest.mark.parametrize(("limit", "count"), [(1000, 6), (8, 1)])
def test_a_chain_has_a_place_for_each_whole_step(limit: int, count: int) -> None:
    async def work() -> LargeChain:
        model = ScriptedModel("large", counting("large", 4), answer="\n\nIt is 42.")
        world: Any = World()
        chain = await LargeChain.begin(world, "How many?")
        await chain.write(model, limit, lambda: False)
        return chain

    chain, _ = run(work())
    places = chain.places(7)
    assert len(places) == len(chain.steps) == count
    assert chain.ended is (count == 6)
    assert [place.own for place in places] == chain.steps
    assert [place.following for place in places] == [*chain.steps[1:], None]
    assert [len(place.chain.steps) for place in places] == list(range(count))
