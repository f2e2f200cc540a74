"""Nested pairs by hand-written examples: exact times, the author of each piece, and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from stepspec import policies
from stepspec.orchestrator import (
    Accept,
    Budget,
    Chain,
    Ledger,
    Model,
    Policy,
    Rollback,
    Step,
    Verdict,
    reason,
)
from stepspec.orchestrator.chain import DELIMITER, THINK_END
from stepspec.orchestrator.errors import ConfigurationError, EndpointRejected, EndpointUnavailable
from stepspec.orchestrator.events import Called, Degraded, Event, JudgedWithin, Moved
from stepspec.orchestrator.nesting import Nested
from stepspec.orchestrator.nesting.model import observe_within
from stepspec.orchestrator.run import Outcome, RunParts
from stepspec.orchestrator.run import run as run_to_the_answer

from ...fakes import ScriptedModel, counting, run
from ..arms import PROBLEM

GONE = EndpointUnavailable("no connection", role="small", url="http://tiny", verb="write")


@dataclass
class Trio:
    """A tiny, a small and a large model, each of which says who it is; SpecReason between either two."""

    tiny: ScriptedModel
    small: ScriptedModel
    large: ScriptedModel
    pair: Nested
    events: list[Event] = field(default_factory=lambda: list[Event]())

    @property
    def policy(self) -> Policy:
        return policies.make("specreason", self.pair, self.large)

    @property
    def log(self) -> list[str]:
        return self.tiny.log


def trio(
    length: int = 6,
    *,
    refused: Sequence[int] = (),
    ahead: int = 2,
    policy: str = "specreason",
    latency: float = 1.0,
    sticky: bool = False,
) -> Trio:
    """Make them; the small one refuses the tiny one's steps at *refused*."""
    events: list[Event] = []
    observe = observe_within("small", events.append)

    def judge(chain: Chain, question: str) -> Mapping[str, float]:
        return {"0": 1.0} if len(chain.steps) - 1 in refused else {"9": 1.0}

    tiny = ScriptedModel(
        "small", counting("small", length), latency=lambda chain: latency, observe=observe, sticky=sticky
    )
    log = tiny.log
    small = ScriptedModel("large", counting("large", length), judge=judge, observe=observe, log=log)
    large = ScriptedModel(
        "large", counting("large", length), judge=lambda chain, question: {"9": 1.0}, observe=events.append
    )
    pair = Nested("small", tiny, small, partial(policies.make, policy), ahead, events.append)
    return Trio(tiny, small, large, pair, events)


def paths(chain: Chain) -> list[str]:
    return [path for step in chain.steps for path, _ in step.leaves()]


def test_a_step_of_the_pair_counts_as_small_and_records_its_authors() -> None:
    made = trio(3, refused=[1])
    (chain, _), _ = run(reason(made.policy, PROBLEM, observe=made.events.append))
    assert [(step.author, step.stop) for step in chain.steps] == [
        ("small", "delimiter"),
        ("small", "delimiter"),
        ("small", "end"),
    ]
    assert paths(chain) == ["small.small", "small.large", "small.small"]
    assert (
        chain.text
        == f"The small one says 0.{DELIMITER}The large one says 1.{DELIMITER}The small one says 2.\n{THINK_END}"
    )
    ledger = Ledger.of(made.events)
    assert ledger.sifted == (("small", 3, 2),)
    tiny, small = ledger.nested[1], ledger.nested[0]
    assert (tiny.path, small.path) == ("small.small", "small.large")
    assert (tiny.kept, tiny.discarded, tiny.judging) == (14, 6, 0)
    assert (small.kept, small.discarded) == (6, 0)
    assert small.judging == ledger.small.judging > 0


@pytest.mark.parametrize(
    ("ahead", "within", "seconds"),
    [
        (0, 0, 18.0),  # six drafts, each judged twice
        (2, 0, 13.0),  # the pair is at the next step while the large one judges: 6 x 2, and the last judgement
        (2, 2, 8.0),  # the tiny one never waits: 6 drafts, and two judgements of the last
    ],
)
def test_the_tiny_model_drafts_while_both_judges_verify_earlier_steps(ahead: int, within: int, seconds: float) -> None:
    made = trio(ahead=within)
    assert run(reason(made.policy, PROBLEM, ahead=ahead))[1] == seconds


def test_the_further_ahead_a_bet_the_cheaper_the_model_that_makes_it() -> None:
    made = trio(20, ahead=3)
    made.large.reading = lambda chain: 100.0
    run(reason(made.policy, PROBLEM, ahead=1, deadline=50.0))
    # The large one still looks at the first. Another is verified within the pair, and three drafts come after that.
    drafted = [line for line in made.log if line.startswith("small write") and line.endswith("done")]
    assert len(drafted) == 1 + 1 + 3


def test_no_bet_is_made_where_the_caller_makes_none() -> None:
    made = trio(ahead=3)
    run(reason(made.policy, PROBLEM, ahead=0))
    assert not [line for line in made.log if "cancelled" in line]


def test_a_request_of_the_tiny_one_stays_open_from_one_write_of_the_pair_to_the_next() -> None:
    made = trio(sticky=True)
    run(reason(made.policy, PROBLEM, ahead=2))
    assert [line for line in made.log if line.startswith("small write")] == ["small write 0", "small write 0 done"]


def test_drafts_ahead_of_the_pair_are_dropped_when_the_large_model_rejects() -> None:
    made = trio(4, ahead=2)
    made.large.judge = lambda chain, question: {"0": 1.0} if len(chain.steps) == 2 else {"9": 1.0}
    (chain, _), _ = run(reason(made.policy, PROBLEM, ahead=2, observe=made.events.append))
    assert [step.author for step in chain.steps] == ["small", "large", "small", "small"]
    ledger = Ledger.of(made.events)
    assert ledger.nested[1].discarded >= 12
    assert ledger.small.discarded == sum(account.discarded for account in ledger.nested)


@pytest.mark.parametrize("ahead", [0, 2])
def test_the_tiny_ones_death_costs_nothing_but_its_speed(ahead: int) -> None:
    made = trio(5)
    made.tiny.fails = lambda verb, chain: GONE if len(chain.steps) >= 2 else None
    (chain, end), _ = run(reason(made.policy, PROBLEM, ahead=ahead, observe=made.events.append))
    assert end == "finished"
    assert paths(chain) == ["small.small"] * 2 + ["small.large"] * 3
    assert [event for event in made.events if isinstance(event, Degraded)] == [
        Degraded("small", "the small model at http://tiny: no connection", "small.small")
    ]


def solved(made: Trio) -> tuple[Outcome, float]:
    return run(
        run_to_the_answer(
            RunParts(made.policy, budget=Budget(), ahead=1, fallback=policies.make("large", made.pair, made.large)),
            PROBLEM,
            made.events.append,
        )
    )


def test_if_both_models_of_the_pair_die_the_large_model_continues_alone() -> None:
    made = trio(5)
    made.tiny.fails = lambda verb, chain: GONE if len(chain.steps) >= 2 else None
    dead = EndpointUnavailable("no connection", role="large", url="http://small", verb="write")
    made.small.fails = lambda verb, chain: dead if verb == "write" and len(chain.steps) >= 3 else None
    outcome, _ = solved(made)
    assert [step.author for step in outcome.chain.steps[:5]] == ["small"] * 3 + ["large"] * 2
    assert outcome.answer == "42"
    assert [(event.role, event.path) for event in made.events if isinstance(event, Degraded)] == [
        ("small", "small.small"),
        ("small", ""),
    ]


def test_a_pair_whose_larger_model_dies_is_dead() -> None:
    made = trio(5, refused=[2])
    dead = EndpointUnavailable("no connection", role="large", url="http://small", verb="write")
    made.small.fails = lambda verb, chain: dead if verb == "write" else None
    with pytest.raises(EndpointUnavailable, match="the small model at http://small: no connection"):
        run(reason(made.policy, PROBLEM))
    outcome, _ = solved(trio_like(made))
    assert [step.author for step in outcome.chain.steps[:5]] == ["small"] * 2 + ["large"] * 3


def trio_like(made: Trio) -> Trio:
    """The same again, with no memory of what has happened."""
    return replace(made, pair=replace(made.pair))


def test_a_request_that_the_tiny_model_refuses_is_left_to_the_other() -> None:
    made = trio(5)
    made.tiny.fails = lambda verb, chain: EndpointRejected("no such model", role="small", url="http://tiny")
    outcome, _ = solved(made)
    assert outcome.reason == "stop"
    assert {event.path for event in made.events if isinstance(event, Degraded)} == {"small.small"}


def test_a_step_may_be_made_of_several_pieces_and_end_within_one() -> None:
    made = trio(2, policy="bild")
    step, _ = run(made.pair.write(PROBLEM, stop=("says",)))
    assert (step.text, step.stop) == ("The small one says", "delimiter")
    assert [piece.text for piece in step.pieces] == ["The small one says"]
    made.tiny.script = lambda previous: "one two three four five six seven eight nine ten eleven twelve" + DELIMITER
    full, _ = run(made.pair.write(PROBLEM))
    assert [len(piece.tokens) for piece in full.pieces] == [10, 3]
    assert full.stop == "delimiter"


@pytest.mark.parametrize("refused", [(), (0,)])
def test_an_opening_begins_the_drafts_and_the_repairs(refused: Sequence[int]) -> None:
    made = trio(refused=refused)
    made.tiny.script = made.small.script = lambda previous: f"Wait, what is it?{DELIMITER}"
    step, _ = run(made.pair.write(PROBLEM, opening=f"Wait,{DELIMITER}", limit=20))
    assert step.text.startswith(f"Wait,{DELIMITER}")
    assert len(step.text) > len(f"Wait,{DELIMITER}")
    cut, _ = run(made.pair.write(PROBLEM, opening="Wait, what", limit=2))
    assert (cut.text, cut.stop, len(cut.tokens)) == ("Wait,", "length", 2)


def test_a_write_that_ends_with_the_last_token_of_a_turn_may_be_gone_on_from() -> None:
    made = trio(2)
    made.tiny.script = lambda previous: "The answer is six."
    last, _ = run(made.pair.write(PROBLEM, until=lambda partial: partial.text.endswith(".")))
    assert (last.text, last.stop, last.pieces[-1].stop) == ("The answer is six.", "until", "end")
    more, _ = run(made.pair.write(PROBLEM.extend(last)))
    assert (more.text, more.stop) == ("", "end")
    full, _ = run(made.pair.write(PROBLEM))
    again, _ = run(made.pair.write(PROBLEM.extend(full.cut(len(full.text)))))
    assert (full.stop, again.stop) == ("end", "end")


def test_vocabularies_that_differ_leave_only_text() -> None:
    made = trio(2, policy="bild")
    one, _ = run(made.pair.write(PROBLEM))
    assert one.vocabulary == "words"

    class Other(ScriptedModel):
        async def write(self, chain: Chain, **wanted: Any) -> Step:
            return replace(await super().write(chain, **wanted), vocabulary="others")

    made.pair.small = Other("small", lambda previous: "a b c d e f g h i j k" + DELIMITER)
    made.pair.large = ScriptedModel(
        "large", made.tiny.script, logprob=lambda before, token: -9.0 if token == " c" else -0.1
    )
    mixed, _ = run(made.pair.write(PROBLEM, limit=4))
    assert {piece.vocabulary for piece in mixed.pieces} == {"others", "words"}
    assert mixed.vocabulary == ""


def test_the_larger_one_of_the_pair_scores_answers_questions_and_branches_for_it() -> None:
    made = trio()

    async def main() -> None:
        await made.pair.ask(PROBLEM, "Right?", ("9",))
        await made.pair.score(PROBLEM, "So")
        (step,) = await made.pair.branch(PROBLEM, [Step("The", "small")])
        assert (step.author, paths(PROBLEM.extend(step))) == ("small", ["small.large"])

    run(main())
    assert {(event.role, event.path) for event in made.events if isinstance(event, Called)} == {
        ("small", "small.large")
    }


def test_paths_grow_from_pair_to_pair() -> None:
    observed: list[Event] = []
    observe = observe_within("small", observe_within("small", observed.append))
    called = Called("large", "ask", "done", 0.0, 1.0)
    for event in (called, Moved("small", "a", "b", "gone"), JudgedWithin("small", 0, Step("", "small"), Accept())):
        observe(event)
    assert [getattr(event, "path", "") for event in observed] == [
        "small.small.large",
        "small.small.small",
        "small.small.small",
    ]
    assert [getattr(event, "role", "small") for event in observed] == ["small"] * 3


def test_a_wrong_policy_is_found_before_anything_is_written() -> None:
    made = trio()
    with pytest.raises(ConfigurationError, match=r"there is no policy 'specraeson' \(did you mean 'specreason'"):
        Nested("small", made.tiny, made.small, partial(policies.make, "specraeson"))


def test_two_writes_at_once_from_one_place_do_not_disturb_each_other() -> None:
    made = trio()

    async def main() -> set[str]:
        steps = await asyncio.gather(*[made.pair.write(PROBLEM) for _ in range(5)])
        return {step.text for step in steps}

    assert run(main())[0] == {f"The small one says 0.{DELIMITER}"}


def test_the_pairs_own_policy_gets_the_author_of_each_piece() -> None:
    chains: list[list[str]] = []

    @dataclass(frozen=True)
    class Halving:
        """Keeps the first word of every draft."""

        small: Model
        large: Model

        @property
        def answerer(self) -> Model:
            return self.large

        async def draft(self, chain: Chain) -> Step:
            chains.append([f"{step.author}: {step.text}" for step in chain.steps])
            return await self.small.write(chain)

        async def verify(self, chain: Chain, draft: Step) -> Verdict:
            return Rollback(3, "half")

        async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
            return await self.large.write(chain)

    made = trio()
    made.small.script = lambda previous: f"The rest.{DELIMITER}"
    pair = Nested("small", made.tiny, made.small, Halving)
    first, _ = run(pair.write(PROBLEM))
    assert first.text == f"The rest.{DELIMITER}"
    assert [(piece.author, piece.text, piece.note) for piece in first.pieces] == [
        ("small", "The", ""),
        ("large", f" rest.{DELIMITER}", "half"),
    ]
    run(pair.write(PROBLEM.extend(first).extend(Step(f"So.{DELIMITER}", "large"))))
    assert chains == [[], ["small: The", f"large:  rest.{DELIMITER}", f"large: So.{DELIMITER}"]]
    half = first.cut(6)
    assert [(path, leaf.text) for path, leaf in half.leaves()] == [("small.small", "The"), ("small.large", " re")]


@pytest.mark.parametrize(("limit", "left", "most"), [(512, 7, 7), (5, 100, 5), (512, 600, 512)])
def test_no_request_within_the_pair_exceeds_the_limit_or_the_budget(limit: int, left: int, most: int) -> None:
    limits: list[int] = []

    class Limited(ScriptedModel):
        async def write(self, chain: Chain, **wanted: Any) -> Step:
            limits.append(wanted["limit"])
            return await super().write(chain, **wanted)

    tiny, small = (Limited(role, counting("small", 3)) for role in ("small", "large"))
    pair = Nested("small", tiny, small, partial(policies.make, "lookahead-reasoning"))
    run(pair.budgeted(lambda chain: left).write(PROBLEM, limit=limit))
    assert limits[:2] == [most, most]


def test_requests_within_a_pair_have_the_step_of_the_chain_and_are_no_bets_while_the_loop_waits() -> None:
    three = trio(length=3, refused=(1,))
    run(reason(three.policy, PROBLEM, ahead=0))
    requests = [(call.path, call.purpose, call.step) for call in three.events if isinstance(call, Called)]
    assert requests[:2] == [("small.small", "draft", 0), ("small.large", "verify", 0)]
    assert ("small.large", "repair", 1) in requests
    assert ("", "verify", 1) in requests
