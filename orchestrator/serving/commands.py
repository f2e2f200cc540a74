"""What a pair's file comes to: the servers' command lines and environments. Nothing here starts anything."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ..chain import Role
from ..endpoints.settings import Endpoint
from .pair import Pair, Started
from .server import Server

# With the scores of a suffix, vLLM's V1 runner sends memory that it has not written to. As zeros it at least is JSON;
# otherwise, glibc gives away whatever bits were there, and every other reply fails over a number that is none.
ZEROS: Mapping[str, str] = {"MALLOC_PERTURB_": "255"}


def servers(pair: Pair) -> tuple[Server, ...]:
    """Describe the servers to start, the large model's first."""
    return tuple(_server(pair, role, one) for role, one in pair.started.items())


def waves(pair: Pair) -> tuple[tuple[Server, ...], ...]:
    """
    Return the servers in the order in which to start them: those of one wave at the same time.

    vLLM measures how much of a card its own model takes, and has to be the only one that takes any meanwhile.
    """
    described = servers(pair)
    cards = [card for one in pair.started.values() for card in one.gpus]
    if len(set(cards)) < len(cards):
        return tuple((server,) for server in described)
    return (described,) if described else ()


def endpoint(role: Role, one: Started, url: str) -> Endpoint:
    """Return the settings of the endpoint that a started server is."""
    return Endpoint(role=role, url=url, model=one.name or role, suffix_scoring=one.suffix_scoring)


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


def _server(pair: Pair, role: Role, one: Started) -> Server:
    return Server(
        name=role,
        model=one.model,
        served_name=one.name or role,
        args=tuple(_arguments(pair, role, one)),
        env={**_environment(one), **one.environment},
        host=one.host,
        port=one.port,
    )


def _arguments(pair: Pair, role: Role, one: Started) -> Sequence[str]:
    drafter = pair.drafter(role)
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
        "enable-scale-out": one.suffix_scoring,
        "speculative-config": speculation or False,
    }
    return arguments({**own, **one.flags})


def _environment(one: Started) -> Mapping[str, str]:
    if one.gpus:
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, one.gpus))}
    return ZEROS if one.suffix_scoring else {}
