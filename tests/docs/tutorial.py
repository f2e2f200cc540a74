"""
Run the tutorial on the miniature pair, and paste what its commands print into the page.

``python -m tests.docs.tutorial`` starts the pair and writes ``docs/tutorial.md``. The test in
``tests/integration/test_tutorial.py`` runs the same blocks, and compares with `shape`.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from anyio.from_thread import start_blocking_portal

from stepspec.evals.testbed.servers import miniature_servers
from stepspec.servers.launcher import launch

from .blocks import ROOT, Block, blocks

PAGE = ROOT / "docs" / "tutorial.md"
SMALL = "http://localhost:8001"
LARGE = "http://localhost:8002"
SERVICE = "http://localhost:8765"
WIDTH = 100
PATIENCE = 400.0  # seconds for a command
READY = re.compile("serving|listens at")  # what a service writes when it answers


@dataclass(frozen=True, slots=True)
class Ran:
    """A *command* of the page, or a program in Python, with its *output* and its exit *code*."""

    command: str
    output: str
    code: int


@dataclass
class Session:
    """
    A shell in a *folder* that runs the blocks of the page, on servers at these base URLs instead of
    the page's.

    What is exported stays; what runs in the background is ended by `close`.
    """

    folder: Path
    small: str
    large: str
    port: int
    exports: list[str] = field(default_factory=list[str])
    background: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def run(self, block: Block) -> Iterator[Ran]:
        """Run the commands of *block* one after the other."""
        if block.language == "python":
            yield self._foreground(block.text, [sys.executable, "-c", self._here(block.text)])
            return
        for command in block.commands:
            if command.startswith("export "):
                self.exports.append(command)
                yield Ran(command, "", 0)
            elif block.mark == "run: in the background":
                yield self._begin(command)
            else:
                yield self._foreground(command, self._shell(command))

    def close(self) -> None:
        for process in self.background:
            process.send_signal(signal.SIGTERM)
            process.wait(30)

    def _foreground(self, command: str, words: Sequence[str]) -> Ran:
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return Ran(command, self._there(done.stdout), done.returncode)

    def _begin(self, command: str) -> Ran:
        log = self.folder / "service.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._shell(f"exec {self._assigned(command)}"),
                cwd=self.folder,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.background.append(process)
        ends = time.monotonic() + PATIENCE
        while (
            not READY.search(log.read_text()) and process.poll() is None and time.monotonic() < ends
        ):
            time.sleep(0.2)
        return Ran(command, self._there(log.read_text()), process.poll() or 0)

    @staticmethod
    def _assigned(command: str) -> str:
        return f"env {command}" if re.match(r"[A-Z_]+=", command) else command

    def _shell(self, command: str) -> Sequence[str]:
        return ["bash", "-euc", "\n".join([self._here(line) for line in (*self.exports, command)])]

    @property
    def _environment(self) -> dict[str, str]:
        tools = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        plain = {
            "NO_COLOR": "1",
            "COLUMNS": str(WIDTH),
            "TERM": "dumb",
            "STEPSPEC_SERVICE__PORT": str(self.port),
        }
        return {**os.environ, "PATH": tools, **plain}

    @property
    def _places(self) -> Sequence[tuple[str, str]]:
        service = f"http://127.0.0.1:{self.port}"
        return ((SMALL, self.small), (LARGE, self.large), (SERVICE, service))

    def _here(self, text: str) -> str:
        for page, here in self._places:
            text = text.replace(page, here)
        return text

    def _there(self, text: str) -> str:
        for page, here in self._places:
            text = text.replace(here, page)
        return text.replace(str(self.folder) + os.sep, "")


def runnable(text: str) -> list[Block]:
    """
    The blocks of a page that are run: those of the shell and of Python that need nothing special.
    """
    return [
        block
        for block in blocks(text)
        if block.language in ("console", "python") and not block.mark.startswith("needs")
    ]


def shape(output: str) -> set[str]:
    """
    The words of an *output* that are the same at every run: no figures, nothing that the models
    wrote, and no notes.

    Of a step only its author counts, and nothing of a verdict of `report`, which depends on the
    times. Notes are the findings of `doctor`, which begin with their outcome.
    """
    table, *_ = re.split(
        r"^(?:cannot work|costs|unknown|works)  ", _trimmed(output), maxsplit=1, flags=re.MULTILINE
    )
    words: set[str] = set()
    for line in re.sub(
        r"^ *[a-z][^:\n]*: .*(?:faster|slower|difference in time).*$", "", table, flags=re.M
    ).splitlines():
        step = re.match(r"\s*[\d.]+ s +(small|large)\b", line)
        text = step[1] if step else re.sub(r"\S*\d\S*", " ", line)
        words.update(re.findall(r"[A-Za-z]{2,}", text))
    return words


def pasted(text: str, session: Session) -> str:
    """
    *text* with the outputs of its commands as they are now. Raise `RuntimeError` if a command
    fails.
    """
    for block in runnable(text):
        ran = list(session.run(block))
        for each in ran:
            print(each.command, each.output, sep="\n", file=sys.stderr, flush=True)
            if each.code:
                raise RuntimeError(f"exit code {each.code}: {each.command}\n{each.output}")
        if block.language == "console":
            text = text.replace(
                block.text, "".join(f"$ {each.command}\n{_trimmed(each.output)}" for each in ran), 1
            )
        else:  # its output stands in a block of its own below
            end = text.index(block.text) + len(block.text)
            output = _trimmed(ran[0].output)
            before, fence, rest = text[end:].partition("```text\n")
            _, close, after = rest.partition("```")
            text = text[:end] + before + fence + output + close + after
    return text


def outputs(text: str) -> list[str]:
    """The outputs that the page shows, one for each command or program that is run."""
    found: list[str] = []
    for block in runnable(text):
        if block.language == "python":
            after = text[text.index(block.text) + len(block.text) :]
            found += re.findall(r"```text\n(.*?)```", after, re.DOTALL)[:1]
        else:
            found += [
                part.partition("\n")[2] for part in block.text.replace("\\\n", " ").split("$ ")[1:]
            ]
    return found


def _trimmed(output: str) -> str:
    """
    *output* without white space at the ends of lines, and without the bars that a terminal shows
    while it waits.
    """
    lines = [
        line.rstrip()
        for line in output.strip("\n").splitlines()
        if not re.search(r"━ +\d+/\d+", line)
    ]
    return "".join(f"{line}\n" for line in lines)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
    return port


def main() -> None:
    with TemporaryDirectory() as name, ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        served = stack.enter_context(
            portal.wrap_async_context_manager(launch(miniature_servers("paced")))
        )
        small, large = (served[role].base_url.removesuffix("/v1") for role in ("small", "large"))
        session = Session(Path(name), small, large, free_port())
        stack.callback(session.close)
        PAGE.write_text(pasted(PAGE.read_text(encoding="utf-8"), session), encoding="utf-8")


if __name__ == "__main__":
    main()
