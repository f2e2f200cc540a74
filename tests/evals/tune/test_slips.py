"""Slips that are made in steps."""

from __future__ import annotations

import random

import pytest

from stepspec.evals.tune.slips import MAKERS, Slip, make_slip


@pytest.mark.parametrize(
    ("kind", "step", "slips"),
    [
        ("number", "It is 5.", {f"It is {digit}." for digit in "12346789"}),
        ("sign", "So x - 4 = 9 + y.", {"So x + 4 = 9 + y.", "So x - 4 = 9 - y."}),
        ("unit", "It takes 60 minutes.", {"It takes 60 hours."}),
        ("variable", "Then b = 3c.", {"Then b = 3b."}),
        ("variable", "It costs 12 of 30.", {"It costs 12 of 12."}),
        ("case", "x = 7 or x = -2.", {"x = 7."}),
        ("case", "They are 2, 3 and 5.", {"They are 2, 3."}),
        ("sign", "A well-known fact", set[str]()),
        ("unit", "Each hour counts", set[str]()),
    ],
)
def test_a_slip_changes_one_thing(kind: Slip, step: str, slips: set[str]) -> None:
    found = {slip for seed in range(50) for slip in MAKERS[kind](step, random.Random(seed))}
    assert found == slips


def test_a_slip_is_drawn_by_the_seed_from_the_kinds_that_have_a_place() -> None:
    step = "The speed is 90 m / 45 s - 1 = 1 m."
    drawn = [make_slip(step, random.Random(seed)) for seed in range(40)]
    assert drawn == [make_slip(step, random.Random(seed)) for seed in range(40)]
    assert {kind for made in drawn if made for kind in [made[1]]} == {
        "number",
        "sign",
        "unit",
        "variable",
    }
    assert make_slip("We go on.", random.Random(0)) is None
