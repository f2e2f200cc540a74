"""The page as text: small, alone, and careful with what a trace says."""

from __future__ import annotations

import re

import pytest

from stepspec.orchestrator.errors import ConfigurationError
from stepspec.service.watch.page import html

from .made import made


def test_the_page_is_small_and_needs_nothing_else() -> None:
    document = html()
    assert len(document.encode()) < 150_000
    addresses = set(re.findall(r"https?://[^\s'\"<]+", document))
    assert addresses == {"http://www.w3.org/2000/svg"}  # names, not places
    assert not re.search(r"\b(src|href)=\"(?!#|data:)", document)
    assert not re.search(
        r"innerHTML|insertAdjacentHTML|document\.write|eval\(|\son\w+=\"|\sstyle=", document
    )
    assert "connect-src 'self'" in document
    assert "connect-src 'none'" in html(made())
    assert "unsafe" not in document
    assert "{{" not in document


@pytest.mark.parametrize(
    ("trace", "complaint"),
    [
        (b"", "does not begin with the event Started"),
        (b"# notes", "not a line of a trace"),
        (b"\xff\xfe", "not a line of a trace"),
        (made().partition(b"\n")[2], "does not begin with the event Started"),
        (made() + b"more", "not a line of a trace"),
    ],
)
def test_what_is_no_trace_makes_no_page(trace: bytes, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        html(trace)
