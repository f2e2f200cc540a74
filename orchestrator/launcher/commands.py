"""What is told of the servers of a pair, in the shape of its file; and that as the settings of a solver over them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from ..endpoints.settings import Endpoint
from ..toml import one_line
from .launch import RunningPair, Server
from .machine import variables
from .pair import Pair, PairWithin, StartedServer

SMALL, LARGE = "small", "large"
OWN = ("policy", "options", "ahead")  # what is set of a pair within
OF_ENDPOINT = ("template", "thinks", "suffix_scoring")  # what is set of a model to start and of its endpoint
TOLD_APART = {"role", "url", "replicas", "api_key"}


def outline(pair: Pair, leaf: Callable[[str], Any]) -> dict[str, Any]:
    """Return both roles of *pair*: for a model what *leaf* makes of its path, for a pair within its own outline."""
    return {LARGE: leaf(LARGE), SMALL: _outlined(pair.small, SMALL, leaf)}


def settings(pair: Pair, standing: Mapping[str, RunningPair]) -> dict[str, Any]:
    """
    Return what a solver has to be told to use the servers of *pair*, which stand at *standing*.

    Keys of servers that ran already are left out: they are not for everybody who sees what is told.
    """
    sampling = {"sampling": pair.sampling.model_dump(exclude_unset=True)} if pair.sampling else {}
    return {**outline(pair, lambda path: _endpoint(pair.models[path], standing[path])), **sampling}


def as_toml(told: Mapping[str, Any]) -> str:
    """Write `settings` as a settings file, a line for each thing, which begins with its path."""
    return "\n".join(f"{name} = {one_line(value)}" for name, value in _lines(told))


def _outlined(one: Endpoint | StartedServer | PairWithin, path: str, leaf: Callable[[str], Any]) -> Any:
    if not isinstance(one, PairWithin):
        return leaf(path)
    own = {name: getattr(one, name) for name in OWN}
    return {**own, LARGE: leaf(f"{path}.{LARGE}"), SMALL: _outlined(one.small, f"{path}.{SMALL}", leaf)}


def _endpoint(one: Endpoint | StartedServer, standing: RunningPair) -> str | dict[str, Any]:
    """What is to be set of one server: its URL alone, where there is no more."""
    if isinstance(one, StartedServer):
        set_here = {name: getattr(one, name) for name in OF_ENDPOINT if name in one.model_fields_set}
        return {"url": standing.base_url, **set_here} if set_here else standing.base_url
    more = one.model_dump(mode="json", exclude_unset=True, exclude=TOLD_APART)
    return {"url": standing.base_url, **more} if more or one.api_key else standing.base_url


def _lines(told: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in told.items():
        if isinstance(value, dict) and SMALL in value:
            yield from _lines(cast("dict[str, Any]", value), f"{path}{name}.")
        else:
            yield f"{path}{name}", value


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


def _server(pair: Pair, path: str, one: StartedServer, allotment: Sequence[str] | None) -> Server:
    return Server(
        name=path,
        model=one.model,
        served_name=one.served_name,
        args=tuple(_arguments(pair, path, one)),
        env={**_environment(one, allotment), **one.environment},
        host=one.host,
        port=one.port,
    )


def _arguments(pair: Pair, path: str, one: StartedServer) -> Sequence[str]:
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


def _environment(one: StartedServer, allotment: Sequence[str] | None) -> Mapping[str, str]:
    if one.gpus:
        return variables(one.gpus, allotment)
    return ZEROS if one.suffix_scoring else {}
