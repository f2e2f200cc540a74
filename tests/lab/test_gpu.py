"""The campaign for a GPU: parcels are cut and put together again; all of it runs, here with tiny models."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lab.gpu import dry_run, pack
from lab.gpu.kit.receive import receive
from lab.gpu.kit.targets import GPU, TARGETS
from lab.gpu.results import estimate_tables, rows_of, timing_tables


def test_a_file_arrives_whole_from_any_order_of_parcels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "PARCEL", 10)
    monkeypatch.setattr(pack, "RESERVED", 4)
    files = {"a": bytes(range(13)), "b": bytes(range(50, 75))}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    sizes: dict[int, int] = {}
    for parcel, file, offset, length in pack.cut([tmp_path / name for name in files]):
        folder = tmp_path / f"{parcel:02}"
        folder.mkdir(exist_ok=True)
        (folder / f"{file.name}@{offset:012}").write_bytes(file.read_bytes()[offset : offset + length])
        sizes[parcel] = sizes.get(parcel, 0) + length
    assert list(sizes.values()) == [6, 10, 10, 10, 2]
    root = tmp_path / "root"
    (root / "kit").mkdir(parents=True)
    (root / "kit" / "manifest.json").write_text(json.dumps({name: len(content) for name, content in files.items()}))
    complete = [receive(tmp_path / f"{number:02}", root) for number in (5, 1, 3, 3, 2, 4)]
    assert complete == [[], [], [], [], ["a"], ["b"]]  # parcel 3, sent twice, counts once
    for name, content in files.items():
        assert (root / "in" / name).read_bytes() == content
        assert (root / "in" / f"{name}.ready").exists()


def test_names_of_cases_and_methods_are_those_of_their_files() -> None:
    for target in TARGETS.values():
        for tables in (target.cases, target.first, target.methods, target.last):
            names = [(table["name"], table.get("temperature")) for table in tables]
            assert len(names) == len(set(names))
        assert {method["like"] for method in target.methods if "like" in method} <= {m["name"] for m in target.methods}
    assert {server.port for server in GPU.scripted}.isdisjoint(server.port for server in GPU.real)  # both run at once


@pytest.mark.servers
@pytest.mark.timeout(400)
def test_a_dry_run_brings_back_every_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dry_run.main(tmp_path)
    results = tmp_path / "k" / "results"
    log = (tmp_path / "out" / "campaign.log").read_text()
    assert (tmp_path / "out" / "results.tar.gz").stat().st_size > 1000
    cases = rows_of(results / "timings" / "timings.jsonl")
    assert [case["case"] for case in cases] == [case["name"] for case in TARGETS["cpu"].cases], log
    written = {case["large"] + case.get("small", 0) for case in cases}
    assert max(written) - min(written) <= 1  # the same chain each time; its last token may not be counted
    assert next(case for case in cases if case["case"] == "accept68")["accepted"] > 0
    for method in TARGETS["cpu"].methods:
        folder = results / ("answers-0.6" if method["temperature"] else "answers")
        rows = rows_of(folder / f"{method['name']}.jsonl")
        assert [row.get("error") for row in rows] == [None, None], method["name"]
    shares = [
        sum(row[key] for row in rows_of(results / "answers-0.6" / "reading.jsonl")) for key in ("accepted", "drafts")
    ]
    rate = float((results / "answers-0.6" / "random-like-reading.rate").read_text())
    assert rate == round(shares[0] / shares[1], 4) > 0
    first = rows_of(results / "timings-first" / "timings.jsonl")
    assert sorted((row["case"], row["position"]) for row in first) == sorted(
        (method["name"], position) for method in TARGETS["cpu"].first[0]["turns"] for position in (0, 1)
    )
    capsys.readouterr()
    timing_tables(results)
    estimate_tables(results)
    printed = capsys.readouterr().out
    assert re.search(r"\| plain \| [\d.]+ \| 1.00 \[1.00, 1.00\], n 1 \| 1.00 \[1.00, 1.00\], n 1 \|", printed), printed
    assert re.search(r"\| reading \| \d \| \d+% of \d+ \| [^|]+ \| [^|]+ \| 2 \| [+-]\d+% \|", printed), printed
    assert "done" in log
    assert "died" not in log
