"""The page as text: small, alone, and careful with what a trace says."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.service.watch.page import html, style

from .made import made


def test_the_page_is_small_and_needs_nothing_else() -> None:
    document = html()
    assert len(document.encode()) < 150_000
    addresses = set(re.findall(r"https?://[^\s'\"<]+", document))
    assert addresses == {"http://www.w3.org/2000/svg"}  # names, not places
    assert not re.search(r"\b(src|href)=\"(?!#|data:)", document)
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(|\son\w+=\"|\sstyle=", document)
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


# Colours: told apart by people who see fewer colours. That they can be read is for axe, in the browser.

WHO = ("small", "large", "critic")
FATES = ("kept", "repaired", "rejected", "lost")
APART = 15  # of the distance between two colours in CIELAB; 2.3 is just noticeable
# How linear RGB is seen with a full deficiency: Machado, Oliveira and Fernandes, 2009, doi:10.1109/TVCG.2009.113.
SEEN = {
    "all colours": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deuteranopia": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritanopia": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}
Colour = tuple[float, ...]


def colours(scheme: int) -> dict[str, Colour]:
    """The colours of the style sheet by name, as linear RGB; *scheme* is 0 for light and 1 for dark."""
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", style())
    return {name: linear(pair[scheme]) for name, *pair in found}


def linear(colour: str) -> Colour:
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return tuple(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)


def lab(colour: Colour) -> Colour:
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.0888)
    scaled = (sum(a * b for a, b in zip(row, colour, strict=True)) / w for row, w in zip(rows, white, strict=True))
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in scaled)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def seen(colour: Colour, by: str) -> Colour:
    return tuple(min(1.0, max(0.0, sum(a * b for a, b in zip(row, colour, strict=True)))) for row in SEEN[by])


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("scale", [WHO, FATES], ids=["who", "fates"])
@pytest.mark.parametrize("by", SEEN)
def test_the_colours_of_a_scale_are_told_apart(by: str, scale: tuple[str, ...], scheme: int) -> None:
    known = colours(scheme)
    for one, other in combinations(scale, 2):
        pair = lab(seen(known[one], by)), lab(seen(known[other], by))
        assert sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) ** 0.5 >= APART, (one, other)
