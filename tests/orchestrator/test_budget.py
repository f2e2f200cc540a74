"""The budget of a run: the rest, invalid limits, and the limit of each write."""

import inspect
import math
from collections.abc import Mapping
from typing import Unpack, get_type_hints

import pytest

from stepspec.orchestrator import Budget, Chain, Model, Step, Token
from stepspec.orchestrator.budget import Budgeted
from stepspec.orchestrator.chain import Stop
from stepspec.orchestrator.events import Called, Event
from stepspec.orchestrator.interfaces import WriteOptions

from ..fakes import ScriptedModel, counting, run, tokenise
from .arms import PROBLEM


def chain(*tokens: int, stop: Stop = "delimiter") -> Chain:
    return Chain(
        PROBLEM.messages, tuple(Step("a" * n, "small", stop, (Token("a"),) * n) for n in tokens)
    )


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"tokens": 0}, "tokens\n  Input should be greater than 0"),
        ({"tokens": 100, "answer": 100}, "must be from 1 to 99"),
        ({"tokens": 100, "answer": 150}, "must be from 1 to 99"),
        ({"tokens": 100, "answer": 0}, "answer\n  Input should be greater than 0"),
        ({"steps": 0}, "steps\n  Input should be greater than 0"),
        ({"seconds": 0}, "seconds\n  Input should be greater than 0"),
        ({"seconds": -1.5}, "seconds\n  Input should be greater than 0"),
        ({"seconds": math.nan}, "seconds\n  Input should be greater than 0"),
        ({"token": 1}, "token\n  Unexpected keyword argument"),
    ],
)
def test_limits_that_leave_no_room_are_named(limits: Mapping[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Budget(**limits)


def test_a_budget_is_cut_to_the_room_of_a_context_and_its_answer_below_that() -> None:
    assert Budget(100).fit(200) == Budget(100)
    assert Budget(100, steps=3, seconds=2.0).fit(60) == Budget(60, steps=3, seconds=2.0)
    assert Budget(100, answer=80).fit(60) == Budget(60, answer=59)
    assert Budget(100, answer=20).fit(60) == Budget(60, answer=20)


@pytest.mark.parametrize(
    ("budget", "for_answer"),
    [
        (Budget(), 512),
        (Budget(2048), 512),
        (Budget(2044), 511),
        (Budget(100), 25),
        (Budget(3), 1),
        (Budget(2), 1),
        (Budget(2, answer=1), 1),
        (Budget(100, answer=99), 99),
        (Budget(8192, answer=2000), 2000),
    ],
)
def test_a_quarter_but_no_more_than_512_is_kept_for_the_answer(
    budget: Budget, for_answer: int
) -> None:
    assert budget.for_answer == for_answer
    assert budget.left(PROBLEM) == budget.tokens - for_answer >= 1


def test_every_token_of_either_model_reduces_the_rest_down_to_zero() -> None:
    budget = Budget(100)
    assert [
        budget.left(chain(*tokens)) for tokens in ((), (30,), (30, 44), (30, 45), (75, 30))
    ] == [75, 45, 1, 0, 0]
    assert [budget.spent(chain(*tokens)) for tokens in ((), (30, 44), (30, 45))] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(("thought", "left"), [(75, 25), (40, 60), (1, 99), (90, 25)])
def test_after_the_thinking_the_answer_has_its_reserve_and_the_rest(
    thought: int, left: int
) -> None:
    """Thinking that an opening made longer than it may be takes nothing from the answer."""
    assert Budget(100).left(chain(thought, stop="end")) == left
    assert Budget(100).left_to_answer(chain(thought)) == left
    assert not Budget(100).spent(chain(thought, stop="end"))


@pytest.mark.parametrize(("text", "left"), [("", 100), ("So", 60), ("<think>", 35)])
def test_a_chain_that_is_the_answer_has_the_whole_budget_unless_it_opens_a_block(
    text: str, left: int
) -> None:
    steps = (Step(text, "small", "delimiter", (Token(text),) * 40),) if text else ()
    assert Budget(100).left(Chain(PROBLEM.messages, steps, thinks=False)) == left


def test_the_number_of_steps_is_limited_at_any_length() -> None:
    budget = Budget(steps=2)
    assert [budget.spent(chain(*(1,) * n)) for n in (0, 1, 2, 3)] == [False, False, True, True]
    assert not Budget().spent(chain(*(1,) * 1000))


def test_a_quarter_of_the_seconds_is_kept_for_the_answer() -> None:
    assert [Budget(seconds=8).after(late).seconds for late in (1, 9)] == [7, 0.001]
    assert Budget(seconds=60).thinking_seconds == 45
    assert Budget().thinking_seconds is None


def test_a_budgeted_model_exceeds_neither_the_rest_nor_the_limit() -> None:
    model = Budgeted(ScriptedModel("small", counting("small", 5)), Budget(8, answer=4).left)
    assert model.role == "small"
    step, _ = run(model.write(PROBLEM))
    assert (len(step.tokens), step.stop) == (4, "length")
    assert len(run(model.write(PROBLEM, limit=3))[0].tokens) == 3
    # after "The", " small"
    assert len(run(model.write(PROBLEM.extend(step.cut(9)), limit=4))[0].tokens) == 2


@pytest.mark.parametrize("opening", ["", "Well,"])
def test_a_model_without_tokens_left_is_called_only_to_read_an_opening(opening: str) -> None:
    limits: list[int] = []

    class Recording(ScriptedModel):
        async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
            limits.append(options.get("limit", -1))
            return Step(options.get("opening", ""), self.role, "length")

    model = Budgeted(Recording("small", counting("small", 5)), lambda chain: 0)
    assert run(model.write(PROBLEM, opening=opening))[0] == Step(opening, "small", "length")
    assert limits == ([0] if opening else [])


def test_a_budgeted_model_takes_the_options_of_every_write() -> None:
    hints = get_type_hints(Model.write)
    parameters = inspect.signature(Model.write).parameters.values()
    options = {
        p.name: hints[p.name] for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert options == get_type_hints(WriteOptions)
    *_, accepted = inspect.signature(Budgeted.write).parameters.values()
    assert (accepted.kind, accepted.annotation) == (
        inspect.Parameter.VAR_KEYWORD,
        "Unpack[WriteOptions]",
    )


def test_a_budgeted_model_passes_everything_else_on() -> None:
    def judge(chain: Chain, question: str) -> Mapping[str, float]:
        return {question: 1.0}

    calls: list[Event] = []
    large = ScriptedModel("large", counting("large", 5), judge=judge, observe=calls.append)
    model = Budgeted(large, Budget(10).left)
    assert run(model.ask(PROBLEM, "7", ["7", "8"], opening="It is "))[0] == {"7": 1.0, "8": 0.0}
    assert calls == [
        Called("large", "ask", "done", 0.0, 1.0, 1.0, prompt=len(tokenise("7It is ")), written=1)
    ]
    assert [
        "".join(t.text for t in span) for span in run(model.score(PROBLEM, "So it", " is"))[0]
    ] == ["So it", " is"]
    step, _ = run(model.write(PROBLEM, stop=(" says",), opening="Well, the"))
    assert (step.text, step.stop) == ("Well, the says", "delimiter")
    step, _ = run(model.write(PROBLEM, until=lambda step: "large" in step.text))
    assert (step.text, step.stop) == ("The large", "until")
