"""The references in the documents are what the code says."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from stepspec.setting_sources import places
from stepspec.settings import Settings

from . import reference


@pytest.mark.parametrize("page", reference.PAGES)
def test_the_page_is_current(page: str) -> None:
    written = (reference.DOCS / page).read_text(encoding="utf-8")
    assert written == reference.current(page), "run `python -m tests.docs.reference`"


def test_every_setting_is_there() -> None:
    page = "\n".join(reference.settings_page())
    for place in places(Settings, 3):
        first, *rest = place  # the tables of `large`, of its deadlines and of models in a pair are those of `small`
        same = ("small", *rest) if first == "large" or "deadlines" in rest else place
        if len(place) < 3 or first != "small" or rest[0] == "deadlines":
            assert f"| `STEPSPEC_{'__'.join(same).upper()}` |" in page, place


def test_a_field_without_a_docstring_is_an_error() -> None:
    class Bare(BaseModel):
        """A model of which one field has no docstring."""

        described: int = 0
        """A number."""
        bare: int = 0

    assert reference.field_docstrings(Bare) == {"described": "A number."}
    with pytest.raises(ValueError, match=r"Bare\.bare has no docstring"):
        list(reference.table(Bare, "bare", {}, {}))


def test_flags_belong_to_the_settings_that_they_set() -> None:
    flags = reference.flags()
    assert flags["small"] == ["`--small`"]
    assert flags["budget.seconds"] == ["`--max-seconds`"]
    assert flags["service.max_seconds"] == ["`--max-seconds`"]
    assert flags["service.keys"] == ["`--key`"]
    assert flags["policy"][0].startswith("`--policy`")
    assert flags["sampling.temperature"] == ["`--temperature`"]
