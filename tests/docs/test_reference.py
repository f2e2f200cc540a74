"""The references in the documents are what the code says."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from stepspec.settings import Settings

from . import reference


@pytest.mark.parametrize("page", reference.PAGES)
def test_the_page_is_current(page: str) -> None:
    written = (reference.DOCS / page).read_text(encoding="utf-8")
    assert written == reference.current(page), "run `python -m tests.docs.reference`"


def test_every_setting_is_there() -> None:
    page = "\n".join(reference.settings_page())
    tables = {"": Settings} | {path.partition(" ")[0]: model for path, (model, _) in reference.TABLES.items()}
    for path, model in tables.items():
        for name, field in model.model_fields.items():
            place = ".".join(part for part in (path, field.alias or name) if part)
            variable = f"STEPSPEC_{place.upper().replace('.', '__')}"
            assert name == "role" or f"| `{variable}` |" in page, place


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
