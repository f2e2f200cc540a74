"""
Run a command: its flags and help, its log, its errors as one line, and Ctrl-C.

Nothing of stepspec is imported until a command runs, so that ``stepspec --version`` is quick.
"""

from __future__ import annotations

import asyncio
import copy
import errno
import functools
import inspect
import io
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO, TypeAlias, TypeVar, cast, get_args

import typer
from rich.console import Console
from rich.text import Text
from typer import Option
from typer.models import OptionInfo

T = TypeVar("T")

log = logging.getLogger("stepspec")
stdout = Console(
    markup=False, emoji=False, highlight=False
)  # what users and servers write may have square brackets
stderr = Console(stderr=True, markup=False, emoji=False, highlight=False)


VALUE_WORDS: Mapping[str, str] = {"int": "N", "float": "N", "str": "TEXT", "Path": "FILE"}
"""The word for a value in ``--help``, by the name of its type."""


def _with_value_word(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return *parameter* with a plain word for its value in ``--help``, if it is an option."""
    kind, *notes = get_args(parameter.annotation) or (None,)
    if not (notes and isinstance(notes[0], OptionInfo)) or notes[0].metavar is not None:
        return parameter
    named = copy.copy(notes[0])
    words = re.findall(r"\w+", str(kind).replace("pathlib.", ""))
    named.metavar = next((VALUE_WORDS[word] for word in words if word in VALUE_WORDS), None)
    return parameter.replace(annotation=Annotated[kind, named])


def add_command(
    app: typer.Typer,
    command: Callable[..., None],
    examples: str | None = None,
    *,
    name: str | None = None,
) -> None:
    """Add *command* to *app*, with *examples* in its help. It is called *name*, or its own name."""
    short = _first_clause(inspect.getdoc(command) or "")
    app.command(
        name,
        epilog=verbatim(examples),
        short_help=short,
    )(_with_verbosity(command))


def _first_clause(text: str) -> str:
    """Return the beginning of *text*, for the list of commands."""
    return re.split(r"[.;:](?:\s|$)", " ".join(text.split()), maxsplit=1)[0] + "."


Verbose: TypeAlias = Annotated[
    bool,
    Option(
        "--verbose",
        "-v",
        help="Log requests and retries on standard error.",
    ),
]


def _with_verbosity(command: Callable[..., None]) -> Callable[..., None]:
    """Give *command* the flag ``--verbose``."""

    @functools.wraps(command)
    def run(*, verbose: bool | None, **arguments: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            # From here on, Ctrl-C has something to clean up.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with logging_to_stderr():
            if verbose:
                log.setLevel(logging.DEBUG)
            try:
                command(**arguments)
            except KeyboardInterrupt:
                _interrupted()

    return with_parameters(run, command, {"verbose": Verbose})


def with_parameters(
    run: Callable[..., None],
    command: Callable[..., None],
    added: Mapping[str, Any],
) -> Callable[..., None]:
    """
    Return *run*, which calls *command*, with the parameters of *command* and further ones.

    *added* has the annotations of the further ones, by name. Typer reads the signature. A parameter
    without a flag on the command line is None.
    """
    signature = inspect.signature(command, eval_str=True)
    further = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=annotation,
        )
        for name, annotation in added.items()
    ]
    parameters = [
        *map(_with_value_word, signature.parameters.values()),
        *map(_with_value_word, further),
    ]
    vars(run)["__signature__"] = signature.replace(parameters=parameters)
    return run


def verbatim(examples: str | None) -> str | None:
    """Mark the paragraphs of *examples*, so that help shows their lines as they are."""
    # Click wraps no paragraph that begins with \b.
    return examples and examples.replace("\n\n", "\n\n\b\n")


def new_app(**more: Any) -> typer.Typer:
    """Return an application whose help is plain text, with the errors of `run`."""
    return typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **more,
    )


def script(command: Callable[..., None], examples: str | None = None) -> None:
    """Run *command* with the words of the command line, with *examples* in its help."""
    app = new_app(add_completion=False)
    add_command(app, command, examples)
    run(app)


def run(app: Callable[[], object]) -> None:
    """
    Run *app*. Print the project's own errors as one line, without a traceback.

    The exit code is 1 if something fails, 2 for wrong usage or settings, 130 after Ctrl-C.
    """
    if sys.stdout is None:  # It was closed. Printing has to fail instead of losing the text.
        unwritable = io.FileIO(os.open(os.devnull, os.O_RDONLY), "w")
        sys.stdout = io.TextIOWrapper(unwritable, write_through=True)
    try:
        app()
    except Exception as exc:
        from stepspec.orchestrator.errors import ConfigurationError, StepspecError

        message = str(exc)
        is_wrong_usage = isinstance(exc, ConfigurationError)
        if isinstance(exc, OSError) and exc.errno in UNREACHABLE:
            is_wrong_usage = True
            message = f"{exc.filename}: {exc.strerror}; name another file"
        elif isinstance(exc, OSError) and exc.errno in UNWRITABLE:
            name = exc.filename or "standard output, or a file,"
            message = f"{name} cannot be written: {exc.strerror}"
        elif not isinstance(exc, StepspecError):
            raise
        _stderr().print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
        sys.exit(2 if is_wrong_usage else 1)


def wait(work: Coroutine[Any, Any, T], *, resumable: bool = False) -> T:
    """
    Run *work*. Ctrl-C cancels it, with every request and child process, and exits with 130.

    If the work is *resumable*, the printed message says so.
    """
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        if resumable:
            _interrupted("interrupted: the same command goes on from here")
        _interrupted()


def _interrupted(message: str = "interrupted") -> NoReturn:
    """Print the *message*, and exit with 130."""
    _stderr().print(message, style="yellow")
    raise typer.Exit(130) from None


UNWRITABLE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EBADF}
)
"""The errors of a full or broken disk, and of a closed stream."""
UNREACHABLE = frozenset({errno.ENAMETOOLONG, errno.EACCES, errno.EPERM})
"""The errors of a name that no file can have, and of a file of somebody else."""
STDOUT = Path("-")


def _stderr() -> Console:
    """
    Return a console on standard error.

    It ignores that standard error cannot be written. A console of rich would end the program.
    """
    from stepspec.orchestrator.errors import GuardedStream

    return Console(file=cast("TextIO", GuardedStream()))


@contextmanager
def logging_to_stderr() -> Generator[None]:
    """Print warnings, and the servers that are waited for, on standard error."""
    from stepspec.orchestrator.errors import WAITING, GuardedStream

    handler = logging.StreamHandler(GuardedStream())
    waiting = logging.getLogger(WAITING)
    level = log.level
    waiting_level = waiting.level
    waiting.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        waiting.setLevel(waiting_level)
