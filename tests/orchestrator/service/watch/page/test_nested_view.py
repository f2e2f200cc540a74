"""What the page makes of a nested pair: the library's own accounts and pieces, whatever the policies and the depth."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from stepspec.orchestrator.chain import Rollback, Step
from stepspec.orchestrator.events import Committed, Drafted, Event, JudgedWithin, Moved, Started
from stepspec.orchestrator.ledger import Ledger
from stepspec.orchestrator.trace import Moment, dump

from ....nesting.families import INNER, OUTER
from .made import SLIP, STEPS
from .made_nested import DOUBTED, KEPT, WRONG, drawn_nested, nested
from .script import script
from .test_view import TRACES, account, events, view

DEEP = ("bild", "keeping")


@pytest.fixture(scope="module")
def runs() -> list[bytes]:
    """Every policy within a pair and every one over it, alone and ahead, and some pairs in pairs."""
    drawn = [
        drawn_nested(outer, *(DEEP if inner == "bild" else (inner,)), seed=seed, ahead=ahead)
        for seed, ((outer, inner), ahead) in enumerate(product(zip(OUTER, INNER * 2, strict=False), (0, 2)))
    ]
    return [nested(), *drawn, *(path.read_bytes() for path in TRACES)]


def all_of(body: str, runs: list[bytes]) -> list[Any]:
    found: list[Any] = script(f"return given.map((text) => {body})", [trace.decode() for trace in runs])
    return found


def test_every_model_has_the_account_that_the_library_gives_it(runs: list[bytes]) -> None:
    for trace, found in zip(runs, all_of("ledger.ledgerOf(seen(text))", runs), strict=True):
        expected = Ledger.of(events(trace))
        by_path = {one.pop("path"): one for one in found["nested"]}
        assert by_path == {one.path: account(one) for one in expected.nested}
        assert list(by_path) == sorted(by_path, reverse=True)
        assert [tuple(one.values()) for one in found["sifted"]] == list(expected.sifted)


def joined(step: Step) -> list[tuple[str, str, int]]:
    """The pieces of *step*, those of one author in a row as one."""
    pieces: list[tuple[str, str, int]] = []
    for path, leaf in step.leaves() if step.pieces else ():
        if pieces and pieces[-1][0] == path:
            _, text, tokens = pieces.pop()
            pieces.append((path, text + leaf.text, tokens + len(leaf.tokens)))
        else:
            pieces.append((path, leaf.text, len(leaf.tokens)))
    return pieces


def test_every_draft_is_shown_in_its_pieces(runs: list[bytes]) -> None:
    for trace, drafts in zip(
        runs, all_of("seen(text).drafts.map((one) => [one.index, one.pieces])", runs), strict=True
    ):
        drafted = [(event.index, joined(event.draft)) for event in events(trace) if isinstance(event, Drafted)]
        shown = [(index, [tuple(piece.values()) for piece in pieces]) for index, pieces in drafts]
        assert [one for one in shown if one in drafted] == drafted


@pytest.mark.parametrize("inner", [("bild",), ("specreason",), ("keeping",), DEEP])
def test_drafts_rejected_within_are_shown_with_their_step(inner: tuple[str, ...]) -> None:
    """Without a lookahead, all that a pair judges between two drafts is about the second."""
    alone = [drawn_nested("specreason", *inner, seed=seed, ahead=0) for seed in range(20)]
    rejected = all_of("seen(text).drafts.map((one) => one.rejectedWithin.map((fell) => fell.text))", alone)
    fallen = 0
    for trace, drafts in zip(alone, rejected, strict=True):
        since: list[str] = []
        expected: list[list[str]] = []
        for event in events(trace):
            if isinstance(event, JudgedWithin) and isinstance(event.verdict, Rollback):
                since.append(event.draft.text)
            elif isinstance(event, Drafted):
                expected.append(since)
                since = []
        assert drafts == expected
        fallen += sum(map(len, drafts))
    assert fallen > 3


@pytest.mark.parametrize("inner", [("bild",), ("specreason",), DEEP])
def test_what_fell_within_is_the_same_at_any_lookahead(inner: tuple[str, ...]) -> None:
    body = "seen(text).drafts.filter((one) => one.kept).map((one) => [one.text, one.rejectedWithin])"
    for seed in range(4):
        alone, ahead = all_of(body, [drawn_nested("specreason", *inner, seed=seed, ahead=depth) for depth in (0, 3)])
        assert alone == ahead


def test_a_pair_as_it_is_shown() -> None:
    shown = view(nested())
    pieces = [[(one["path"], one["text"]) for one in draft["pieces"]] for draft in shown["drafts"]]
    assert pieces == [
        [("small.small", STEPS[0])],
        [("small.small", KEPT), ("small.large", SLIP.removeprefix(KEPT))],
        [("small.large", STEPS[2])],
        [("small.small", STEPS[3])],
    ]
    fallen = [[(one["path"], one["text"], one["kept"]) for one in draft["rejectedWithin"]] for draft in shown["drafts"]]
    assert fallen == [[], [("small.small", WRONG, len(KEPT))], [("small.small", DOUBTED, 0)], []]
    assert shown["drafts"][1]["repair"]["pieces"] == []
    assert shown["models"]["small.small"] == "tiny"


def test_a_step_of_a_pair_is_cut_between_its_pieces_in_any_alphabet() -> None:
    pieces = Step("🦊 + ", "small"), Step("🦊 = ", "large"), Step("🦊\n\n", "large")
    full = Step("🦊 + 🦊 = 🦊\n\n", "small", pieces=pieces)
    happened: list[Event] = [Started((), "bild"), Drafted(0, full), Committed(0, full.cut(6))]
    (shown,) = view(b"".join(dump(Moment(at, event)) for at, event in enumerate(happened)))["drafts"]
    assert [piece["text"] for piece in shown["pieces"]] == ["🦊 + ", "🦊 = 🦊\n\n"]
    assert full.text.encode("utf-16-le")[: 2 * shown["kept"]["characters"]].decode("utf-16-le") == "🦊 + 🦊 "


def test_a_model_within_a_pair_that_moves_is_named_by_its_path() -> None:
    happened: list[Event] = [Started((), "bild"), Moved("small", "a", "b", "gone", "small.large")]
    (notice,) = view(b"".join(dump(Moment(at, event)) for at, event in enumerate(happened)))["notices"]
    assert notice["text"] == "The small.large model at a failed; the run goes on at b."
