"""Models whose next step is known, and what methods make of a draft."""

from __future__ import annotations

from typing import Any

import pytest

from stepspec.evals.sample import Arm
from stepspec.evals.tune.drafts import (
    KnownModel,
    Place,
    Trial,
    Trier,
    begin_chain,
    has_ended,
    places_of,
    write_chain,
)
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import THINK_END, Chain, Step

from ...fakes import ScriptedModel, counting, run, saying
from .world import SHORT, SPECREASON, World

RIGHT = "So one plus two is 3.\n\n"
WRONG = "So one plus two is 4.\n\n"
NEXT = "And three more are six.\n\n"


async def recorded(model: ScriptedModel) -> Step:
    """The first step of *model*."""
    return await model.write(Chain.of("How many?"), top=1)


def attempt(arm: Arm, text: str, large: ScriptedModel | None = None) -> Trial:
    """Let *arm* judge a draft with this *text*, where the large model writes `RIGHT`."""
    small = ScriptedModel("small", saying(text, NEXT))
    judging = large or ScriptedModel("large", saying(RIGHT, NEXT))

    async def work() -> Trial:
        place = Place(3, Chain.of("How many?"), await recorded(judging))
        draft = await recorded(small)
        solver: Any = World()
        trial = await Trier(small, judging, solver).attempt(arm, place, draft)
        assert trial is not None
        return trial

    return run(work())[0]


def test_a_known_step_is_written_again_in_parts_without_a_request() -> None:
    async def work() -> None:
        chain = Chain.of("How many?")
        step = await recorded(ScriptedModel("small", saying(RIGHT)))
        real = ScriptedModel("small", saying(RIGHT, NEXT))
        model = KnownModel(real, Budget().left, chain, step)
        assert (await model.write(chain)).text == RIGHT
        first = await model.write(chain, limit=3)
        assert (first.text, first.stop, first.author) == ("So one plus", "length", "small")
        rest = await model.write(chain.extend(first))
        assert (first.text + rest.text, rest.stop) == (RIGHT, "delimiter")
        cut = await model.write(chain, stop=(), until=lambda part: part.text.endswith("two"))
        assert (cut.text, cut.stop) == ("So one plus two", "until")
        assert not real.log

    run(work())


def test_the_real_model_writes_what_is_not_known() -> None:
    async def work() -> None:
        chain = Chain.of("How many?")
        step = await recorded(ScriptedModel("small", saying(RIGHT)))
        real = ScriptedModel("small", saying(WRONG, NEXT))
        model = KnownModel(real, Budget().left, chain, step)
        # its text has gone on otherwise
        other = await recorded(real)
        real.log.clear()
        assert (
            await model.write(chain.extend(other.cut(len("So one plus two is 4"))))
        ).text == ".\n\n"
        # a draft across the end of the step
        beyond = await model.write(chain, stop=(), limit=len(step.tokens) + 2)
        assert beyond.text == WRONG + "And three"
        assert (await model.write(chain.extend(step))).text == NEXT
        assert len(real.log) == 2 * 3

    run(work())


def test_a_repair_to_the_end_is_as_long_as_the_rest_of_the_large_models_step() -> None:
    async def work() -> None:
        chain = Chain.of("How many?")
        step = await recorded(ScriptedModel("large", saying(RIGHT)))
        model = KnownModel(ScriptedModel("large", saying("x")), Budget().left, chain, step)
        other = (await recorded(ScriptedModel("small", saying(NEXT)))).cut(len("And three"))
        rest = await model.write(chain.extend(other))
        assert len(rest.tokens) == len(step.tokens) - 2
        assert rest.stop == "delimiter"

    run(work())


def test_a_draft_is_accepted_whole() -> None:
    trial = attempt(SPECREASON, RIGHT)
    (round,) = trial.rounds
    assert (trial.accepted, trial.problem, round.written) == (True, 3, 0)
    assert trial.tokens == trial.own == round.drafted
    assert round.verdict_seconds == 1.0


def test_a_rejected_draft_costs_the_large_models_step() -> None:
    grading = ScriptedModel("large", saying(RIGHT), judge=lambda chain, question: {"2": 1.0})
    trial = attempt(SPECREASON, WRONG, grading)
    (round,) = trial.rounds
    assert (round.accepted, round.written) == (False, trial.own)
    assert trial.tokens == trial.own


def test_a_cut_draft_costs_the_rest_of_the_step() -> None:
    whole_steps = {"draft_tokens": None, "repair_tokens": None}
    trial = attempt(Arm.of("reading", "reading", whole_steps), WRONG, surprised_by("4"))
    (round,) = trial.rounds
    assert not round.accepted
    assert 0 < round.written < trial.own == trial.tokens


def surprised_by(piece: str) -> ScriptedModel:
    """A large model to which tokens with this *piece* are very improbable."""
    return ScriptedModel(
        "large",
        saying(RIGHT, NEXT),
        logprob=lambda before, token: -9.0 if piece in token else -0.1,
    )


def test_a_method_of_short_drafts_goes_on_after_a_cut_until_the_step_is_over() -> None:
    whole = attempt(SHORT, RIGHT)
    assert [round.drafted for round in whole.rounds] == [3, 3, 3]
    assert (whole.accepted, whole.tokens, whole.own) == (True, 9, 9), "a token for each token"
    # the last token of the second draft is cut; the drafts go on after the repair of one token
    cut = attempt(SHORT, WRONG, surprised_by("4"))
    assert [round.accepted for round in cut.rounds] == [True, False, True]
    assert [round.tokens for round in cut.rounds] == [3, 3, 3]
    assert [round.written for round in cut.rounds] == [0, 1, 0]


def test_the_large_model_ends_the_thinking_of_methods_that_say_so() -> None:
    end = f"That is all.\n{THINK_END}"
    trial = attempt(Arm.of("specreason", "specreason"), end, ScriptedModel("large", saying(end)))
    drafted, closing = trial.rounds
    assert (drafted.accepted, closing.drafted) == (True, 0)
    assert closing.written > 0


def test_an_answer_that_the_large_model_writes_alone_is_no_draft() -> None:
    arm = Arm.of("cut", "random", answer="large")
    closed = Chain.of("How many?").extend(Step(THINK_END, "large", "end"))

    async def work() -> Trial | None:
        large = ScriptedModel("large", saying(RIGHT))
        own = await large.write(closed)
        solver: Any = World()
        return await Trier(large, large, solver).attempt(arm, Place(0, closed, own), own)

    trial, _ = run(work())
    assert trial is not None
    assert [(round.drafted, round.written) for round in trial.rounds] == [(0, trial.own)]


@pytest.mark.parametrize(("limit", "count"), [(1000, 6), (8, 1)])
def test_a_chain_has_a_place_for_each_whole_step(limit: int, count: int) -> None:
    async def work() -> list[Chain]:
        model = ScriptedModel("large", counting("large", 4), answer="\n\nIt is 42.")
        world: Any = World()
        start = await begin_chain(world, "How many?")
        return [start, *[chain async for chain in write_chain(model, start, limit)]]

    chains, _ = run(work())
    chain = chains[-1]
    assert [len(each.steps) for each in chains] == list(range(count + 1))
    assert not any(map(has_ended, chains[:-1]))
    places = places_of(7, chain)
    steps = chain.steps
    assert [place.chain for place in places] == chains[:-1]
    assert len(places) == len(steps) == count
    assert has_ended(chain) is (count == 6)
    assert tuple(place.own for place in places) == steps
    assert tuple(place.following for place in places[:-1]) == steps[1:]
    assert places[-1].following.text == ""
    assert [len(place.chain.steps) for place in places] == list(range(count))
