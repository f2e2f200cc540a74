"""The campaign for a GPU: parcels are cut and put together again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.gpu import pack
from lab.gpu.kit.receive import receive
from lab.gpu.kit.targets import GPU, TARGETS


def test_a_file_arrives_whole_from_any_order_of_parcels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "PARCEL", 10)
    monkeypatch.setattr(pack, "RESERVED", 4)
    files = {"a": bytes(range(13)), "b": bytes(range(50, 75))}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    sizes: dict[int, int] = {}
    for parcel, file, offset, length in pack.cut([tmp_path / name for name in files]):
        folder = tmp_path / f"{parcel:02}"
        folder.mkdir(exist_ok=True)
        (folder / f"{file.name}@{offset:012}").write_bytes(
            file.read_bytes()[offset : offset + length]
        )
        sizes[parcel] = sizes.get(parcel, 0) + length
    assert list(sizes.values()) == [6, 10, 10, 10, 2]
    root = tmp_path / "root"
    (root / "kit").mkdir(parents=True)
    (root / "kit" / "manifest.json").write_text(
        json.dumps({name: len(content) for name, content in files.items()})
    )
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
        assert {method["like"] for method in target.methods if "like" in method} <= {
            m["name"] for m in target.methods
        }
    # both run at once
    assert {server.port for server in GPU.scripted}.isdisjoint(server.port for server in GPU.real)
