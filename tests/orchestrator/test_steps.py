"""
Which steps the loop commits as they are, which it refuses by itself, and where it ends: examples at
two depths.
"""

from collections.abc import Callable
from typing import Any

import pytest

from stepspec.orchestrator import Chain, Rollback, Step, reason
from stepspec.orchestrator.chain import DELIMITER, THINK_END, Role
from stepspec.orchestrator.endpoints import Sampling
from stepspec.orchestrator.events import Committed, Event, Judged, Repaired
from stepspec.orchestrator.interfaces import REQUEST, RequestContext
from stepspec.orchestrator.reason import End
from stepspec.policies import Guarded, Solo, SpecReason

from ..fakes import Previous, ScriptedModel, counting, run, saying
from .arms import PROBLEM, Keeping, working

pytestmark = pytest.mark.parametrize("ahead", [0, 2])


def pair(
    small: Callable[[Previous], str], large: Callable[[Previous], str] | None = None
) -> tuple[ScriptedModel, ...]:
    writer = ScriptedModel("small", small)
    return writer, ScriptedModel("large", large or counting("large", 4), log=writer.log)


def think(small: ScriptedModel, large: ScriptedModel, ahead: int) -> tuple[Chain, End, list[Event]]:
    events: list[Event] = []
    (chain, end), _ = run(
        reason(SpecReason(small, large), PROBLEM, ahead=ahead, observe=events.append)
    )
    return chain, end, events


def verdicts(events: list[Event]) -> dict[int, str]:
    """Return the reasons of the rollbacks, by step."""
    return {e.index: e.rollback.reason for e in events if isinstance(e, Repaired)}


def test_blank_lines_after_a_step_belong_to_the_next_one(ahead: int) -> None:
    small, large = pair(saying("First.\n\n", DELIMITER, f"Last.\n{THINK_END}"))
    chain, end, events = think(small, large, ahead)
    assert [step.text for step in chain.steps] == ["First.\n\n", f"\n\nLast.\n{THINK_END}"]
    assert (verdicts(events), end) == ({}, "finished")


LONG = " ".join(f"word{number}" for number in range(150))


def test_a_draft_that_completes_a_loop_is_repaired_without_asking_the_judge(ahead: int) -> None:
    small, large = pair(saying(*[f"{LONG}\n\n"] * 3, f"Last.\n{THINK_END}"))
    chain, end, events = think(small, large, ahead)
    assert verdicts(events) == {2: "repetition"}
    assert [step.text[:13] for step in chain.steps] == ["word0 word1 w"] * 2 + [
        "The large one",
        "Last.\n</think",
    ]
    assert "large ask 3" not in small.log[: small.log.index("large write 2")]
    assert end == "finished"


def test_a_large_model_that_goes_on_with_the_loop_ends_the_run(ahead: int) -> None:
    small, large = pair(saying(f"{LONG}\n\n"), saying(f"{LONG}\n\n"))
    chain, end, events = think(small, large, ahead)
    assert end == "repetition"
    assert chain.text == f"{LONG}\n\n" * 3
    assert not chain.finished
    assert [e.step.note for e in events if isinstance(e, Committed)] == ["", "", "repetition"]
    assert [e.index for e in events if isinstance(e, Repaired)] == [2, 3]


@pytest.mark.parametrize("author", ["small", "large"])
def test_one_model_alone_is_not_kept_from_a_loop_unless_that_is_wanted(
    author: Role, ahead: int
) -> None:
    model = ScriptedModel(author, saying(*[f"{LONG}\n\n"] * 9, f"Last.\n{THINK_END}"))
    ends: list[tuple[int, str]] = []
    for policy in (
        Solo(model),
        Guarded(Solo(model)),
        Guarded(SpecReason(model, model), None),
    ):
        (chain, end), _ = run(reason(policy, PROBLEM, ahead=ahead))
        ends.append((len(chain.steps), end))
    assert ends == [(10, "finished"), (3, "repetition"), (10, "finished")]


def test_a_step_that_the_server_ended_as_a_loop_ends_the_run(ahead: int) -> None:
    class Stopped(ScriptedModel):
        async def write(self, chain: Chain, **options: Any) -> Step:
            return Step("A", self.role, "repetition")

    alone = Solo(Stopped("large", counting("large", 3)))
    (chain, end), _ = run(
        reason(alone, PROBLEM, ahead=ahead, spent=lambda chain: len(chain.steps) > 2)
    )
    assert (len(chain.steps), end) == (1, "repetition")


def test_a_repair_in_a_loop_is_another_request_than_its_draft(ahead: int) -> None:
    """
    A model that samples by a seed takes another one for it, so that it may write something else.
    """
    contexts: list[RequestContext] = []

    class Noting(ScriptedModel):
        async def write(self, chain: Chain, **options: Any) -> Step:
            contexts.append(REQUEST.get())
            return await super().write(chain, **options)

    large = Noting("large", saying(*[f"{LONG}\n\n"] * 9, f"Last.\n{THINK_END}"))
    for policy, hedge in ((Guarded(Solo(large)), 0.0), (SpecReason(large, large), 1.0)):
        contexts.clear()
        run(reason(policy, PROBLEM, ahead=working(ahead, hedge)))
        found = {(context.purpose, context.new_seed) for context in contexts} - {("hedge", False)}
        assert found == {("draft", False), ("repair", True)}
    chain = Chain.of("Why?")
    sampling = Sampling(seed=7)
    plain, again = (
        sampling.seed_for("large", "write", chain, again=again) for again in (False, True)
    )
    assert plain == sampling.seed_for("large", "write", chain) != again


def test_a_repair_may_end_the_paragraph_of_a_draft_that_was_kept_in_part(ahead: int) -> None:
    small, large = pair(
        saying("It is 4\n\n", f"Last.\n{THINK_END}"), saying("It is\n\n", f"Last.\n{THINK_END}")
    )
    large.logprob = lambda before, token: -9.0 if token == " 4" else -0.1
    (chain, end), _ = run(reason(Keeping(small, large), PROBLEM, ahead=ahead))
    assert [(step.text, step.author, step.stop) for step in chain.steps] == [
        ("It is", "small", "length"),
        (DELIMITER, "large", "delimiter"),
        (f"Last.\n{THINK_END}", "small", "end"),
    ]
    assert end == "finished"


def test_a_step_cut_by_length_is_continued_and_not_ended_by_a_forged_paragraph(ahead: int) -> None:
    words = "".join(f" {number}" for number in range(600)) + DELIMITER
    small, large = pair(saying(words, f"Last.\n{THINK_END}"))
    chain, end, _ = think(small, large, ahead)
    assert [(len(step.tokens), step.stop) for step in chain.steps[:2]] == [
        (512, "length"),
        (89, "delimiter"),
    ]
    assert chain.text == f"{words}Last.\n{THINK_END}"
    assert end == "finished"


def test_the_kept_part_of_a_draft_is_committed_before_its_repair_starts(ahead: int) -> None:
    small, large = pair(counting("small", 2), counting("large", 2))
    large.logprob = lambda before, token: -9.0 if token == " small" else -0.1
    events: list[Event] = []

    def observe(event: Event) -> None:
        if isinstance(event, Committed):
            small.log.append(f"committed {event.index}")
        events.append(event)

    (chain, _), _ = run(reason(Keeping(small, large), PROBLEM, ahead=ahead, observe=observe))
    assert [(step.text, step.note) for step in chain.steps] == [
        ("The", ""),
        (" large one says 0.\n\n", "doubt"),
        ("The", ""),
        (f" large one says 1.\n{THINK_END}", "doubt"),
    ]
    assert (
        small.log.index("committed 0")
        < small.log.index("large write 1")
        < small.log.index("committed 1")
    )
    rollback = Rollback(3, "doubt")
    assert [e.verdict for e in events if isinstance(e, Judged) and e.index == 0] == [rollback]
    assert [(e.index, e.rollback) for e in events if isinstance(e, Repaired)] == [
        (1, rollback),
        (3, rollback),
    ]


def test_a_run_continues_the_steps_of_a_chain_unless_it_is_spent(ahead: int) -> None:
    small, large = pair(counting("small", 4))
    (chain, end), _ = run(
        reason(SpecReason(small, large), PROBLEM, ahead=ahead, spent=lambda chain: True)
    )
    assert (chain, end, small.log) == (PROBLEM, "budget", [])
    (full, _), _ = run(reason(Solo(small), PROBLEM, ahead=ahead))
    (chain, _), _ = run(reason(Solo(small), Chain(PROBLEM.messages, full.steps[:2]), ahead=ahead))
    assert chain == full
