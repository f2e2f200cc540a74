"""What to serve, and what is then served. Values only: nothing here starts anything."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

State: TypeAlias = Literal["starting", "ready"]

ENTRY, DEPRECATED = "vllm.entrypoints.launchers.api_server.entry", "vllm.entrypoints.openai.api_server"


def program(executable: str = sys.executable) -> tuple[str, ...]:
    """
    Return what serves a model with the vLLM of this environment: ``vllm serve``, or else a module.

    The command fails on vLLM's CPU build, which is installed under another distribution's name than the one whose
    version it looks up. The older one of the modules is deprecated, and the only one that an older vLLM has.
    """
    command = Path(executable).with_name("vllm")
    if command.is_file() and _installed_as("vllm"):
        return str(command), "serve"
    found = importlib.util.find_spec("vllm")
    places = (Path(place).parent for place in (found and found.submodule_search_locations) or ())
    entry = Path(*ENTRY.split(".")).with_suffix(".py")
    return executable, "-m", ENTRY if any((place / entry).is_file() for place in places) else DEPRECATED


def _installed_as(distribution: str) -> bool:
    try:
        return bool(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return False


@cache
def vllm() -> tuple[str, ...]:
    """Return `program` for this interpreter, looked up once."""
    return program()


@dataclass(frozen=True, slots=True)
class Server:
    """
    One vLLM server to start.

    *name* is what progress and errors call it. *args* go to vLLM as they are, *env* is added to our own environment.
    *port* 0 takes a free one. *program* may be another interpreter's vLLM.
    """

    name: str
    model: Path | str
    served_name: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    host: str = "127.0.0.1"
    port: int = 0
    program: tuple[str, ...] = field(default_factory=vllm)

    def command(self, port: int) -> tuple[str, ...]:
        """Return the command line that serves it at *port*."""
        where = ("--host", self.host, "--port", str(port))
        model = (str(self.model),) if self.program[-1] == "serve" else ("--model", str(self.model))
        return (*self.program, *model, "--served-model-name", self.served_name, *where, *self.args)


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers. *pid* is the leader of its process group, *log* what the group has printed."""

    name: str
    base_url: str
    served_name: str
    pid: int
    log: Path


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the server called *name* is, *seconds* after it was launched."""

    name: str
    seconds: float
    state: State
