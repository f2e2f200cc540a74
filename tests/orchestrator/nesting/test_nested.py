"""Nested pairs by hand-written examples: exact times, the author of each piece, and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
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
    Rival,
    Rollback,
    Step,
    Token,
    Verdict,
    reason,
)
from stepspec.orchestrator.chain import DELIMITER, THINK_END, Role, Stop
from stepspec.orchestrator.errors import (
    ConfigurationError,
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
)
from stepspec.orchestrator.events import Called, Degraded, Event, JudgedWithin, Moved
from stepspec.orchestrator.nested_settings import NestedPair
from stepspec.orchestrator.nesting import Nested, StepOfPieces, observe_within
from stepspec.orchestrator.run import Outcome, RunParts
from stepspec.orchestrator.run import run as run_to_the_answer
from stepspec.orchestrator.step_builder import StepBounds, StepBuilder
from stepspec.orchestrator.step_ends import StepEnds

from ...contracts.model import SHORT, ModelContract, Subject, cancel_writer
from ...fakes import ScriptedModel, counting, run
from ..arms import PROBLEM

GONE = EndpointUnavailable("no connection", role="small", url="http://tiny", verb="write")


@dataclass
class Trio:
    """
    A tiny, a small and a large model, each of which says who it is; SpecReason between either two.
    """

    tiny: ScriptedModel
    small: ScriptedModel
    large: ScriptedModel
    pair: Nested
    events: list[Event] = field(default_factory=lambda: list[Event]())

    @property
    def policy(self) -> Policy:
        return policies.make("specreason", self.pair, self.large)


def trio(length: int = 6, *, refused: Sequence[int] = (), policy: str = "specreason") -> Trio:
    """Make them; the small one refuses the tiny one's steps at *refused*."""
    events: list[Event] = []
    observe = observe_within("small", events.append)

    def judge(chain: Chain, question: str) -> Mapping[str, float]:
        return {"0": 1.0} if len(chain.steps) - 1 in refused else {"9": 1.0}

    tiny = ScriptedModel("small", counting("small", length), observe=observe)
    small = ScriptedModel("large", counting("large", length), judge=judge, observe=observe)
    large = ScriptedModel(
        "large",
        counting("large", length),
        judge=lambda chain, question: {"9": 1.0},
        observe=events.append,
    )
    pair = Nested("small", tiny, small, partial(policies.make, policy), events.append)
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
        == f"The small one says 0.{DELIMITER}The large one says 1.{DELIMITER}The small one says"
        f" 2.\n{THINK_END}"
    )
    ledger = Ledger.of(made.events)
    assert ledger.sifted == (("small", 3, 2),)
    tiny = ledger.nested[1]
    small = ledger.nested[0]
    assert (tiny.path, small.path) == ("small.small", "small.large")
    assert (tiny.kept, tiny.discarded, tiny.judging) == (14, 6, 0)
    assert (small.kept, small.discarded) == (6, 0)
    assert small.judging == ledger.small.judging > 0


@pytest.mark.parametrize(
    ("ahead", "seconds"),
    [
        (0, 18.0),  # six drafts, each judged twice
        # the pair is at the next step while the large one judges: 6 x 2, and the last judgement
        (2, 13.0),
    ],
)
def test_the_outer_lookahead_bets_on_steps_of_the_pair(ahead: int, seconds: float) -> None:
    made = trio()
    assert run(reason(made.policy, PROBLEM, ahead=ahead))[1] == seconds


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize(
    "failure", [GONE, EndpointRejected("no such model", role="small", url="http://tiny")]
)
def test_the_tiny_ones_failure_costs_nothing_but_its_speed(
    failure: EndpointError, ahead: int
) -> None:
    made = trio(5)
    made.tiny.fails = lambda verb, chain: failure if len(chain.steps) >= 2 else None
    (chain, end), _ = run(reason(made.policy, PROBLEM, ahead=ahead, observe=made.events.append))
    assert end == "finished"
    assert paths(chain) == ["small.small"] * 2 + ["small.large"] * 3
    degraded = [event for event in made.events if isinstance(event, Degraded)]
    assert degraded == [Degraded("small", str(failure), "small.small")]


def solved(made: Trio) -> tuple[Outcome, float]:
    return run(
        run_to_the_answer(
            RunParts(
                made.policy,
                budget=Budget(),
                ahead=1,
                fallback=policies.make("large", made.pair, made.large),
            ),
            PROBLEM,
            made.events.append,
        )
    )


def test_if_both_models_of_the_pair_die_the_large_model_continues_alone() -> None:
    made = trio(5)
    made.tiny.fails = lambda verb, chain: GONE if len(chain.steps) >= 2 else None
    dead = EndpointUnavailable("no connection", role="large", url="http://small", verb="write")
    made.small.fails = lambda verb, chain: (
        dead if verb == "write" and len(chain.steps) >= 3 else None
    )
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
    outcome, _ = solved(replace(made, pair=replace(made.pair)))  # which remembers nothing of that
    assert [step.author for step in outcome.chain.steps[:5]] == ["small"] * 2 + ["large"] * 3


def test_a_step_may_be_made_of_several_pieces_and_end_within_one() -> None:
    made = trio(2, policy="bild")
    step, _ = run(made.pair.write(PROBLEM, stop=("says",)))
    assert (step.text, step.stop) == ("The small one says", "delimiter")
    assert [piece.text for piece in step.pieces] == ["The small one says"]
    made.tiny.script = lambda previous: (
        "one two three four five six seven eight nine ten eleven twelve" + DELIMITER
    )
    full, _ = run(made.pair.write(PROBLEM))
    assert [len(piece.tokens) for piece in full.pieces] == [10, 3]
    assert full.stop == "delimiter"
    bounds = StepBounds(StepEnds(), limit=9)
    writing = StepOfPieces(lambda opening: StepBuilder("small", "", PROBLEM, bounds), "", None)
    writing.add(Step("One", "large", "length"))  # a prompt of the method, which no model wrote
    assert writing.finish().text == "One"


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
    for event in (
        called,
        Moved("small", "a", "b", "gone"),
        JudgedWithin("small", 0, Step("", "small"), Accept()),
    ):
        observe(event)
    assert [getattr(event, "path", "") for event in observed] == [
        "small.small.large",
        "small.small.small",
        "small.small.small",
    ]
    assert [getattr(event, "role", "small") for event in observed] == ["small"] * 3


def test_a_run_that_leaves_a_pair_leaves_all_models_in_it() -> None:
    log: list[str] = []
    tiny, small, middle = (
        ScriptedModel(role, counting(role, 1), log=log) for role in ("small", "large", "large")
    )
    policy = partial(policies.make, "specreason")
    Nested("small", Nested("small", tiny, small, policy), middle, policy).leave()
    assert log == ["small leaves", "large leaves", "large leaves"]


def test_a_wrong_policy_is_found_before_anything_is_written() -> None:
    made = trio()
    with pytest.raises(
        ConfigurationError, match=r"there is no policy 'specraeson' \(did you mean 'specreason'"
    ):
        Nested("small", made.tiny, made.small, partial(policies.make, "specraeson"))


def step(*words: str, author: Role = "small", stop: Stop = "delimiter") -> Step:
    return Step("".join(words), author, stop, tuple(Token(word) for word in words), "words")


ONE = step("One", DELIMITER)
TWO = step("Two", DELIMITER)
LAST = step("Three", ".", stop="end")
OTHER = step("Other", DELIMITER, author="large")


@dataclass
class Ruled:
    """
    Writes *drafts* one after the other, and has a *verdict* on the first. Its *log* has the authors
    it read.
    """

    drafts: tuple[Step, ...]
    verdict: Verdict = field(default_factory=Accept)
    repaired: Step = OTHER
    log: list[str] = field(default_factory=list[str])

    @property
    def answerer(self) -> Model:
        return ScriptedModel("large", lambda previous: "")

    async def draft(self, chain: Chain) -> Step:
        self.log.append(f"draft after {[f'{step.author}: {step.text}' for step in chain.steps]}")
        return self.drafts[len(chain.steps)]

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        return self.verdict if draft is self.drafts[0] else Accept()

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        self.log.append("repair")
        return self.repaired

    def write(self, left: Callable[[Chain], int] = lambda chain: 99, **options: Any) -> Step:
        return run(self.pair(left).write(PROBLEM, **options))[0]

    def pair(self, left: Callable[[Chain], int] = lambda chain: 99) -> Nested:
        small = ScriptedModel("small", lambda previous: "")
        large = ScriptedModel("large", lambda previous: "")

        def policy(small: Model, large: Model) -> Ruled:
            return self

        return Nested("small", small, large, policy, left=left)


def test_an_accepted_rival_replaces_the_draft() -> None:
    rivals = Rival(ONE, 1.0, "beaten"), Rival(TWO, 9.0)
    written = Ruled((ONE, LAST), Rollback(reason="grade", rivals=rivals)).write(stop=("!",))
    assert (written.text, written.pieces, written.stop) == (
        f"Two{DELIMITER}Three.",
        (TWO, LAST),
        "end",
    )


@pytest.mark.parametrize(("keep", "kept"), [(0, []), (2, ["On"]), (3, ["One"])])
def test_the_kept_part_precedes_its_repair_which_has_the_reason(keep: int, kept: list[str]) -> None:
    policy = Ruled((ONE, LAST, LAST), Rollback(keep, "doubt"))
    written = policy.write(stop=("!",))
    assert [(piece.author, piece.text, piece.stop, piece.note) for piece in written.pieces] == [
        *[("small", text, "length", "") for text in kept],
        ("large", f"Other{DELIMITER}", "delimiter", "doubt"),
        ("small", "Three.", "end", ""),
    ]
    read = [*[f"small: {text}" for text in kept], f"large: Other{DELIMITER}"]
    assert policy.log == ["draft after []", "repair", f"draft after {read}"]


def one_token(chain: Chain) -> int:
    return 1 - chain.tokens


@pytest.mark.parametrize(
    ("keep", "options", "log"),
    [
        (3, {"left": one_token}, ["draft after []"]),
        (3, {"stop": ("ne",)}, ["draft after []"]),
        (0, {"left": one_token}, ["draft after []", "repair"]),
    ],
)
def test_there_is_no_repair_if_the_kept_part_ends_the_step_or_the_budget(
    keep: int, options: dict[str, Any], log: list[str]
) -> None:
    policy = Ruled((ONE,), Rollback(keep, "doubt"))
    policy.write(**options)
    assert policy.log == log


@pytest.mark.parametrize("stop", ["length", "end"])
def test_a_repair_without_a_token_ends_the_step(stop: Stop) -> None:
    written = Ruled((ONE,), Rollback(), Step("", "large", stop)).write()
    assert (written.text, written.stop) == ("", stop)


@pytest.mark.parametrize(
    ("opening", "limit", "written", "stop"),
    [
        ("", 9, f"One{DELIMITER}", "delimiter"),
        ("O", 9, f"One{DELIMITER}", "delimiter"),
        ("One.", 9, f"One{DELIMITER}Two{DELIMITER}", "delimiter"),
        (f"One{DELIMITER}Two", 9, f"One{DELIMITER}Two{DELIMITER}", "delimiter"),
        (f"One{DELIMITER}Two", 2, f"One{DELIMITER}", "length"),
        (f"One{DELIMITER}Two", 0, "", "length"),
        (
            f"One{DELIMITER}Two{DELIMITER}Three and more",
            9,
            f"One{DELIMITER}Two{DELIMITER}Three.",
            "end",
        ),
    ],
)
def test_an_opening_takes_the_tokens_that_cover_it(
    opening: str, limit: int, written: str, stop: Stop
) -> None:
    policy = Ruled((ONE, TWO, LAST))
    step = policy.write(opening=opening, limit=limit)
    assert (step.text, step.stop) == (written, stop)
    assert (policy.log == []) is (limit == 0)


def test_an_opening_of_the_answer_is_written_once() -> None:
    made = trio()
    openings: list[str] = []

    class Opened(ScriptedModel):
        async def write(self, chain: Chain, **wanted: Any) -> Step:
            openings.append(wanted["opening"])
            return await super().write(chain, **wanted)

    pair = replace(made.pair, large=Opened("large", counting("large", 3)))
    written, _ = run(
        pair.write(
            PROBLEM.extend(LAST), opening="So", until=lambda partial: partial.author != "small"
        )
    )
    # a partial answer is the pair's too
    assert (openings, written.stop != "until") == (["So"], True)


def test_the_pieces_of_a_step_are_read_and_cut_by_their_authors() -> None:
    policy = Ruled((ONE, LAST, LAST, LAST), Rollback(3, "half"))
    written = policy.write()
    half = written.cut(6)
    assert [(path, leaf.text) for path, leaf in half.leaves()] == [
        ("small.small", "One"),
        ("small.large", "Oth"),
    ]
    run(policy.pair().write(PROBLEM.extend(written).extend(OTHER)))
    read = ["small: One", f"large: Other{DELIMITER}", f"large: Other{DELIMITER}"]
    assert policy.log[-1] == f"draft after {read}"


@pytest.mark.parametrize(("limit", "left", "most"), [(512, 7, 7), (5, 100, 5), (512, 600, 512)])
def test_no_request_within_the_pair_exceeds_the_limit_or_the_budget(
    limit: int, left: int, most: int
) -> None:
    limits: list[int] = []

    class Limited(ScriptedModel):
        async def write(self, chain: Chain, **wanted: Any) -> Step:
            limits.append(wanted["limit"])
            return await super().write(chain, **wanted)

    tiny, small = (Limited(role, counting("small", 3)) for role in ("small", "large"))
    pair = Nested("small", tiny, small, partial(policies.make, "lookahead-reasoning"))
    run(pair.budgeted(lambda chain: left).write(PROBLEM, limit=limit))
    assert limits[:2] == [most, most]


def test_requests_within_a_pair_have_the_step_of_the_chain_and_are_no_awaited_bets() -> None:
    three = trio(length=3, refused=(1,))
    run(reason(three.policy, PROBLEM, ahead=0))
    requests = [
        (call.path, call.purpose, call.step) for call in three.events if isinstance(call, Called)
    ]
    assert requests[:2] == [("small.small", "draft", 0), ("small.large", "verify", 0)]
    assert ("small.large", "repair", 1) in requests
    assert ("", "verify", 1) in requests


def test_every_model_of_a_pair_begins_with_another_of_its_servers() -> None:
    nested = {"small": {"url": "http://a:1,http://b:1"}, "large": {"url": "http://d:1,http://e:1"}}
    pair = NestedPair.model_validate(nested).turned(1)
    assert [one.url for _, one in pair.models] == ["http://b:1", "http://e:1"]
    assert pair.turned(1) == NestedPair.model_validate(nested)


# A nested pair keeps the promises of `Model`, as far as a model can that shows nothing before it is
# verified.


@pytest.mark.parametrize("policy", ["small", "glimpse"])  # which need no request to judge
class TestNested(ModelContract):
    @pytest.fixture
    def subject(self, policy: str) -> Subject:
        events: list[Event] = []

        def model(role: Role) -> ScriptedModel:
            return ScriptedModel(
                role,
                counting("small", 4),
                latency=lambda chain: 0.0,
                reading=lambda chain: 0.0,
                pace=1e-6,  # seconds; enough to be cancelled in
                judge=lambda chain, question: {"7": 0.5, "9": 0.25},
                observe=observe_within("small", events.append),
            )

        pair = Nested(
            "small", model("small"), model("large"), partial(policies.make, policy), events.append
        )
        return Subject(pair, PROBLEM, events)

    async def test_every_request_is_reported_once(self, subject: Subject) -> None:
        step = await subject.model.write(subject.chain, limit=SHORT)
        calls = [event for event in subject.events if isinstance(event, Called)]
        assert {(call.role, call.fate) for call in calls} == {("small", "done")}
        assert sum(call.written for call in calls if call.verb == "write") == len(step.tokens)
        before = len(calls)
        await subject.model.ask(subject.chain, "Right?", "79")
        assert [call.path for call in subject.calls[before:]] == ["small.large"]

    async def test_a_cancelled_write_is_over_and_leaves_the_model_usable(
        self, subject: Subject
    ) -> None:
        writing = asyncio.create_task(
            subject.model.write(subject.chain, stop=(), until=cancel_writer, limit=SHORT)
        )
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert (await subject.model.write(subject.chain, limit=SHORT)).text
