"""The metrics of the service and of vLLM: the names of their samples, and the labels of each."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from stepspec.service.admission import Admission
from stepspec.service.formats.requests import Offer
from stepspec.service.settings import ServiceSettings
from stepspec.service.watch.observers import Metrics

Known: TypeAlias = Mapping[str, frozenset[str]]

SCRAPED = {"job", "instance", "namespace", "service"}  # what Prometheus adds
ENDINGS = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
}
MORE = {"_bucket": {"le"}, "_info": {"version"}}


def of_the_service() -> Known:
    """
    Ask its own registry, in the only way there is to learn labels that nothing has been counted for
    yet.
    """
    offer = Offer(engine=None, methods={})  # type: ignore[arg-type]  # nothing is run
    registry: Any = Metrics(Admission(ServiceSettings()), offer).registry
    return dict(
        sample
        for metric in set(registry._names_to_collectors.values())
        for sample in _samples(metric._name, metric._type, {*metric._labelnames, *SCRAPED})
    )


def of_vllm() -> Known:
    """
    Read them in the installed vLLM's source: importing it takes long, and its metrics want an
    engine.
    """
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "v1"
    return dict(
        sample
        for file in ("metrics/loggers.py", "spec_decode/metrics.py")
        for sample in _read(folder / file)
    )


def _read(file: Path) -> Iterator[tuple[str, frozenset[str]]]:
    always = {"model_name", "engine", "role", *SCRAPED}
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=kind), keywords=keywords) if kind.endswith(
                "_cls"
            ):
                arguments = {keyword.arg: keyword.value for keyword in keywords}
                name = arguments.get("name")
                if isinstance(name, ast.Constant):
                    own = {
                        each.value
                        for each in ast.walk(arguments["labelnames"])
                        if isinstance(each, ast.Constant)
                    }
                    yield from _samples(
                        str(name.value), kind.strip("_").removesuffix("_cls"), always | own
                    )
            case ast.Tuple(elts=[ast.Constant(value=str(name)), ast.Constant()]) if name.startswith(
                "vllm:"
            ):
                yield from _samples(name, "counter", always)
            case _:
                pass


def _samples(name: str, kind: str, labels: set[Any]) -> Iterator[tuple[str, frozenset[str]]]:
    for ending in ENDINGS[kind]:
        base = name.removesuffix(ending) if kind == "counter" else name
        yield base + ending, frozenset(labels | MORE.get(ending, set()))
