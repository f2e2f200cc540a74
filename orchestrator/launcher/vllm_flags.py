"""
vLLM's flags for the servers of a pair: those that hybrids need, and what vLLM's own parser has against any.

vLLM caches the prefixes of a hybrid in blocks of 528 to 1600 tokens. With a match unit, a prefix may end at any
multiple of the unit, so that the cache follows a chain of thought. Importing vLLM takes seconds: its parser is run only
for a pair with flags, in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..endpoints.metrics import UNIT
from ..endpoints.settings import Endpoint
from ..errors import ConfigurationError, near
from .commands import servers
from .machine import MachineFacts
from .pair import Pair, PairWithin, Roles, StartedServer
from .preflight import serves_hybrid

HYBRID_FLAGS: Mapping[str, Any] = {"mamba-cache-mode": "align", "prefix-match-unit": UNIT}
CACHE_FLAGS = frozenset({*HYBRID_FLAGS, "mamba-block-size", "no-enable-prefix-caching"})
"""A server with one of these flags has its cache set up by the pair's file."""

WORKER = (sys.executable, "-P", str(Path(__file__).with_name("vllm_flags_worker.py")))
WORKER_SECONDS = 180.0  # to import vLLM for the first time, from a slow disk
QUIET: Mapping[str, str] = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "PYTHONWARNINGS": "ignore"}

R = TypeVar("R", bound=Roles)


def hybrids_without_flags(pair: Pair, facts: MachineFacts) -> Mapping[str, StartedServer]:
    """Return the servers of hybrids, by path, whose cache the file of *pair* does not set up."""
    return {
        path: server
        for path, server in pair.started.items()
        if server.prefix_caching and not CACHE_FLAGS & set(server.flags) and serves_hybrid(server, facts)
    }


def with_hybrid_flags(pair: Pair, paths: Mapping[str, object]) -> Pair:
    """Return *pair* with `HYBRID_FLAGS` added to the servers at *paths*."""
    return _flag_roles(pair, "", frozenset(paths))


def _flag_roles(roles: R, prefix: str, paths: frozenset[str]) -> R:
    small = (
        _flag_roles(roles.small, f"{prefix}small.", paths)
        if isinstance(roles.small, PairWithin)
        else _flag_model(roles.small, f"{prefix}small", paths)
    )
    return roles.model_copy(update={"large": _flag_model(roles.large, f"{prefix}large", paths), "small": small})


def _flag_model(model: Endpoint | StartedServer, path: str, paths: frozenset[str]) -> Endpoint | StartedServer:
    if path not in paths or isinstance(model, Endpoint):
        return model
    return model.model_copy(update={"flags": {**model.flags, **HYBRID_FLAGS}})


@dataclass(frozen=True, slots=True)
class ParsedFlags:
    """The result of vLLM's parser: all *flags* that it knows, and a refusal per command line, empty if accepted."""

    flags: frozenset[str]
    refusals: Mapping[str, str]


def flagged_lines(pair: Pair) -> Mapping[str, Sequence[str]]:
    """Return the arguments of every server that has flags, by its path."""
    paths = {path for path, server in pair.started.items() if server.flags}
    return {
        server.name: server.command(server.port)[len(server.program) :]
        for server in servers(pair)
        if server.name in paths
    }


def parse(lines: Mapping[str, Sequence[str]]) -> ParsedFlags | str:
    """Parse the command *lines* with vLLM's parser. Return the reason as a string if the parser could not be run."""
    try:
        worker = subprocess.run(
            WORKER,
            input=json.dumps(lines),
            capture_output=True,
            text=True,
            timeout=WORKER_SECONDS,
            env={**os.environ, **QUIET},
            check=False,
        )
        if worker.returncode:
            return (worker.stderr.strip().splitlines() or [f"exit code {worker.returncode}"])[-1]
        result = json.loads(worker.stdout.splitlines()[-1])
        return ParsedFlags(frozenset(result["flags"]), result["refusals"])
    except (OSError, subprocess.SubprocessError, ValueError, LookupError) as exc:
        return str(exc) or repr(exc)


def check_flags(pair: Pair, parsed: ParsedFlags) -> None:
    """Raise `ConfigurationError` with every flag of *pair* that vLLM refuses; an unknown one with the nearest known."""
    if errors := [*_errors(pair, parsed)]:
        raise ConfigurationError(errors[0] if len(errors) == 1 else "".join(f"\n- {error}" for error in errors))


def _errors(pair: Pair, parsed: ParsedFlags) -> Iterator[str]:
    for path, server in pair.started.items():
        unknown = [flag for flag in server.flags if flag.partition(".")[0] not in parsed.flags]
        for flag in unknown:
            yield f"{path}.flags: the installed vLLM has no flag {flag!r}{near(flag, parsed.flags)}"
        if (refusal := parsed.refusals.get(path)) and not unknown:
            yield f"{path}: the installed vLLM refuses its flags: {refusal}"
