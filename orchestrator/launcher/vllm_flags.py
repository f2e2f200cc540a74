"""
vLLM's flags for the servers of a pair: those that hybrids need, and what vLLM's own parser has against any.

vLLM caches the prefixes of a hybrid in blocks of 528 to 1600 tokens. With a match unit, a prefix may end at any
multiple of the unit, so that the cache follows a chain of thought. Importing vLLM takes seconds: its parser is run only
for a pair with flags, in a process of its own, and its results are kept in the user's cache folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from ..endpoints.metrics import UNIT
from ..endpoints.settings import Endpoint
from ..errors import ConfigurationError, near
from .commands import servers
from .machine import MachineFacts, vllm_version
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


_PARSED = TypeAdapter(ParsedFlags)


def flagged_lines(pair: Pair) -> Mapping[str, Sequence[str]]:
    """Return the arguments of every server that has flags, by its path."""
    paths = {path for path, server in pair.started.items() if server.flags}
    return {
        server.name: server.command(server.port)[len(server.program) :]
        for server in servers(pair)
        if server.name in paths
    }


def parse(lines: Mapping[str, Sequence[str]], waiting: Callable[[], object] = lambda: None) -> ParsedFlags | str:
    """
    Parse the command *lines* with vLLM's parser. Return the reason as a string if the parser could not be run.

    A result is kept for the next call with the same lines, vLLM and environment. *waiting* is called before the parser
    is run.
    """
    file = _kept_result(lines)
    if (kept := _read(file)) is not None:
        return kept
    waiting()
    parsed = _run_parser(lines)
    if isinstance(parsed, ParsedFlags):
        _write(file, parsed)
    return parsed


def _run_parser(lines: Mapping[str, Sequence[str]]) -> ParsedFlags | str:
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
    except subprocess.TimeoutExpired:
        return f"it was not done after {WORKER_SECONDS:g} s"
    except (OSError, subprocess.SubprocessError, ValueError, LookupError) as exc:
        return str(exc) or repr(exc)


def cache_folder() -> Path:
    """Return the folder for results of vLLM's parser, in the user's cache folder (XDG_CACHE_HOME)."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (home if home.is_absolute() else Path.home() / ".cache") / "stepspec" / "vllm-flags"


def _kept_result(lines: Mapping[str, Sequence[str]]) -> Path | None:
    """
    Return the file for the result of *lines*; None if vLLM cannot be found.

    Its name is a digest of all that the result depends on: vLLM's version and place, what runs its parser, vLLM's
    variables, and the words of *lines*, with the times of the files that they name, such as a chat template.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None:
        return None
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    words = sorted({word for line in lines.values() for word in line})
    key = {
        "vllm": [vllm_version(), *_times(places)],
        "worker": [*WORKER, *_times(map(Path, WORKER))],
        "variables": {name: value for name, value in os.environ.items() if name.startswith(("VLLM_", "CUDA_"))},
        "lines": {name: list(line) for name, line in lines.items()},
        "files": [*_times(map(Path, words))],
    }
    digest = blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=16).hexdigest()
    return cache_folder() / f"{digest}.json"


def _times(paths: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """Yield those of *paths* that exist, with the time of their last change."""
    for path in paths:
        with suppress(OSError, ValueError):  # a word that is no path, or too long for one
            yield str(path), path.stat().st_mtime_ns


def _read(file: Path | None) -> ParsedFlags | None:
    """Read a kept result; None if there is none, or the file is damaged."""
    try:
        return _PARSED.validate_json(file.read_bytes()) if file else None
    except (OSError, ValidationError):
        return None


def _write(file: Path | None, parsed: ParsedFlags) -> None:
    """Keep a result. Others may read and write at the same time, and never see a part; a failure costs time only."""
    if file is None:
        return
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=file.parent, prefix=".", delete=False) as partial:
            try:
                partial.write(_PARSED.dump_json(parsed))
                partial.flush()
                os.replace(partial.name, file)
            except BaseException:
                os.unlink(partial.name)
                raise


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
