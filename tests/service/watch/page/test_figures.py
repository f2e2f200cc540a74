"""The figures of the page: where seconds and tokens went, the speed, and the threshold."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from stepspec.orchestrator import Accept, Rollback, Step, Token
from stepspec.orchestrator.events import (
    Called,
    Committed,
    Drafted,
    Event,
    Fate,
    Finished,
    Judged,
    Purpose,
    Repaired,
    Started,
    Verb,
)
from stepspec.orchestrator.ledger import Ledger
from stepspec.orchestrator.trace import Moment, dump

from ....orchestrator.arms import ARMS
from .made import drawn, made
from .script import script
from .test_view import TRACES, events

# Where the seconds and the tokens went: the parts add up to the ledger of the library, whatever the
# method.

SUMS = """return given.map((text) => {
  const view = seen(text);
  const { secondsByPurpose, ledgerOf } = ledger;
  const roles = ["small", "large", "critic"];
  return {
    purposes: secondsByPurpose(view.calls, roles, (call) => call.role),
    seconds: fates.secondsByFate(spans.spansOf(view)),
    tokens: fates.tokensByFate(view, ledgerOf(view)),
  };
});"""


def sums(*traces: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = script(SUMS, [trace.decode() for trace in traces])
    return found


@pytest.fixture(scope="module")
def runs() -> list[bytes]:
    scripted = [
        drawn(
            name,
            seed,
            ahead,
        )
        for name, seed, ahead in product(ARMS, range(2), (0, 2))
    ]
    return [made(), *scripted, *(path.read_bytes() for path in TRACES)]


def test_they_are_the_librarys(runs: list[bytes]) -> None:
    for trace, found in zip(runs, sums(*runs), strict=True):
        expected = Ledger.of(events(trace))
        accounts = (expected.small, expected.large, expected.critic)
        by_model = [sum(one["seconds"][place] for one in found["purposes"]) for place in range(3)]
        assert by_model == pytest.approx([one.writing + one.judged for one in accounts])
        assert found["seconds"]["judging"] == pytest.approx(
            sum(one.judged for one in accounts), abs=1e-2
        )
        assert sum(found["seconds"].values()) == pytest.approx(sum(by_model), rel=1e-2, abs=1e-2)
        tokens = found["tokens"]
        assert tokens["kept"] + tokens["repaired"] == sum(one.kept for one in accounts)
        discarded = sum(one.discarded for one in accounts)
        assert tokens["rejected"] + tokens["lost"] + tokens["other"] >= discarded
        assert tokens["judging"] == sum(one.judging for one in accounts)
        assert min(tokens.values()) >= 0


def written(text: str, author: Any = "small") -> Step:
    return Step(text, author, tokens=tuple(map(Token, text.split())))


def happened() -> bytes:
    """
    A draft that is kept in part and repaired, one that is kept, and one bet that is left over.
    """

    def called(
        role: Any, purpose: Purpose, started: float, seconds: float, index: int, count: int
    ) -> Called:
        verb: Any = "ask" if purpose == "verify" else "write"
        return Called(
            role,
            verb,
            "done",
            started,
            seconds,
            0.1,
            written=count,
            purpose=purpose,
            step=index,
            last_step=index,
        )

    first = written("a b c")
    repair = written("d e", "large")
    second = written("f g h i")
    third = written("j")
    rollback = Rollback(keep=2, reason="doubt", score=1.0)
    moments: list[tuple[float, Event]] = [
        (0, Started((), "own")),
        (1, called("small", "draft", 0, 1, 0, 3)),
        (1, Drafted(0, first)),
        (2, called("large", "verify", 1, 1, 0, 1)),
        (2, Judged(0, first, rollback)),
        (2, Committed(0, Step("a ", "small", tokens=(Token("a"),)))),
        (5, called("large", "hedge", 2, 3, 1, 2)),
        (5, Repaired(1, repair, rollback)),
        (5, Committed(1, repair)),
        (7, called("small", "draft", 5, 2, 2, 4)),
        (7, Drafted(2, second)),
        (8, called("large", "verify", 7, 1, 2, 1)),
        (8, Judged(2, second, Accept(9.0))),
        (8, Committed(2, second)),
        (8.5, called("small", "draft", 8, 0.5, 3, 1)),
        (8.5, Drafted(3, third)),
        (9, Finished("stop", "", 9)),
    ]
    return b"".join(dump(Moment(at, event)) for at, event in moments)


def test_every_purpose_and_every_fate_has_its_own() -> None:
    (found,) = sums(happened())
    spent = {one["purpose"]: one["seconds"] for one in found["purposes"] if any(one["seconds"])}
    assert spent == {"drafting": [3.5, 0, 0], "judging": [0, 2, 0], "repairing": [0, 3, 0]}
    assert found["seconds"] == {
        "kept": 2,
        "repaired": 3,
        "rejected": 1,
        "lost": 0.5,
        "other": 0,
        "judging": 2,
    }
    assert found["tokens"] == {
        "kept": 5,
        "repaired": 2,
        "rejected": 2,
        "lost": 1,
        "other": 0,
        "judging": 2,
    }


# The estimated speed against the large model alone: by hand, and unknown where too little is known.


def called(
    written: int,
    purpose: Purpose = "repair",
    *,
    role: Any = "large",
    verb: Verb = "write",
    fate: Fate = "done",
    first: float | None = 0.2,
    pace: float = 0.1,
) -> Called:
    seconds = (first or 0) + pace * (written - 1)
    return Called(role, verb, fate, 0.0, seconds, first, written=written, purpose=purpose)


def run_of(
    *calls: Called, policy: str = "specreason", seconds: float | None = 2.0, kept: int = 41
) -> str:
    step = Step("So.\n\n", "small", tokens=(Token("So"),) * kept)
    events: list[Event] = [Started((), policy), *calls, *([Committed(0, step)] if kept else [])]
    moments = [Moment(1.0, event) for event in events]
    if seconds is not None:
        moments.append(Moment(seconds, Finished("stop", "", seconds)))
    return b"".join(map(dump, moments)).decode()


def estimates(*runs: str) -> list[Any]:
    found: list[Any] = script("return given.map((text) => estimate.estimateOf(seen(text)))", runs)
    return found


def test_the_large_models_pace_is_of_its_own_text_and_a_run_that_goes_on_is_compared_so_far() -> (
    None
):
    found, so_far = estimates(
        run_of(
            called(11),
            called(
                21,
                "answer",
                pace=0.25,
            ),
        ),
        run_of(called(41), seconds=None),
    )
    assert (found["tokens"], found["pace"], found["first"]) == (
        30,
        pytest.approx(0.2),
        pytest.approx(0.2),
    )
    assert found["alone"] == pytest.approx(0.2 + 40 * 0.2)
    assert found["factor"] == pytest.approx(8.2 / 2)
    assert (so_far["seconds"], so_far["factor"]) == (1.0, pytest.approx(4.2))


OTHERS = (
    called(99, "draft"),  # a stream that stays open also waits
    called(99, ""),
    called(99, fate="cancelled"),
    called(99, role="small"),
    called(99, verb="score"),
    called(99, first=None),
    called(1),
)


def test_other_requests_say_nothing_about_it_and_without_a_comparison_there_is_no_estimate() -> (
    None
):
    few = estimates(*(run_of(called(16), other) for other in OTHERS))
    enough = estimates(*(run_of(called(17), other) for other in OTHERS))
    assert [(one["tokens"], one["factor"]) for one in few] == [(15, None)] * len(OTHERS)
    assert all(one["factor"] is not None for one in enough)
    assert estimates(run_of(called(99), policy="large"), run_of(called(99), kept=0)) == [None, None]


TICKS: list[tuple[tuple[float, float, float], list[float]]] = [
    ((0, 9, 10), [*range(10)]),
    ((0, 1, 10), [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ((0, 1.32, 8), [0, 0.2, 0.4, 0.6, 0.8, 1, 1.2]),
    ((0, 81.3, 9), [*range(0, 81, 10)]),
    ((-3, 12, 4), [0, 5, 10]),
    ((5, 5, 4), [5]),
]


def test_an_axis_has_round_ticks() -> None:
    found = script(
        "return given.map((range) => axis.ticks(...range))", [given for given, _ in TICKS]
    )
    assert found == [expected for _, expected in TICKS]
