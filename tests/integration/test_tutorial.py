"""
The tutorial's commands run on the miniature pair, one after the other, and print what the page
shows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ..docs.tutorial import PAGE, Session, free_port, outputs, runnable, shape
from .conftest import Pair

pytestmark = [pytest.mark.servers, pytest.mark.timeout(900)]


def test_the_tutorial_runs_as_it_is_printed(paced_pair: Pair, tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    small, large = (
        served.base_url.removesuffix("/v1") for served in (paced_pair.small, paced_pair.large)
    )
    session = Session(tmp_path, small, large, free_port())
    try:
        ran = [each for block in runnable(text) for each in session.run(block)]
    finally:
        session.close()
    assert [each.command for each in ran if each.code] == [], [
        each.output for each in ran if each.code
    ]
    shown = outputs(text)
    assert len(shown) == len(ran)
    for each, output in zip(ran, shown, strict=True):
        assert shape(each.output) == shape(output), (
            f"{each.command}: run `python -m tests.docs.tutorial`"
        )
