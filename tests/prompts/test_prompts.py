"""Prompts are files: every prompt can be loaded, is quoted by its hash, and names its source."""

from hashlib import sha256
from importlib.resources import files

import pytest

from stepspec import prompts

FILES = {file.name: file for file in files(prompts).iterdir() if file.name.endswith(".txt")}


@pytest.mark.parametrize("name", [name.removesuffix(".txt") for name in FILES])
def test_every_prompt_has_a_text_without_loose_ends_and_the_hash_of_its_file(name: str) -> None:
    prompt = prompts.load(name)
    source = FILES[f"{name}.txt"].read_bytes()
    assert prompt.text
    assert prompt.text == prompt.text.strip()
    assert not prompt.opening.endswith("\n")
    assert prompts.SEPARATOR not in prompt.text + prompt.opening
    assert prompt.sha256 == sha256(source).hexdigest()
    assert (
        source.decode()
        == prompt.text + (prompts.SEPARATOR + prompt.opening if prompt.opening else "") + "\n"
    )


@pytest.mark.parametrize("name", FILES)
def test_every_prompt_names_its_source(name: str) -> None:
    assert name.removesuffix(".txt") in files(prompts).joinpath("README.md").read_text(
        encoding="utf-8"
    )


def test_a_line_of_dashes_parts_the_text_from_the_opening_of_the_reply() -> None:
    grade = prompts.load("specreason.grade")
    assert grade.text.endswith("Reply with one digit.")
    assert grade.opening == r"The grade is \boxed{"
    assert prompts.load("reflective.reflect").opening == ""


def test_an_unknown_prompt_is_not_found() -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        prompts.load("nowhere")
