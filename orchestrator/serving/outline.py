"""What is told of the servers of a pair, in the shape of its file; and that as the settings of a solver over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from ..endpoints.settings import Endpoint
from ..toml import one_line
from .pair import Pair, PairWithin, Started
from .standing import Standing

SMALL, LARGE = "small", "large"
OWN = ("policy", "options", "ahead")  # what is set of a pair within
OF_ENDPOINT = ("template", "thinks", "suffix_scoring")  # what is set of a model to start and of its endpoint
TOLD_APART = {"role", "url", "replicas", "api_key"}


def outline(pair: Pair, leaf: Callable[[str], Any]) -> dict[str, Any]:
    """Return both roles of *pair*: for a model what *leaf* makes of its path, for a pair within its own outline."""
    return {LARGE: leaf(LARGE), SMALL: _outlined(pair.small, SMALL, leaf)}


def settings(pair: Pair, standing: Mapping[str, Standing]) -> dict[str, Any]:
    """
    Return what a solver has to be told to use the servers of *pair*, which stand at *standing*.

    Keys of servers that ran already are left out: they are not for everybody who sees what is told.
    """
    sampling = {"sampling": pair.sampling.model_dump(exclude_unset=True)} if pair.sampling else {}
    return {**outline(pair, lambda path: _endpoint(pair.models[path], standing[path])), **sampling}


def as_toml(told: Mapping[str, Any]) -> str:
    """Write `settings` as a settings file, a line for each thing, which begins with its path."""
    return "\n".join(f"{name} = {one_line(value)}" for name, value in _lines(told))


def _outlined(one: Endpoint | Started | PairWithin, path: str, leaf: Callable[[str], Any]) -> Any:
    if not isinstance(one, PairWithin):
        return leaf(path)
    own = {name: getattr(one, name) for name in OWN}
    return {**own, LARGE: leaf(f"{path}.{LARGE}"), SMALL: _outlined(one.small, f"{path}.{SMALL}", leaf)}


def _endpoint(one: Endpoint | Started, standing: Standing) -> str | dict[str, Any]:
    """What is to be set of one server: its URL alone, where there is no more."""
    if isinstance(one, Started):
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
