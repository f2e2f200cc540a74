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
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import (
    Annotated,
    Any,
    NoReturn,
    TextIO,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    get_type_hints,
)

import typer
from rich.console import Console
from rich.text import Text
from typer.models import ArgumentInfo, OptionInfo

T = TypeVar("T")

log = logging.getLogger("stepspec")
stdout = Console(markup=False, emoji=False)  # what users and servers write may have square brackets
stderr = Console(stderr=True, markup=False, emoji=False)


WORDS: Mapping[Any, str] = {int: "N", float: "N", str: "TEXT", Path: "FILE"}
"""What stands for a value of each type in ``--help``."""


def _single(kind: Any) -> Any:
    """Return the type of one value of *kind*, as ``str`` of ``list[str] | None``."""
    inner = get_args(kind)
    return _single(inner[0]) if inner else kind


def _named_value(name: str, annotation: Any) -> Any:
    """
    Return *annotation* with a plain word for the value of the parameter called *name* in its help.
    """
    kind, *notes = get_args(annotation) or (annotation,)
    for place, note in enumerate(notes):
        if isinstance(note, OptionInfo | ArgumentInfo) and note.metavar is None:
            notes[place] = named = copy.copy(note)
            named.metavar = (
                name.upper() if isinstance(note, ArgumentInfo) else WORDS.get(_single(kind))
            )
    return Annotated[kind, *notes] if notes else annotation


def add_command(
    app: typer.Typer,
    command: Callable[..., None],
    examples: str | None = None,
    *,
    name: str | None = None,
) -> None:
    """
    Add *command* to *app*, called *name* if it is not called as the function is, with *examples* in
    its help.
    """
    short = _first_clause(inspect.getdoc(command) or "")
    app.command(name, epilog=verbatim(examples), short_help=short)(_with_verbosity(command))


def _first_clause(text: str) -> str:
    """The beginning of *text*, up to a mark that ends a thought: for the list of commands."""
    return re.split(r"[.;:](?:\s|$)", " ".join(text.split()), maxsplit=1)[0] + "."


Verbose: TypeAlias = Annotated[
    bool, typer.Option("--verbose", "-v", help="Log requests and retries on standard error.")
]


def _with_verbosity(command: Callable[..., None]) -> Callable[..., None]:
    """Give *command* the flag ``--verbose``, and its values plain words in the help."""

    @functools.wraps(command)
    def run(*, verbose: bool = False, **arguments: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            # from here on, Ctrl-C has something to clean up
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with logging_to_stderr():
            if verbose:
                log.setLevel(logging.DEBUG)
            try:
                command(**arguments)
            except KeyboardInterrupt:
                _interrupted()

    verbose = inspect.Parameter(
        "verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Verbose
    )
    own = [
        each.replace(annotation=_named_value(each.name, each.annotation))
        for each in parameters_of(command)
    ]
    return with_parameters(run, [*own, verbose])


def parameters_of(command: Callable[..., None]) -> list[inspect.Parameter]:
    """
    Return the parameters of *command*, each by its name only, with their annotations evaluated.
    """
    hints = get_type_hints(command, include_extras=True)
    return [
        each.replace(annotation=hints.get(each.name, each.annotation), kind=each.KEYWORD_ONLY)
        for each in inspect.signature(command).parameters.values()
    ]


def with_parameters(
    run: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """
    Let *run* have these *parameters* for typer, which reads the signature and the annotations.
    """
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
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
    Run *app*; print the project's own errors as one line, without a traceback.

    The exit code is 1 if something fails, 2 for wrong usage or settings, 130 after Ctrl-C.
    """
    if sys.stdout is None:  # it was closed: what is printed is to fail instead of being lost
        sys.stdout = io.TextIOWrapper(
            io.FileIO(os.open(os.devnull, os.O_RDONLY), "w"), write_through=True
        )
    try:
        app()
    except Exception as exc:
        from stepspec.orchestrator.errors import ConfigurationError, StepspecError

        unwritable = isinstance(exc, OSError) and exc.errno in UNWRITABLE
        if not isinstance(exc, StepspecError) and not unwritable:
            raise
        _print_error(_unwritable(exc) if isinstance(exc, OSError) else str(exc))
        sys.exit(2 if isinstance(exc, ConfigurationError) else 1)


def _unwritable(exc: OSError) -> str:
    name = exc.filename or "standard output, or a file,"
    return f"{name} cannot be written: {exc.strerror}"


def wait(work: Coroutine[Any, Any, T], *, resumable: bool = False) -> T:
    """
    Run *work*; Ctrl-C cancels it, with every request and child process, prints a message, and exits
    with 130.
    """
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        _interrupted(
            "interrupted: the same command goes on from here" if resumable else INTERRUPTED
        )


INTERRUPTED = "interrupted"


def _interrupted(message: str = INTERRUPTED) -> NoReturn:
    """Print the *message*, and exit with 130."""
    _stderr().print(message, style="yellow")
    raise typer.Exit(130) from None


UNWRITABLE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EBADF}
)
"""What a disk says that is full, or broken, and a stream that is closed."""
STDOUT = Path("-")


def _stderr() -> Console:
    """
    Return a console on standard error; rich itself would end the program where it cannot be
    written.
    """
    from stepspec.orchestrator.errors import GuardedStream

    return Console(file=cast("TextIO", GuardedStream()))


def _print_error(message: str) -> None:
    _stderr().print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


class _Stderr(logging.Handler):
    """
    Prints records in a line each, also while a progress bar is shown.

    *waiting* is the logger of what stepspec waits for.
    """

    def __init__(self, waiting: str) -> None:
        super().__init__()
        self.waiting = waiting

    def emit(self, record: logging.LogRecord) -> None:
        noted = record.levelno >= logging.WARNING or record.name == self.waiting
        style = "yellow" if noted else "dim"
        _stderr().print(Text(self.format(record), style), soft_wrap=True)


@contextmanager
def logging_to_stderr() -> Generator[None]:
    """
    Print the project's warnings, and what it waits for, on standard error; ``--verbose`` prints
    more.
    """
    from stepspec.orchestrator.errors import WAITING

    handler = _Stderr(WAITING)
    waiting = logging.getLogger(WAITING)
    levels = log.level, waiting.level
    waiting.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        for each, level in zip((log, waiting), levels, strict=True):
            each.setLevel(level)
