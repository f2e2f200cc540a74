"""The time line of a nested pair: a lane for each model, and what is known about whose steps its requests made."""

from __future__ import annotations

import pytest

from .made import made
from .made_nested import drawn_nested, nested
from .script import script
from .test_spans import fills_its_rows, spans

DEEP = ("bild", "keeping")
DRAWN = [
    ("specreason", ("bild",)),
    ("bild", ("specreason",)),
    ("cascade", ("keeping",)),
    ("small", ("small",)),
    ("relay", ("glimpse",)),
    ("specreason", DEEP),
]


def test_every_model_has_a_lane_the_cheapest_first() -> None:
    body = "return given.map((text) => spans.lanesOf(seen(text)).map((lane) => lane.model))"
    deep, begun = drawn_nested("specreason", *DEEP, seed=1, ahead=0), nested().splitlines(keepends=True)[0]
    unnamed = begun.replace(b'["small.small","tiny"],["small.large","middle"],', b"")
    assert script(body, [trace.decode() for trace in (made(), nested(), deep, begun, unnamed)]) == [
        ["small", "large"],
        ["small.small", "small.large", "large"],
        ["small.small.small", "small.small.large", "small.large", "large"],
        ["small.small", "small.large", "large"],  # Nobody was called yet.
        ["small", "large"],
    ]


def test_every_part_of_a_run_belongs_to_its_step() -> None:
    owned = [
        (span["model"], span["verb"], part["what"], part["draft"], part["fate"])
        for span in sorted(spans(nested()), key=lambda span: (span["started"], span["place"]))
        for part in span["parts"]
    ]
    assert owned == [
        ("small.small", "write", "draft", 0, "kept"),
        ("small.small", "write", "draft", 1, "rejected"),  # with the whole step, by the large model
        ("small.small", "write", "draft", 1, "rejected"),  # within, by the pair
        ("small.small", "write", None, None, "cancelled"),
        ("small.large", "score", "verdict", 0, "done"),
        ("large", "ask", "verdict", 0, "done"),
        ("small.large", "score", "verdict", 1, "done"),
        ("small.large", "score", None, None, "cancelled"),
        ("small.large", "write", "repair", 1, "rejected"),
        ("large", "ask", "verdict", 1, "done"),
        ("small.small", "write", None, None, "cancelled"),  # The large model refused what it went on from.
        ("small.large", "score", None, None, "unknown"),
        ("large", "write", "repair", 1, "kept"),
        ("small.small", "write", "draft", 2, "rejected"),
        ("small.small", "write", None, None, "cancelled"),
        ("small.large", "score", "verdict", 2, "done"),
        ("small.large", "write", "repair", 2, "kept"),
        ("small.small", "write", "draft", 3, "kept"),
        ("large", "ask", "verdict", 2, "done"),
        ("small.large", "score", "verdict", 3, "done"),
        ("large", "ask", "verdict", 3, "done"),
        ("large", "write", "answer", None, "kept"),
    ]


def test_a_stream_is_cut_where_the_tokens_of_its_drafts_end() -> None:
    (first, *_) = [span for span in spans(nested()) if span["model"] == "small.small"]
    # 12 tokens, and 13 of which 11 stood, one every 4 ms after the first 10; what came later was lost.
    assert [part["to"] for part in first["parts"]] == pytest.approx([0.058, 0.102, 0.110, 0.140], abs=0.003)


def test_the_parts_of_a_request_fill_it_and_its_row_has_room() -> None:
    traces = [
        drawn_nested(outer, *inner, seed=seed, ahead=ahead).decode()
        for outer, inner in DRAWN
        for seed, ahead in ((0, 0), (1, 2), (2, 2), (3, 3))
    ]
    fills_its_rows(traces)


@pytest.mark.parametrize(("outer", "inner"), DRAWN)
def test_nothing_that_was_kept_is_without_its_request_and_nobody_kept_what_a_pair_refused(
    outer: str, inner: tuple[str, ...]
) -> None:
    body = """return given.map((text) => {
      const view = seen(text);
      const idle = ledger.ledgerOf(view).nested.filter((one) => one.kept === 0).map((one) => one.path);
      return [view.drafts.filter((one) => one.kept), spans.spansOf(view).filter((one) => one.kind === "write"), idle];
    })"""
    traces = [drawn_nested(outer, *inner, seed=seed, ahead=ahead).decode() for seed in range(5) for ahead in (0, 2)]
    pieces = 0
    for drafts, writes, idle in script(body, traces):
        owned = {(span["model"], part["draft"]) for span in writes for part in span["parts"]}
        kept = {(piece["path"], one["number"]) for one in drafts for piece in one["pieces"] if piece["tokens"]}
        assert kept <= owned
        assert not [span for span in writes if span["model"] in idle if "kept" in {p["fate"] for p in span["parts"]}]
        pieces += len(kept)
    assert pieces > 10


def test_a_draft_of_the_larger_model_is_its_own() -> None:
    alone = drawn_nested("specreason", "large", seed=3, ahead=0)
    owners = {(span["model"], part["what"]) for span in spans(alone) for part in span["parts"]}
    assert ("small.large", "draft") in owners
    assert "small.small" not in dict(owners)


def test_a_run_that_goes_on_shows_no_part_as_lost_before_it_is() -> None:
    lines = drawn_nested("specreason", "bild", seed=1, ahead=0).splitlines(keepends=True)
    cut = next(place for place, line in enumerate(lines) if b"JudgedWithin" in line) + 1

    def first(trace: bytes) -> str:
        owned = [part for span in spans(trace) if span["path"] for part in span["parts"]]
        return str(min(owned, key=lambda part: float(part["from"]))["fate"])

    assert (first(b"".join(lines[:cut])), first(b"".join(lines))) == ("drafted", "kept")
