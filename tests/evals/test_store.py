"""An interrupted measurement is resumed, and never mixed with another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from stepspec.evals.arms import SHIPPED, SMALL
from stepspec.evals.store import JsonlStore, SampleStore
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.solution import SolvedStep

from .scripted import sample

ABOUT = {"profile": "paced", "seed": 1}


def keep(path: Path, count: int = 3) -> None:
    with SampleStore(path, ABOUT) as samples:
        for number in range(count):
            samples.add(number, sample(SMALL.name, float(number), small=7))


def test_samples_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "samples.jsonl"
    keep(path)
    with SampleStore(path, ABOUT) as again:
        assert again.done == {
            (n, SMALL.name): sample(SMALL.name, float(n), small=7) for n in range(3)
        }
        again.add(1, sample(SHIPPED.name, 1.0))
    assert len(SampleStore(path, ABOUT).done) == 4


@pytest.mark.parametrize("lost", [1, 30, 100])
def test_a_line_that_was_cut_is_dropped_and_the_rest_kept(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "samples.jsonl"
    keep(path)
    path.write_bytes(path.read_bytes()[:-lost])
    whole = path.read_bytes().rpartition(b"\n")[0]
    assert set(SampleStore(path, ABOUT).done) == {(0, SMALL.name), (1, SMALL.name)}
    with SampleStore(path, ABOUT) as again:
        assert path.read_bytes() == whole + b"\n"
        again.add(2, sample(SMALL.name, 2.0))
        assert path.read_bytes().startswith(whole)
    assert set(SampleStore(path, ABOUT).done) == {(n, SMALL.name) for n in range(3)}


def test_samples_of_something_else_are_neither_taken_nor_lost(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    early = SampleStore(path, {**ABOUT, "seed": 3})
    keep(path)
    before = path.read_bytes()
    with pytest.raises(
        ConfigurationError, match=r"another run \(other: seed\): choose .* --output, or .* --fresh"
    ):
        SampleStore(path, {**ABOUT, "seed": 2})
    with pytest.raises(ConfigurationError, match=r"\(other: extra\)"):
        SampleStore(path, {**ABOUT, "extra": 1})
    # before which it was begun
    with pytest.raises(ConfigurationError, match=r"\(other: seed\)"), early:
        pass
    assert path.read_bytes() == before
    with pytest.raises(ConfigurationError, match=r"\(other: profile, seed\)"):
        JsonlStore(_written(tmp_path / "notes.txt", b"my notes\nmore\n"), ABOUT)
    SampleStore(path, dict(reversed(ABOUT.items())))  # which says the same


def test_samples_are_discarded_with_fresh(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    keep(path)
    other = {**ABOUT, "seed": 2}
    with SampleStore(path, other, fresh=True) as samples:
        assert samples.done == {}
        samples.add(0, sample(SMALL.name, 1.0))
    assert set(SampleStore(path, other).done) == {(0, SMALL.name)}
    with SampleStore(_written(tmp_path / "cut.jsonl", b'{"profile":"pa'), ABOUT) as samples:
        assert samples.done == {}
    assert _header(tmp_path / "cut.jsonl") == ABOUT


def test_a_step_is_written_without_its_empty_text(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    solved = replace(
        sample(SMALL.name, 1.0),
        steps=(SolvedStep(0, "small", "", 8.0, "kept", "", 0.5),),
    )
    with SampleStore(path, ABOUT) as samples:
        samples.add(0, solved)
    (step,) = orjson.loads(path.read_bytes().splitlines()[1])["steps"]
    assert list(step) == ["index", "author", "grade", "fate", "reason", "at", "detail"]
    assert SampleStore(path, ABOUT).done == {(0, SMALL.name): solved}


def test_an_equal_header_in_another_spelling_is_kept_with_all_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    keep(path)
    _, *lines = path.read_bytes().splitlines(keepends=True)
    before = b"".join((b'{"seed": 1.0, "profile": "paced"}\n', *lines))
    path.write_bytes(before)
    with SampleStore(path, ABOUT) as samples:
        samples.add(3, sample(SMALL.name, 3.0))
    assert path.read_bytes().startswith(before)
    assert len(SampleStore(path, ABOUT).done) == 4


def test_a_file_with_another_beginning_is_never_truncated(tmp_path: Path) -> None:
    """
    Not even where it has no whole line; and a file that was begun since by somebody else is looked
    at again.
    """
    for content in (b"my notes", b'{"profile":"fast"', b"\0" * 40):
        path = _written(tmp_path / "notes.txt", content)
        with pytest.raises(ConfigurationError, match=r"notes\.txt holds another run.*--fresh"):
            JsonlStore(path, ABOUT)
        assert path.read_bytes() == content
    early = JsonlStore(tmp_path / "empty.jsonl", ABOUT)
    _written(early.path, b"my notes")
    with pytest.raises(ConfigurationError, match="another run"), early:
        pass
    assert early.path.read_bytes() == b"my notes"
    with JsonlStore(early.path, ABOUT, fresh=True):
        pass
    assert _header(early.path) == ABOUT


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = _written(tmp_path / "run", b"")
    for path in (tmp_path, file / "samples.jsonl"):
        with (
            pytest.raises(ConfigurationError, match=r"cannot be written .*--output"),
            SampleStore(path, ABOUT),
        ):
            pass


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _header(path: Path) -> Any:
    return orjson.loads(path.read_bytes().splitlines()[0])


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with SampleStore(path, ABOUT) as samples:
        other = SampleStore(path, ABOUT)
        with pytest.raises(ConfigurationError, match="is being written by another command"), other:
            pass
        samples.add(0, sample(SMALL.name, 1.0))
    with other:  # which had read the file before that was added
        assert set(other.done) == {(0, SMALL.name)}
    assert len(SampleStore(path, ABOUT).done) == 1


@pytest.mark.parametrize("line", [b"{", b"{}", b"[]", b'{"task": 1, "arm": "x"}'])
def test_a_complete_line_that_is_no_sample_is_refused_with_its_number(
    tmp_path: Path, line: bytes
) -> None:
    path = tmp_path / "samples.jsonl"
    keep(path)
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(ConfigurationError, match=r"samples\.jsonl, line 5: no sample"):
        SampleStore(path, ABOUT)
