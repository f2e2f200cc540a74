"""The report as text: small, alone, and without anything that its own policy would refuse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepspec.evals.report.formats import to_html
from stepspec.evals.report.prices import Prices
from stepspec.evals.report.run_folder import merge_folders, read_folder
from stepspec.evals.report.section import build_section

from .made import RECORDED, make_section


@pytest.fixture
def document(tmp_path: Path) -> str:
    (run,) = merge_folders([read_folder(RECORDED)])
    recorded = build_section(run, Prices())
    case = recorded.cases.slowest[0]
    links = {(case.number, case.arm): "traces/one.html"}
    return to_html([(recorded, links), (make_section(tmp_path), {})], "Made for a test")


def test_the_document_needs_nothing_else(document: str) -> None:
    assert len(document.encode()) < 250_000
    assert not re.search(r'\b(src|srcset)="|url\((?!"?#)|@import', document)
    assert set(re.findall(r'href="(?!#|data:)([^"]+)"', document)) == {"traces/one.html"}


def test_the_document_breaks_no_rule_of_its_policy(document: str) -> None:
    assert "default-src 'none'" in document
    assert "unsafe" not in document
    assert not re.search(r'\son\w+="|\sstyle=', document)
    assert "{{" not in document


def test_words_stand_to_the_left_and_numbers_to_the_right(document: str) -> None:
    (row,) = re.findall(r'<tr><th scope="row" class="prose">SpecReason</th><td>3 of 4</td>.*?</tr>', document)
    assert row.count("prose") == 1
    assert '<td class="prose">SpecReason</td><td class="prose">wrong</td><td>4.00</td>' in document


def test_every_figure_and_table_states_its_subject(document: str) -> None:
    cards = re.findall(r'class="card(?: all-columns)?">', document)
    stamps = re.findall(r'<p class="stamp">[^<]*n = \d+[^<]*\d{4}-\d\d-\d\d</p>', document)
    assert len(stamps) == len(cards) - 2  # all but the two cards of where the figures come from
    assert "The miniature pair" in document
