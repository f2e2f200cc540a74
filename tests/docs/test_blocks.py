"""
No block of code in the documents is left unchecked.

Commands of a shell: each command of stepspec is parsed as the program parses it, also where it is
not run. A block that is not run says above it what it ``needs``; the others are run by
``tests/docs/test_running.py``. Python runs against a stand-in, unless its mark says that it is part
of a program.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from _pytest.mark.structures import ParameterSet

from stepspec.cli import app

from ..stand_in import StandIn
from .blocks import DOCUMENTS, ROOT, SHELLS, Block, blocks
from .tutorial import LARGE, PAGE, SMALL, runnable

NEEDS = {"gpu", "the miniature pair", "docker", "kubernetes", "ray", "an installation", "a client"}
"""What a block may need that a test does not have."""

PART = "part of a program"  # the mark of Python that does not run by itself
CONTROL = {"|", "&", ";", "&&", "||", "(", ")"}
REDIRECTIONS = {"<", ">", ">>"}


def every_block(*languages: str) -> list[ParameterSet]:
    """Each block of the documents in one of these *languages*, as the parameters of a test."""
    return [
        pytest.param(document, block, id=f"{document.name}:{block.line}")
        for document in DOCUMENTS
        for block in blocks(document.read_text(encoding="utf-8"))
        if block.language in languages
    ]


def simple_commands(line: str) -> Iterator[list[str]]:
    """
    The commands of a *line*, but those that only filter what another one prints, without
    redirections.
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    filters = redirected = False
    for word in (*lexer, ";"):
        if word in CONTROL:
            if words and not filters:
                yield words
            words = []
            filters = word == "|"
        elif word in REDIRECTIONS:
            redirected = True
        elif redirected:
            redirected = False
        else:
            words.append(word)


def check(line: str) -> str | None:
    """
    What is wrong with a command *line*; None if nothing is. Raise `LookupError` for a program that
    is not ours.
    """
    for words in simple_commands(line):
        rest = [
            word for word in words if not re.match(r"[A-Z][A-Z0-9_]*=", word) and word != "export"
        ]
        if rest and (wrong := _wrong_command(rest)):
            return wrong
    return None


def _wrong_command(words: Sequence[str]) -> str | None:
    program, *arguments = words
    match Path(program).name, arguments:
        case "stepspec", _:
            return _refused(arguments)
        case "python", ["-m", module, *_] if module.startswith(("stepspec", "lab", "tests")):
            return (
                f"there is no module {module}" if importlib.util.find_spec(module) is None else None
            )
        case "make", [target, *_]:
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            return (
                None
                if re.search(rf"^{target}:", makefile, re.MULTILINE)
                else f"make has no target {target}"
            )
        case _ if program.startswith("$") or program == "exit":  # $EDITOR and the like
            return None
        case _:
            raise LookupError(program)


def _refused(arguments: Sequence[str]) -> str | None:
    """What the program says of these *arguments*, if it does not take them. Nothing is run."""
    command: Any = typer.main.get_command(app)
    left: list[str] = list(arguments)
    while hasattr(command, "commands") and left and not left[0].startswith("-"):
        name = left.pop(0)
        if name not in command.commands:
            return f"there is no command {name}"
        command = command.commands[name]
    # the servers, and what else was said before
    if left[-1:] == ["..."] and not left[-2:-1][0].startswith("-"):
        left.pop()
    try:
        command.make_context("stepspec", left)
    except (
        Exception
    ) as exc:  # typer has its own copies of click's classes, which it does not export
        if type(exc).__name__ in ("Exit", "NoArgsIsHelpError"):  # as after --help
            return None
        return str(getattr(exc, "format_message", exc.__str__)())
    return None


@pytest.mark.parametrize(("document", "block"), every_block(*SHELLS))
def test_commands_are_what_the_program_takes(document: Path, block: Block) -> None:
    needs = (
        {need.strip() for need in block.mark.removeprefix("needs: ").split(",")}
        if block.mark
        else set[str]()
    )
    runs = document == PAGE and block in runnable(document.read_text(encoding="utf-8"))
    assert needs <= NEEDS or runs, f"unknown mark: {block.mark}"
    assert block.commands, "no command: write each after a prompt, `$ `"
    for line in block.commands:
        try:
            wrong = check(line)
        except LookupError as exc:
            wrong = (
                None
                if needs or runs
                else f"no test runs {exc}: write <!-- needs: ... --> above the block"
            )
        assert wrong is None, f"{line}: {wrong}"


@pytest.fixture
async def servers() -> AsyncGenerator[tuple[str, str]]:
    async with (
        StandIn(names=("small",), steps=3).listening() as small,
        StandIn(names=("large",), steps=3).listening() as large,
    ):
        yield small.removesuffix("/v1"), large.removesuffix("/v1")


@pytest.mark.parametrize(("document", "block"), every_block("python"))
async def test_python_runs(
    document: Path, block: Block, servers: tuple[str, str], tmp_path: Path
) -> None:
    compile(block.text, f"{document.name}:{block.line}", "exec")
    if document == PAGE or block.mark == PART:
        return
    assert not block.mark, f"unknown mark: {block.mark}"
    text = block.text.replace(SMALL, servers[0]).replace(LARGE, servers[1])
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        text,
        cwd=tmp_path,
        env=os.environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, output.decode()


def test_wrong_commands_are_found() -> None:
    assert (
        check("stepspec solve 'What is 1 + 1?' --small http://a --large http://b | jq .answer")
        is None
    )
    assert "No such option" in str(check("stepspec solve x --tresholds 7"))
    assert check("stepspec answer x") == "there is no command answer"
    assert "Missing argument" in str(check("stepspec eval"))
    assert check("STEPSPEC_SMALL__URL=x stepspec serve # all") is None
    assert check("make demo") is None
    assert check("make demon") == "make has no target demon"
    assert (
        check("python -m stepspec.evals.nothing --x") == "there is no module stepspec.evals.nothing"
    )
    with pytest.raises(LookupError, match="docker"):
        check("docker run x")


def test_every_block_of_a_shell_is_read() -> None:
    shell = (
        "<!-- needs: gpu -->\n\n```console\n$ vllm serve \\\n    x\nready\n$ stepspec serve\n```\n"
    )
    text = f"{shell}\n```python\nx = 1\n```\n"
    first, second = blocks(text)
    assert (first.mark, first.line, list(first.commands)) == (
        "needs: gpu",
        3,
        ["vllm serve      x", "stepspec serve"],
    )
    assert (second.language, second.text, second.mark) == ("python", "x = 1\n", "")
