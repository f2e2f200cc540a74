"""Whether vLLM takes the flags of a pair's file: it is asked itself, which takes seconds, and so only about those."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigurationError, near
from .commands import servers
from .pair import Pair

ASK = (sys.executable, "-P", str(Path(__file__).with_name("vllm_flags_worker.py")))
PATIENCE = 180.0  # seconds: to import vLLM for the first time, from a slow disk
QUIET: Mapping[str, str] = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "PYTHONWARNINGS": "ignore"}


@dataclass(frozen=True, slots=True)
class ParsedFlags:
    """What vLLM's parser says: the *flags* that it knows, and what it has against each command line, by its name."""

    flags: frozenset[str]
    refusals: Mapping[str, str]


def lines(pair: Pair) -> Mapping[str, Sequence[str]]:
    """Return the arguments of every server that is to be given flags, by its path."""
    named = {path for path, one in pair.started.items() if one.flags}
    return {one.name: one.command(one.port)[len(one.program) :] for one in servers(pair) if one.name in named}


def ask(asked: Mapping[str, Sequence[str]]) -> ParsedFlags | str:
    """Have vLLM's parser read the command lines *asked* about. Return why it could not be asked, if it could not."""
    try:
        told = subprocess.run(
            ASK,
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, **QUIET},
            check=False,
        )
        if told.returncode:
            return (told.stderr.strip().splitlines() or [f"exit code {told.returncode}"])[-1]
        said = json.loads(told.stdout.splitlines()[-1])
        return ParsedFlags(frozenset(said["flags"]), said["refusals"])
    except (OSError, subprocess.SubprocessError, ValueError, LookupError) as exc:
        return str(exc) or repr(exc)


def refuse(pair: Pair, parsed: ParsedFlags) -> None:
    """Raise `ConfigurationError` with every flag of *pair* that vLLM does not know or want, with the nearest one."""
    if wrong := [*_wrong(pair, parsed)]:
        raise ConfigurationError(wrong[0] if len(wrong) == 1 else "".join(f"\n- {one}" for one in wrong))


def _wrong(pair: Pair, parsed: ParsedFlags) -> Iterator[str]:
    for path, one in pair.started.items():
        unknown = [flag for flag in one.flags if flag.partition(".")[0] not in parsed.flags]
        for flag in unknown:
            yield f"{path}.flags: the installed vLLM has no flag {flag!r}{near(flag, parsed.flags)}"
        if (said := parsed.refusals.get(path)) and not unknown:
            yield f"{path}: the installed vLLM refuses its flags: {said}"
