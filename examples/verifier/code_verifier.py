"""
A verifier of answers that are Python programs: it runs each with the problem's own tests, in a
sandboxed process.

    export STEPSPEC_SMALL=http://localhost:8001/v1 STEPSPEC_LARGE=http://localhost:8002/v1
    python examples/verifier/code_verifier.py

README.md beside this file says what the sandbox protects against, and what it does not.
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import IO, TypedDict

from stepspec import Candidate, Rating, solve

PROBLEM = """Write a Python function `double(n)` that returns twice its argument. It has to pass these tests:

```python
assert double(2) == 4
assert double(-1) == -2
```

Answer with the function in one block of Python."""
BLOCK = re.compile(r"```(?:python|py)?\n(.*?)```", re.DOTALL)
MEGABYTE = 2**20
NOBODY = 65534
PYTHON = (os.path.realpath(sys.executable), "-I", "-S", "-c")
NAMESPACES = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child=KILL")

# Runs in the child: it gives up what it could do harm with, and only then reads the program.
CHILD = """
import os, resource, sys
for name, most in {limits!r}.items():
    resource.setrlimit(getattr(resource, name), (most, most))
program = sys.stdin.read()
exec(compile(program, "answer", "exec"), {{"__name__": "__main__"}})
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """
    What one program may use. *seconds* are of the clock on the wall, *output* and *shown* in bytes.
    """

    seconds: float = 5.0
    cpu: int = 10
    memory: int = 512 * MEGABYTE
    output: int = MEGABYTE
    processes: int = 16
    files: int = 32
    shown: int = 1000

    @property
    def rlimits(self) -> Mapping[str, int]:
        return {
            "RLIMIT_CPU": self.cpu,
            "RLIMIT_AS": self.memory,
            "RLIMIT_FSIZE": self.output,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_NOFILE": self.files,
            "RLIMIT_CORE": 0,
        }


@dataclass(frozen=True, slots=True)
class Ended:
    """
    How a program ended: its exit *code*, negative for a signal; None if the time was up. *output*
    is its end.
    """

    code: int | None
    output: str


class User(TypedDict, total=False):
    """The user of a process, as `subprocess` takes it."""

    user: int
    group: int
    extra_groups: list[int]


def unprivileged() -> User:
    """
    The user of the programs: nobody if this process is root's, for whom limits of processes do not
    hold.
    """
    return {} if os.getuid() else {"user": NOBODY, "group": NOBODY, "extra_groups": []}


@cache
def namespaces() -> tuple[str, ...]:
    """
    The command that takes the network away, and with the program ends all its children; nothing if
    it cannot.
    """
    if shutil.which("unshare"):
        tried = subprocess.run(
            (*NAMESPACES, "true"), capture_output=True, timeout=60, **unprivileged()
        )
        if tried.returncode == 0:
            return NAMESPACES
    print(
        "code_verifier: no namespaces here: programs can use the NETWORK, and may outlive the"
        " check",
        file=sys.stderr,
    )
    return ()


def run(program: str, limits: Limits = Limits()) -> Ended:
    """Run *program* in a process of its own, within *limits*."""
    child = CHILD.format(limits=dict(limits.rlimits))
    with (
        tempfile.TemporaryDirectory(prefix="answer-") as folder,
        tempfile.TemporaryFile() as output,
    ):
        if not os.getuid():
            os.chown(folder, NOBODY, NOBODY)
        process = subprocess.Popen(
            (*namespaces(), *PYTHON, child),
            stdin=subprocess.PIPE,
            stdout=output,  # a file: the limit of a file's size is that of the output too
            stderr=output,
            cwd=folder,
            env={},
            start_new_session=True,
            **unprivileged(),
        )
        code: int | None = None
        try:
            process.communicate(program.encode(errors="replace"), timeout=limits.seconds)
            code = process.returncode
        except subprocess.TimeoutExpired:
            pass
        finally:
            kill(process)
        return Ended(code, end_of(output, limits.shown))


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole process group, also what the program left behind, and wait for the process."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def end_of(output: IO[bytes], most: int) -> str:
    """Return the last *most* bytes of the file *output* as text."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - most))
    return output.read().decode(errors="replace").strip()


def run_tests(candidate: Candidate) -> Rating:
    """
    Rate an answer 1 if its last block of Python passes the tests in the problem, and else 0 with
    the reason.
    """
    tests = BLOCK.findall(candidate.question)
    programs = BLOCK.findall(candidate.text)
    if not tests:
        raise ValueError("the problem has no block of tests")  # the verifier's fallback decides
    if not programs:
        return Rating(0.0, "The answer has no block of Python.")
    # A program that ends before the tests, even with success, has not written it.
    passed = secrets.token_hex()
    ended = run(f"{programs[-1]}\n{tests[-1]}\nprint({passed!r})\n")
    if ended.code == 0 and ended.output.endswith(passed):
        return Rating(1.0)
    if ended.code is None:
        return Rating(0.0, "The program did not end in time.")
    reason = ended.output.replace(passed, "") or "it wrote nothing"
    return Rating(0.0, f"The program failed (exit code {ended.code}):\n{reason}")


if __name__ == "__main__":
    solution = solve(" ".join(sys.argv[1:]) or PROBLEM, critic=run_tests)
    print(solution.text)
    print(
        {True: "passed its tests", False: f"failed: {solution.rejection}", None: "not tested"}[
            solution.verified
        ]
    )
