"""The virtual clock is exact and reports hanging tests; properties of the scripted model beyond those of any model."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from stepspec.orchestrator import Chain, Step, Token
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.events import Called, Event
from stepspec.orchestrator.interfaces import KEPT_OPEN

from .fakes import ScriptedModel, counting, run, tokenise

PROBLEM = Chain.of("Why?")


def test_sleeping_takes_no_time_but_advances_the_clock() -> None:
    async def main() -> list[float]:
        clock = asyncio.get_running_loop().time
        woken: list[float] = []

        async def sleep(seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append(clock())

        await asyncio.gather(sleep(1e6), sleep(0.5), sleep(0))
        return woken

    assert run(main()) == ([0.0, 0.5, 1e6], 1e6)


def test_a_task_that_is_left_behind_fails_the_test() -> None:
    async def main() -> None:
        asyncio.create_task(asyncio.sleep(1), name="left")  # noqa: RUF006  # the point

    with pytest.raises(AssertionError, match=r"left behind.*name='left'"):
        run(main())


def test_waiting_forever_fails_the_test() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="deadlock"):
        run(main())


def test_tokens_join_to_the_text_and_a_mark_and_a_delimiter_are_one() -> None:
    text = "So it's 3.\n\nWell?\n\n \\boxed{4}\n</think>\n\nYes"
    assert "".join(tokenise(text)) == text
    assert {".\n\n", "?\n\n", THINK_END, " it"} < set(tokenise(text))


def test_the_next_step_depends_on_the_text_alone() -> None:
    model = ScriptedModel("large", counting("large", 3))
    for limit in (1, 2, 5, 100):
        chain = PROBLEM
        while not chain.finished:
            chain = chain.extend(run(model.write(chain, stop=(), limit=limit))[0])
        assert chain.text == f"The large one says 0.\n\nThe large one says 1.\n\nThe large one says 2.\n{THINK_END}"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("Nobody", " large one says 0.\n\n"),
        ("Nobody ever said that, and more", ".\n\n"),
        ("A\n\nB\n\nThe", f" large one says 2.\n{THINK_END}"),
    ],
)
def test_the_text_of_another_author_is_continued_word_by_word(text: str, written: str) -> None:
    model = ScriptedModel("large", counting("large", 3))
    assert run(model.write(PROBLEM.extend(Step(text, "small", "length"))))[0].text == written


def test_a_write_takes_its_latency_and_the_pace_of_every_token() -> None:
    events: list[Event] = []
    model = ScriptedModel("small", counting("small", 3), pace=0.5, observe=events.append)
    step, seconds = run(model.write(PROBLEM))
    assert (len(step.tokens), seconds) == (6, 4.0)
    assert events == [Called("small", "write", "done", 0.0, 4.0, 1.0, len(tokenise("")), 0, 6)]


def test_a_token_that_reaches_beyond_a_stop_is_cut_and_loses_its_id() -> None:
    model = ScriptedModel("small", counting("small", 3))
    step, _ = run(model.write(PROBLEM, stop=("sm",)))
    assert (step.text, step.tokens[-1].text, step.tokens[-1].id) == ("The sm", " sm", -1)
    assert all(token.id >= 0 for token in step.tokens[:-1])


def test_a_write_without_room_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        run(ScriptedModel("small", counting("small", 3)).write(PROBLEM, limit=0))


def test_a_failure_and_a_cancellation_are_logged_and_leave_nothing_open() -> None:
    events: list[Event] = []
    model = ScriptedModel("small", counting("small", 3), closing=2.0, observe=events.append)
    model.fails = lambda verb, chain: ConnectionError("gone") if verb == "ask" else None

    async def main() -> None:
        with pytest.raises(ConnectionError, match="gone"):
            await model.ask(PROBLEM, "Right?", "01")
        writing = asyncio.create_task(model.write(PROBLEM))
        await asyncio.sleep(0.5)
        writing.cancel()
        await asyncio.wait([writing])

    assert run(main())[1] == 3.5
    assert model.log == ["small ask 0", "small ask 0 failed", "small write 0", "small write 0 cancelled"]
    assert model.open == 0
    assert [event.fate for event in events if isinstance(event, Called)] == ["failed", "cancelled"]


def test_a_sticky_model_continues_its_request_and_opens_another_if_the_text_differs() -> None:
    model = ScriptedModel("small", counting("small", 9), sticky=True)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            KEPT_OPEN.set(stack)
            chain = PROBLEM.extend(await model.write(PROBLEM))
            chain = chain.extend(await model.write(chain))
            await model.write(chain.extend(Step("Something else.\n\n", "large")))
            assert model.open == 1

    assert run(main())[1] == 2.0
    assert model.open == 0
    assert model.log == [
        "small write 0",
        "small goes on 1",
        "small write 0 cancelled",
        "small write 3",
        "small write 3 cancelled",
    ]


def test_ranks_and_probabilities_are_those_of_the_text_before() -> None:
    model = ScriptedModel("large", counting("large", 3), logprob=lambda before, token: -float(len(before)))
    written, _ = run(model.write(PROBLEM, opening="The"))
    (scored,), _ = run(model.score(PROBLEM, written.text))
    assert scored == written.tokens
    (one, two), _ = run(model.score(PROBLEM, "The tiny", " one"))[0], None
    assert [(token.logprob, token.rank) for token in (*one, *two)] == [(0.0, 1), (-3.0, 2), (-8.0, 1)]


def test_a_judge_may_put_its_probability_elsewhere() -> None:
    model = ScriptedModel("large", counting("large", 3), judge=lambda chain, question: {"Well": 0.75, "7": 0.25})
    assert run(model.ask(PROBLEM, "Right?", "78"))[0] == {"7": 0.25, "8": 0.0}


def test_only_the_requested_alternatives_are_returned() -> None:
    rivals = [Token(" big", -0.5), Token(" small", -1.5), Token(" odd", -2.5)]
    model = ScriptedModel("small", counting("small", 3), rivals=lambda before, token: rivals if before == "The" else ())
    plain, ranked = run(model.write(PROBLEM))[0], run(model.write(PROBLEM, top=2))[0]
    assert {token.top for token in plain.tokens} == {()}
    assert [replace(token, top=()) for token in ranked.tokens] == list(plain.tokens)
    assert ranked.tokens[1].top == tuple(rivals[:2])
    (scored,), _ = run(model.score(PROBLEM, "The tiny", top=1))
    assert scored[1].top == tuple(rivals[:1])


def test_without_rivals_the_models_own_choice_is_alone() -> None:
    model = ScriptedModel("small", counting("small", 3))
    (scored,), _ = run(model.score(PROBLEM, "The tiny", top=5))
    assert [[rival.text for rival in token.top] for token in scored] == [["The"], [" small"]]
    assert (scored[0].top[0].rank, scored[1].rank) == (1, 2)
