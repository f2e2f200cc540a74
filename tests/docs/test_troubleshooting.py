"""The page on troubleshooting has every row of the doctor's table."""

from __future__ import annotations

import re

from stepspec.servers.doctor.report import table_cells

from ..servers.doctor.test_doctor import GOOD
from .reference import DOCS


def test_every_row_of_the_doctor_is_explained() -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| row \|.*\n\|-.*\n((?:\|.*\n)*)", page, re.MULTILINE)
    rows = {name.strip() for line in table.splitlines() for name in line.split("|")[1].split(",")}
    assert rows == {*table_cells(GOOD), "one vocabulary"}
