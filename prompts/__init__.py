"""
Prompt texts, one per file, named ``<policy>.<purpose>.txt``. Where each comes from: ``README.md``.

A folder of a user's own may replace some of them, for the runs of one solver: the setting
``prompts_dir``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

SEPARATOR = "\n---\n"
ENDING = ".txt"
PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class PromptFile:
    """The content of one file."""

    text: str
    """The text to send."""
    opening: str
    """The words that the reply begins with."""
    sha256: str
    """The hash of the whole file."""

    @classmethod
    def parse(cls, source: str) -> PromptFile:
        """
        Split *source* at the line of three dashes that separates the text from the reply's opening.
        """
        text, _, opening = (
            source.removesuffix("\n").removesuffix(SEPARATOR[:-1]).partition(SEPARATOR)
        )
        return cls(text, opening, sha256(source.encode()).hexdigest())

    @property
    def placeholders(self) -> set[str]:
        return set(PLACEHOLDER.findall(self.text))


REPLACED: ContextVar[Mapping[str, PromptFile]] = ContextVar(
    "REPLACED", default=MappingProxyType({})
)
"""The prompts that the user replaced, by name; see `replacing`."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """
    A prompt. Its text may be that of a user's file (see `replacing`).

    So read the text where it is sent, not where the module is imported.
    """

    name: str
    """The name of the prompt."""
    original: PromptFile
    """The file that comes with stepspec or a plugin."""

    @property
    def current(self) -> PromptFile:
        return REPLACED.get().get(self.name, self.original)

    @property
    def text(self) -> str:
        return self.current.text

    @property
    def opening(self) -> str:
        return self.current.opening

    @property
    def sha256(self) -> str:
        return self.current.sha256

    def fill(self, **values: object) -> str:
        """Return the text with *values* for its placeholders; other braces stay, as in LaTeX."""
        return PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), self.text)


_others: dict[str, Prompt] = {}


def load(name: str, package: str = __name__) -> Prompt:
    """
    Return the prompt called *name*, from the file ``<name>.txt`` among the resources of *package*.

    A line of three dashes in the file separates the text from the reply's opening. A plugin passes
    its own package, and begins the name with its own: then a user's folder can replace that prompt
    too.
    """
    prompt = Prompt(name, _read(name, package))
    if package != __name__:
        if name in built_in_names():
            raise ValueError(
                f"the prompt {name!r} of {package}: stepspec has this name itself, choose another"
            )
        _others[name] = prompt
    return prompt


def load_file(path: Path) -> Prompt:
    """
    Return the prompt in a user's file, which is called by its path from now on.

    Raise `ValueError` if the file cannot be read or is empty.
    """
    prompt = Prompt(str(path), _read_file(path))
    _others[prompt.name] = prompt
    return prompt


@cache
def _read(name: str, package: str) -> PromptFile:
    return PromptFile.parse(files(package).joinpath(f"{name}{ENDING}").read_text(encoding="utf-8"))


@cache
def built_in_names() -> tuple[str, ...]:
    """The names of the prompts that come with stepspec."""
    there = (file.name for file in files(__name__).iterdir() if file.name.endswith(ENDING))
    return tuple(sorted(name.removesuffix(ENDING) for name in there))


def known() -> Mapping[str, Prompt]:
    """All prompts by name: those of stepspec, and those that plugins and users have loaded."""
    return {name: load(name) for name in built_in_names()} | _others


def read_folder(folder: Path) -> Mapping[str, PromptFile]:
    """
    Read the prompts of a user's *folder*, by name: each replaces the one of the same name, its
    opening included.

    Raise `ValueError` if the folder cannot be read, holds another name, or a text without the
    original's placeholders.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    originals = known()
    read: dict[str, PromptFile] = {}
    for path in sorted(folder.glob(f"*{ENDING}")):
        name = path.name.removesuffix(ENDING)
        if name not in originals:
            close = difflib.get_close_matches(name, originals, n=1)
            meant = f"the prompts: {', '.join(originals)}"
            if close:
                meant = f"did you mean {close[0]}{ENDING}?"
            raise ValueError(f"{path}: there is no prompt {name!r}; {meant}")
        read[name] = _checked(path, originals[name].original)
    if not read:
        raise ValueError(
            f"{folder} holds no prompt: name a file as the one it replaces, such as"
            " specreason.grade.txt"
        )
    return read


def _read_file(path: Path) -> PromptFile:
    try:
        found = PromptFile.parse(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ValueError(f"{path} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ValueError(f"{path} cannot be read: it is not UTF-8") from exc
    if not found.text.strip():
        raise ValueError(f"{path} is empty")
    return found


def _checked(path: Path, original: PromptFile) -> PromptFile:
    found = _read_file(path)
    if missing := sorted(original.placeholders - found.placeholders):
        raise ValueError(
            f"{path}: the text needs {', '.join(f'{{{name}}}' for name in missing)}, as the"
            " original has"
        )
    return found


@contextmanager
def replacing(prompts: Mapping[str, PromptFile]) -> Generator[None]:
    """Replace the *prompts* of these names for whatever the block does; others stay."""
    token = REPLACED.set(prompts)
    try:
        yield
    finally:
        REPLACED.reset(token)
