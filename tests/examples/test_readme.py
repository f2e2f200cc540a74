"""The list of examples is complete, and the examples are as short as their readers want them."""

from __future__ import annotations

import re
import subprocess

import pytest

from .running import EXAMPLES

LONGEST = 100  # lines
TRACKED = subprocess.run(
    ["git", "ls-files", "."], cwd=EXAMPLES, capture_output=True, text=True, check=True
).stdout
PROGRAMS = sorted(name for name in TRACKED.split() if name.endswith(".py") and "/" not in name)


def test_every_example_is_listed() -> None:
    listed = re.findall(
        r"^\| \[[^]]+\]\(([^)/]+)/?[^)]*\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE
    )
    assert sorted(listed) == sorted(
        {name.split("/")[0] for name in TRACKED.split()} - {"README.md"}
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_is_short_and_says_how_to_run_it(name: str) -> None:
    lines = (EXAMPLES / name).read_text().splitlines()
    assert len(lines) <= LONGEST
    assert lines[0] == '"""'
    assert any(
        f"examples/{name}" in line or f"examples.{name.removesuffix('.py')}:app" in line
        for line in lines[:12]
    )
