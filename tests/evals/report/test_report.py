"""
``stepspec report`` on a recorded run, and on other folders; the page as text, which breaks no rule
of its policy.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import orjson
import pytest

from stepspec.evals.report.formats import to_html
from stepspec.evals.report.run_folder import read_folder
from stepspec.evals.report.section import build_section
from stepspec.service.watch.page import html

from ...test_cli import call
from .made import RECORDED, folder, make_section


@pytest.fixture(autouse=True)
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["stepspec", "report", "run"])
    return Path(shutil.copytree(RECORDED, tmp_path / "run"))


def test_a_report_is_written_into_the_run_folder(
    recorded: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("report", "run") == 0
    printed = capfd.readouterr()
    stamp, *sentences = printed.out.splitlines()
    assert stamp.startswith("arithmetic, n = 12; ")
    assert [line.split(":")[0] for line in sentences] == [
        "bild",
        "specreason",
    ]
    assert (
        sentences[0] == "bild: 1.9x faster [1.6, 2.2], accuracy +0.0 points [-24.3, +24.3]: "
        "too few problems to exclude a loss above 2 points."
    )
    assert [line.split("/")[-1] for line in printed.err.splitlines()] == [
        "report.json",
        "report.html",
    ]
    found = orjson.loads((recorded / "report.json").read_bytes())
    (section,) = found["sections"]
    assert "Made by stepspec" in found["made"]
    assert section["about"].startswith("arithmetic, n = ")
    assert section["sessions"][0]["command"][:3] == ["stepspec", "eval", "arithmetic"]
    summary = orjson.loads((recorded / "summary.json").read_bytes())
    assert section["arms"] == summary["arms"]


def test_every_format_begins_with_the_verdict(recorded: Path) -> None:
    assert call("report", "run", "--max-loss", "0.3") == 0
    (section,) = orjson.loads((recorded / "report.json").read_bytes())["sections"]
    assert section["max_loss"] == 0.3
    assert list(section["verdicts"]) == ["bild", "specreason"]
    assert section["verdicts"]["bild"].endswith("no loss above 24.3 points at 95%")
    written = (recorded / "report.html").read_text(encoding="utf-8")
    begins = ("<strong>bild</strong>: 1.9x", "<strong>specreason</strong>: ", 'class="notice"')
    places = [written.index(words) for words in begins]
    assert places == sorted(places)


@pytest.mark.parametrize("share", ["0", "1", "2", "-0.1", "nan"])
def test_a_loss_that_is_no_share_is_refused(share: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("report", "run", "--max-loss", share) == 2
    assert "a share above 0 and below 1" in " ".join(capfd.readouterr().err.split())


def test_every_link_leads_to_the_page_of_a_trace(recorded: Path) -> None:
    assert call("report", "run", "--output", "elsewhere") == 0
    document = Path("elsewhere/report.html").read_text(encoding="utf-8")
    linked = set(re.findall(r'href="(traces/[^"]+)"', document))
    assert linked
    assert linked == {f"traces/{path.name}" for path in Path("elsewhere/traces").iterdir()}
    for link in linked:
        name = Path(link).stem.removeprefix("1-")
        trace = recorded / "traces" / f"{name}.jsonl"
        assert (Path("elsewhere") / link).read_text(encoding="utf-8") == html(trace.read_bytes())


def test_other_measurements_get_sections_of_their_own(tmp_path: Path) -> None:
    folder(tmp_path / "sums")
    assert call("report", "run", "sums") == 0
    found = orjson.loads(Path("report/report.json").read_bytes())
    assert [section["benchmark"] for section in found["sections"]] == ["arithmetic", "sums"]
    assert all(path.name.startswith("1-") for path in Path("report/traces").iterdir())
    written = Path("report/report.html").read_text(encoding="utf-8")
    names = re.findall(r' id="([^"]+)"', written)
    assert len(names) == len(set(names))


def test_a_folder_without_a_report_is_an_error_of_one_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert call("report", "nowhere") == 2
    assert "expected a folder of `stepspec eval`" in " ".join(capfd.readouterr().err.split())
    Path("file").write_text("")
    assert call("report", "run", "--output", "file") == 2
    assert "file" in capfd.readouterr().err


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = read_folder(RECORDED)
    recorded = build_section(run)
    case = recorded.cases["slowest"][0]
    links = {(case.number, case.sample.arm): "traces/one.html"}
    return to_html(
        [(recorded, links), (make_section(tmp_path_factory.mktemp("made")), {})], "Made for a test"
    )


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
    (row,) = re.findall(
        r'<tr><th scope="row" class="prose">SpecReason</th><td>4</td>.*?</tr>', document
    )
    assert row.count("prose") == 1
    case = r'<td class="prose">SpecReason</td>\s*<td class="prose">wrong</td>\s*<td>4.00</td>'
    assert re.search(case, document)


def test_every_figure_and_table_states_its_subject(document: str) -> None:
    cards = re.findall(r'class="card(?: all-columns)?">', document)
    stamps = re.findall(r'<p class="stamp">[^<]*n = \d+[^<]*\d{4}-\d\d-\d\d</p>', document)
    assert len(stamps) == len(cards) - 2  # all but the two cards of where the figures come from
    assert "The miniature pair" in document
