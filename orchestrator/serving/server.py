"""What to serve, and what is then served. Values only: nothing here starts anything."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

State: TypeAlias = Literal["starting", "ready"]

# Not the `vllm` command, which fails on the CPU build: it looks for its own version under another distribution's name.
VLLM = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")


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
    program: tuple[str, ...] = VLLM

    def command(self, port: int) -> tuple[str, ...]:
        """Return the command line that serves it at *port*."""
        where = ("--host", self.host, "--port", str(port))
        return (*self.program, "--model", str(self.model), "--served-model-name", self.served_name, *where, *self.args)


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
