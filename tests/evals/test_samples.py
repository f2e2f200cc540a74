"""A measurement that was cut short goes on where it stopped, and never mixes with another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepspec.evals.arms import SHIPPED, SMALL
from stepspec.evals.journal import Journal
from stepspec.evals.samples import Samples
from stepspec.orchestrator.errors import ConfigurationError

from .test_arms import sample

ABOUT = {"profile": "paced", "seed": 1}


def keep(path: Path, count: int = 3) -> None:
    with Samples(path, ABOUT) as samples:
        for number in range(count):
            samples.add(number, sample(SMALL.name, float(number), small=7))


def test_samples_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "samples.jsonl"
    keep(path)
    with Samples(path, ABOUT) as again:
        assert again.done == {(n, SMALL.name): sample(SMALL.name, float(n), small=7) for n in range(3)}
        again.add(1, sample(SHIPPED.name, 1.0))
    assert len(Samples(path, ABOUT).done) == 4


@pytest.mark.parametrize("lost", [1, 30, 100])
def test_a_line_that_was_cut_is_dropped_and_the_rest_kept(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "samples.jsonl"
    keep(path)
    path.write_bytes(path.read_bytes()[:-lost])
    assert set(Samples(path, ABOUT).done) == {(0, SMALL.name), (1, SMALL.name)}
    with Samples(path, ABOUT) as again:
        again.add(2, sample(SMALL.name, 2.0))
    assert set(Samples(path, ABOUT).done) == {(n, SMALL.name) for n in range(3)}


def test_samples_of_something_else_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    keep(path)
    assert Samples(path, {**ABOUT, "seed": 2}).done == {}
    assert Samples(path, ABOUT, fresh=True).done == {}
    path.write_bytes(b"notes")
    assert Samples(path, ABOUT).done == {}


def test_what_is_on_disk_is_never_taken_away_by_going_on(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    keep(path)
    before = path.read_bytes()
    path.write_bytes(before + b'{"task": 3, "ar')
    with Samples(path, ABOUT) as again:
        assert path.read_bytes() == before
        again.add(3, sample(SMALL.name, 3.0))
        assert path.read_bytes().startswith(before)
    assert set(Samples(path, ABOUT).done) == {(n, SMALL.name) for n in range(4)}


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with Samples(path, ABOUT) as samples:
        other = Samples(path, ABOUT)
        with pytest.raises(ConfigurationError, match="is being written by another run"), other:
            pass
        samples.add(0, sample(SMALL.name, 1.0))
    with other:  # which had read the file before that was added
        assert set(other.done) == {(0, SMALL.name)}
    assert len(Samples(path, ABOUT).done) == 1


@pytest.mark.parametrize("line", [b"{", b"{}", b"[]", b'{"task": 1, "arm": "x"}'])
def test_a_whole_line_that_is_no_sample_is_refused_by_its_number(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "samples.jsonl"
    keep(path)
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(ConfigurationError, match=r"samples\.jsonl, line 5: not a sample"):
        Samples(path, ABOUT)


def test_a_file_says_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    assert Journal.about(path) is None
    keep(path)
    assert Journal.about(path) == ABOUT
    path.write_bytes(path.read_bytes()[:5])
    assert Journal.about(path) is None
    path.write_bytes(b"somebody's notes\n")
    assert Journal.about(path) == {}
