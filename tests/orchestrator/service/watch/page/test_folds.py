"""Which rows a long chain has: runs of accepted steps are one row, until it is opened."""

from __future__ import annotations

from typing import Any

from stepspec.orchestrator import Accept, Rollback, Step, Token
from stepspec.orchestrator.events import Committed, Degraded, Drafted, Event, Finished, Judged, Repaired, Started
from stepspec.orchestrator.trace import Moment, dump

from .made import made
from .script import script

ROWS = """
const { onlyRejected = false, opened = [] } = given[1];
return folds.rowsOf(seen(given[0]), { onlyRejected, opened: new Set(opened) });"""


def rows(trace: bytes, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = script(ROWS, [trace.decode(), options])
    return found


def chain(fates: str, *, finished: bool = True) -> bytes:
    """A step a second for every letter: accepted (a) or rejected and repaired (r); n is a notice in between."""
    happened: list[Event] = [Started((), "specreason")]
    index = 0
    for fate in fates:
        draft, repair = (Step(f"{index} {author}", author, tokens=(Token("x"),) * 3) for author in ("small", "large"))
        rollback = Rollback(reason="grade", score=1.0)
        if fate == "n":
            happened.append(Degraded("small", "gone"))
            continue
        happened.append(Drafted(index, draft))
        if fate == "a":
            happened += [Judged(index, draft, Accept(9.0)), Committed(index, draft)]
        else:
            happened += [Judged(index, draft, rollback), Repaired(index, repair, rollback), Committed(index, repair)]
        index += 1
    if finished:
        happened.append(Finished("stop", "", 1.0))
    places: list[float] = []
    for event in happened:
        places.append((places[-1] if places else 0) + isinstance(event, Committed))
    return b"".join(dump(Moment(at, event)) for at, event in zip(places, happened, strict=True))


def kinds(found: list[dict[str, Any]]) -> list[str]:
    return [f"{row['count']} folded" if row["kind"] == "fold" else row["kind"] for row in found]


def test_runs_of_accepted_steps_are_one_row() -> None:
    found = rows(chain("r" + "a" * 20 + "r" + "aaa" + "r"))
    assert kinds(found) == ["draft", "20 folded", "draft", "draft", "draft", "draft", "draft"]
    fold = found[1]
    assert (fold["from"], fold["to"], fold["tokens"], fold["seconds"]) == (1, 20, 60, 20.0)
    assert (fold["authors"], fold["open"]) == (["small"], False)


def test_a_short_chain_is_not_folded() -> None:
    assert kinds(rows(made())) == ["draft"] * 4
    assert kinds(rows(chain("a" * 23))) == ["draft"] * 23
    assert kinds(rows(chain("a" * 24))) == ["24 folded"]


def test_four_accepted_steps_are_worth_a_fold() -> None:
    assert kinds(rows(chain("r" * 20 + "aaaa" + "r"))) == [*["draft"] * 20, "4 folded", "draft"]
    assert kinds(rows(chain("r" * 21 + "aaa" + "r"))) == ["draft"] * 25


def test_an_open_fold_is_followed_by_its_steps() -> None:
    trace = chain("r" + "a" * 30)
    assert kinds(rows(trace, opened=[1])) == ["draft", "30 folded", *["draft"] * 30]
    assert rows(trace, opened=[1])[1]["open"]
    assert kinds(rows(trace, opened=[2])) == ["draft", "30 folded"]


def test_a_notice_stands_between_two_folds() -> None:
    assert kinds(rows(chain("a" * 14 + "n" + "a" * 14))) == ["14 folded", "notice", "14 folded"]


def test_the_newest_steps_of_a_run_that_goes_on_stay_in_sight() -> None:
    assert kinds(rows(chain("a" * 30, finished=False))) == ["27 folded", *["draft"] * 3]
    assert kinds(rows(chain("a" * 30 + "r", finished=False))) == ["30 folded", "draft"]


def test_only_what_was_rejected_is_left_by_the_filter() -> None:
    found = rows(chain("aarana" + "a" * 20), onlyRejected=True)
    assert [row["draft"]["index"] for row in found] == [2]
    assert rows(chain("a" * 30), onlyRejected=True) == []
