"""
Shared by the command-line programs: run a command, log, refuse wrong options early, show progress.
"""

from __future__ import annotations

import asyncio
import copy
import errno
import functools
import inspect
import io
import logging
import math
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

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text
from typer.models import ArgumentInfo, OptionInfo

from stepspec.orchestrator.errors import (
    WAITING,
    ConfigurationError,
    GuardedStream,
    StepspecError,
)

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
    with logging_to_stderr():
        if sys.stdout is None:  # it was closed: what is printed is to fail instead of being lost
            sys.stdout = io.TextIOWrapper(
                io.FileIO(os.open(os.devnull, os.O_RDONLY), "w"), write_through=True
            )
        try:
            app()
        except StepspecError as exc:
            _print_error(str(exc))
            sys.exit(2 if isinstance(exc, ConfigurationError) else 1)
        except OSError as exc:
            if exc.errno not in UNWRITABLE:
                raise
            _print_error(
                f"{exc.filename or 'standard output, or a file,'} cannot be written: {exc.strerror}"
            )
            sys.exit(1)


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
    return Console(file=cast("TextIO", GuardedStream()))


def _print_error(message: str) -> None:
    _stderr().print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


class _Stderr(logging.Handler):
    """Prints records in a line each, also while a progress bar is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING or record.name == WAITING else "dim"
        _stderr().print(Text(self.format(record), style), soft_wrap=True)


@contextmanager
def logging_to_stderr() -> Generator[None]:
    """
    Print the project's warnings, and what it waits for, on standard error; ``--verbose`` prints
    more.
    """
    handler, waiting = _Stderr(), logging.getLogger(WAITING)
    levels = log.level, waiting.level
    waiting.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        for each, level in zip((log, waiting), levels, strict=True):
            each.setLevel(level)


def print_json(value: object) -> None:
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.flush()


def numbers(
    flag: str, text: str, kind: Callable[[str], Any], *, positive: bool = True
) -> list[Any]:
    """
    Read the numbers of *text*, each once, above 0 if *positive*; none if it is empty. Raise
    `ConfigurationError`.
    """
    try:
        numbers = [kind(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        raise ConfigurationError(
            f"{flag} {text!r}: write numbers with commas between them"
        ) from None
    finite(flag, *numbers)
    if positive and any(number <= 0 for number in numbers):
        raise ConfigurationError(f"{flag} {text!r}: every number has to be above 0")
    return list(dict.fromkeys(numbers))


def finite(flag: str, *values: object) -> None:
    """
    Raise `ConfigurationError`, which names the *flag*, if any of its *values* is no number or
    infinite.
    """
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigurationError(f"{flag} {value}: a finite number is needed")


def writable(flag: str, path: Path) -> None:
    """
    Make the folder of the file at *path*. Raise `ConfigurationError` if that file cannot be
    written.

    No folder is made directly below the root, where a path with a spelling error would leave one.
    """
    top = Path(*path.absolute().parts[:2])
    if not top.exists() and top != path.absolute():
        raise ConfigurationError(
            f"{flag} {path}: there is no folder {top}; make it, or name another"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigurationError(f"{flag} {path}: {exc.filename}: {exc.strerror}") from exc
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"{flag} {path}: no file that can be written; name another")


def write_file(path: Path, text: str) -> None:
    """
    Write *text* to the file at *path*. Raise `StepspecError`, which names the file, if that fails.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise StepspecError(f"{path} cannot be written: {exc.strerror}") from exc


def write_settings(path: Path | None, toml: str) -> None:
    """Write the settings file at *path*, if there is one, and say how it is used."""
    if path is not None:
        write_file(path, toml)
        stderr.print(
            f"wrote {path}: name it with --config, or make it stepspec.toml",
            highlight=False,
            soft_wrap=True,
        )


def only_without_testbed(**others: object) -> None:
    """
    Raise `ConfigurationError` if a server is named, or one of *others* is set, beside the miniature
    pair.
    """
    from stepspec.setting_sources import ROLES, command_line  # pydantic's settings start slowly

    flags = [name for place, name in command_line().flags.items() if place[0] in ROLES]
    if flags := [*flags, *(f"--{name}" for name, value in others.items() if value is not None)]:
        raise ConfigurationError(
            f"--testbed starts a pair of its own: leave out either it or {', '.join(flags)}"
        )


def progress_bars(console: Console) -> Progress:
    """Return progress bars that count, with the remaining time."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console)
