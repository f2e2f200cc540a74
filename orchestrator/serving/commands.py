"""What a pair's file comes to: the servers' command lines and environments. Nothing here starts anything."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from .cards import variables
from .pair import Pair, Started
from .server import Server

# With the scores of a suffix, vLLM's V1 runner sends memory that it has not written to. As zeros it at least is JSON;
# otherwise, glibc gives away whatever bits were there, and every other reply fails over a number that is none.
ZEROS: Mapping[str, str] = {"MALLOC_PERTURB_": "255"}


def servers(pair: Pair, allotment: Sequence[str] | None = None) -> tuple[Server, ...]:
    """
    Describe the servers to start, the dearest model's first; they are called by their paths.

    *allotment* are the names of the cards that are ours, if not all are.
    """
    return tuple(_server(pair, path, one, allotment) for path, one in pair.started.items())


def waves(pair: Pair, allotment: Sequence[str] | None = None) -> tuple[tuple[Server, ...], ...]:
    """
    Return the servers in the order in which to start them: those of one wave at the same time.

    vLLM measures how much of a card its own model takes, and has to be the only one that takes any meanwhile. Of those
    that share a card, the dearest goes first.
    """
    begun: list[list[Server]] = []
    taken: list[set[int]] = []
    for server, one in zip(servers(pair, allotment), pair.started.values(), strict=True):
        place = max((wave for wave, cards in enumerate(taken, 1) if cards & set(one.gpus)), default=0)
        if place == len(begun):
            begun.append([])
            taken.append(set())
        begun[place].append(server)
        taken[place].update(one.gpus)
    return tuple(map(tuple, begun))


def shown(server: Server) -> str:
    """Return the command as a shell would take it, with what is added to the environment before it."""
    environment = [f"{name}={shlex.quote(value)}" for name, value in server.env.items()]
    return " ".join([*environment, shlex.join(server.command(server.port))])


def arguments(flags: Mapping[str, Any]) -> list[str]:
    """Spell flags as vLLM's command line wants them: True stands alone, False not at all, and tables are JSON."""
    spelled: list[str] = []
    for name, value in flags.items():
        if value is True:
            spelled.append(f"--{name}")
        elif value is not False:
            spelled += [f"--{name}", json.dumps(value) if isinstance(value, dict | list) else str(value)]
    return spelled


def _server(pair: Pair, path: str, one: Started, allotment: Sequence[str] | None) -> Server:
    return Server(
        name=path,
        model=one.model,
        served_name=one.served_name,
        args=tuple(_arguments(pair, path, one)),
        env={**_environment(one, allotment), **one.environment},
        host=one.host,
        port=one.port,
    )


def _arguments(pair: Pair, path: str, one: Started) -> Sequence[str]:
    drafter = pair.drafter(path)
    speculation = one.speculation.configuration(drafter[0] if drafter else None)
    if speculation and drafter and drafter[1] and one.speculation.model is None:
        speculation["revision"] = drafter[1]
    own: dict[str, Any] = {
        "revision": one.revision or False,
        "dtype": one.dtype,
        "max-model-len": one.context,
        "tensor-parallel-size": len(one.gpus) if len(one.gpus) > 1 else False,
        "gpu-memory-utilization": one.memory if one.gpus else False,
        "enable-prefix-caching" if one.prefix_caching else "no-enable-prefix-caching": True,
        "enable-prompt-tokens-details": True,  # tells how much of a prompt was cached
        "generation-config": "vllm",  # what a request leaves out is vLLM's default, not the model's
        "scheduling-policy": "priority",  # verdicts before drafts, and both before bets
        "enable-scale-out": one.suffix_scoring,
        "speculative-config": speculation or False,
    }
    return arguments({**own, **one.flags})


def _environment(one: Started, allotment: Sequence[str] | None) -> Mapping[str, str]:
    if one.gpus:
        return variables(one.gpus, allotment)
    return ZEROS if one.suffix_scoring else {}
