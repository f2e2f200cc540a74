"""The references in the documents are what the code says."""

from __future__ import annotations

import pytest

from stepspec.orchestrator.run_options import places
from stepspec.settings import Settings

from . import reference


@pytest.mark.parametrize("page", reference.PAGES)
def test_the_page_is_current(page: str) -> None:
    written = (reference.DOCS / page).read_text(encoding="utf-8")
    assert written == reference.current(page), "run `python -m tests.docs.reference`"


def test_every_setting_is_there() -> None:
    page = "\n".join(reference.settings_page())
    for place in places(Settings):
        # the tables of `large`, of its deadlines and of models in a pair are those of `small`
        first, *rest = place
        same = ("small", *rest) if first == "large" or "deadlines" in rest else place
        if len(place) < 3 or first != "small" or rest[0] == "deadlines":
            assert f"| `STEPSPEC_{'__'.join(same).upper()}` |" in page, place
