"""
Check a pair before anything is started: addresses, names, cards, memory, and the flags by vLLM's own parser.

What only vLLM can know, such as the memory of a pass or the drafter's vocabulary, it says itself when it starts; the
launcher shows the end of its log. Importing vLLM takes seconds and changes global state, so its parser runs in a
process of its own, and only for a pair with flags.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ..errors import ConfigurationError
from ..installation import VLLM_FOR_CPUS, install_command
from .commands import servers
from .machine import VISIBLE, Machine
from .pair import Pair, StartedServer

GIB = 2**30
ROUNDING = 1e-9
RESERVED_NAMES = ("auto", "small", "large")  # have another meaning wherever a request names a model

WORKER = (sys.executable, "-P", str(Path(__file__).with_name("vllm_flags_worker.py")))
WORKER_SECONDS = 180.0  # to import vLLM for the first time, from a slow disk
QUIET: Mapping[str, str] = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "PYTHONWARNINGS": "ignore"}

K = TypeVar("K", bound=Hashable)


def check_pair(pair: Pair, machine: Machine, methods: Collection[str] = ()) -> None:
    """
    Raise `ConfigurationError` with every reason why *pair* cannot run on *machine*, each with its remedy.

    No model may be served under the name of one of the *methods*.
    """
    _raise(_errors(pair, machine, methods))


def _raise(errors: Iterator[str]) -> None:
    if found := [*errors]:
        raise ConfigurationError(found[0] if len(found) == 1 else "".join(f"\n- {error}" for error in found))


def _errors(pair: Pair, machine: Machine, methods: Collection[str]) -> Iterator[str]:
    if pair.started and not machine.vllm:
        yield f"vLLM is not installed: {install_command('vllm')}; {VLLM_FOR_CPUS}"
    yield from _address_errors(pair, machine)
    yield from _name_errors(pair, methods)
    yield from _card_errors(pair, machine)
    for path, server in pair.started.items():
        yield from _model_errors(pair, path, server)
        yield from _memory_errors(pair, path, server, machine)


def _address_errors(pair: Pair, machine: Machine) -> Iterator[str]:
    for path, server in pair.started.items():
        if reason := machine.taken.get((server.host, server.port)):
            yield (
                f"{path}.port: {server.host}:{server.port} is not available ({reason}): stop the program that uses it, "
                "or set another port"
            )
    ports = {path: (server.host, server.port) for path, server in pair.started.items() if server.port}
    for (_, port), paths in _duplicates(ports):
        yield f"{paths} have the same port {port}: set different ports, or leave them out"


def _name_errors(pair: Pair, methods: Collection[str]) -> Iterator[str]:
    names = {path: server.served_name for path, server in pair.started.items()}
    for name, paths in _duplicates(names):
        yield f"{paths} have the same served name {name!r}: set a different `name` for each"
    for path, name in names.items():
        if name in (*RESERVED_NAMES, *methods):
            what = "the name of a method" if name in methods else "a reserved name"
            yield f"{path}.name: {name!r} is {what}: leave `name` out, and the model is served under its own"


def _duplicates(values: Mapping[str, K]) -> Iterator[tuple[K, str]]:
    """Yield every value that several paths have, with these paths."""
    for value in dict.fromkeys(values.values()):
        paths = [path for path, other in values.items() if other == value]
        if len(paths) > 1:
            yield value, " and ".join(paths)


def _card_errors(pair: Pair, machine: Machine) -> Iterator[str]:
    for card in sorted({card for server in pair.started.values() for card in server.gpus}):
        users = {path: server for path, server in pair.started.items() if card in server.gpus}
        if machine.visible is not None and card >= len(machine.visible):
            allowed = ", ".join(machine.visible) or "none"
            yield f"{', '.join(users)}: there is no GPU {card}; {VISIBLE} allows {allowed}, which gpus number from 0"
        elif machine.visible is None and machine.cards is not None and card >= len(machine.cards):
            yield f"{', '.join(users)}: there is no GPU {card}; the driver knows {len(machine.cards)}, from 0 on"
        if sum(server.memory for server in users.values()) > 1 + ROUNDING:
            shares = " + ".join(f"{path}.memory {server.memory:g}" for path, server in users.items())
            yield f"GPU {card}: the shares of its memory exceed 1 ({shares} > 1): lower one, or use another GPU"


def _model_errors(pair: Pair, path: str, server: StartedServer) -> Iterator[str]:
    if Path(server.model).is_absolute() and not (Path(server.model) / "config.json").is_file():
        yield f"{path}.model: no model at {server.model}: a folder with a config.json is needed"
    if server.speculation.method != "draft_model":
        return
    drafter = pair.drafter(path)
    if drafter is None:
        yield f"{path}.speculation: the pair has no smaller model that could draft: set `model`"
    elif drafter[0] == server.model:
        yield f"{path}.speculation: the model cannot draft for itself: name a smaller one, or choose ngram"


def _memory_errors(pair: Pair, path: str, server: StartedServer, machine: Machine) -> Iterator[str]:
    """Compare the weights, as far as they are on this machine, with the share of a card; vLLM checks the rest."""
    card = pair.card if pair.card is not None else min(machine.cards or (), default=None)
    if card is None or not server.gpus:
        return
    models = filter(None, ((server.model, server.revision), pair.drafter(path)))
    need = sum(machine.weights.get(model, 0) for model in models) / GIB / len(server.gpus)
    if need > server.memory * card:
        yield (
            f"{path} does not fit: its weights take {need:.1f} GiB of each card, and it may use {server.memory:g} of "
            f"{card:.0f} GiB: raise {path}.memory, use more gpus, or a quantised model"
        )


def check_flags(pair: Pair) -> str:
    """
    Raise `ConfigurationError` in vLLM's own words if it refuses the flags of a server of *pair*.

    Return why its parser could not be run; empty if it was, or if the pair has no flags.
    """
    flagged = [path for path, server in pair.started.items() if server.flags]
    lines = {each.name: each.command(each.port)[len(each.program) :] for each in servers(pair) if each.name in flagged}
    if not lines:
        return ""
    refused = refusals(lines)
    if isinstance(refused, str):
        return refused
    _raise(f"{path}: the installed vLLM refuses its flags: {refusal}" for path, refusal in refused.items() if refusal)
    return ""


def refusals(lines: Mapping[str, Sequence[str]]) -> Mapping[str, str] | str:
    """Return what vLLM's parser has against each of *lines*, "" if nothing; a string alone: why it could not be run."""
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
        result: Mapping[str, str] = json.loads(worker.stdout.splitlines()[-1])
        return {path: result[path] for path in lines}
    except subprocess.TimeoutExpired:
        return f"it was not done after {WORKER_SECONDS:g} s"
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as exc:
        return str(exc) or repr(exc)
