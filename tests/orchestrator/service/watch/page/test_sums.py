"""Where the seconds and the tokens went: the parts add up to the library's ledger, whatever the method."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from stepspec.orchestrator import Accept, Rollback, Step, Token
from stepspec.orchestrator.events import Called, Committed, Drafted, Event, Finished, Judged, Purpose, Repaired, Started
from stepspec.orchestrator.ledger import Ledger
from stepspec.orchestrator.trace import Moment, dump

from ....arms import ARMS
from .made import drawn, made, nested
from .script import script
from .test_view import TRACES, events

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
    scripted = [drawn(name, seed, ahead) for name, seed, ahead in product(ARMS, range(2), (0, 2))]
    return [made(), nested(), *scripted, *(path.read_bytes() for path in TRACES)]


def test_they_are_the_librarys(runs: list[bytes]) -> None:
    for trace, found in zip(runs, sums(*runs), strict=True):
        expected = Ledger.of(events(trace))
        accounts = (expected.small, expected.large, expected.critic)
        by_model = [sum(one["seconds"][place] for one in found["purposes"]) for place in range(3)]
        assert by_model == pytest.approx([one.writing + one.judged for one in accounts])
        assert found["seconds"]["judging"] == pytest.approx(sum(one.judged for one in accounts), abs=1e-2)
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
    """A draft that is kept in part and repaired, one that is kept, and one bet that is left over."""

    def called(role: Any, purpose: Purpose, started: float, seconds: float, index: int, count: int) -> Called:
        verb: Any = "ask" if purpose == "verify" else "write"
        return Called(
            role, verb, "done", started, seconds, 0.1, written=count, purpose=purpose, step=index, last_step=index
        )

    first, repair, second, third = written("a b c"), written("d e", "large"), written("f g h i"), written("j")
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
    assert spent == {
        "drafting": [3.5, 0, 0],
        "judging": [0, 2, 0],
        "repairing": [0, 3, 0],
    }
    assert found["seconds"] == {"kept": 2, "repaired": 3, "rejected": 1, "lost": 0.5, "other": 0, "judging": 2}
    assert found["tokens"] == {"kept": 5, "repaired": 2, "rejected": 2, "lost": 1, "other": 0, "judging": 2}
