"""Where the figures of a section come from, as names and values. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .section import Section


def origin(section: Section) -> Iterator[tuple[str, str]]:
    about, (first, *_) = section.run.about, section.run.sessions
    benchmark = section.run.folders[0].record["benchmark"]
    for folder in section.run.folders:
        yield "run folder", str(folder.path)
    for command in section.commands:
        yield "command", command
    yield "measured", _when(section)
    yield (
        "problems",
        f"{section.problems}, {_source(benchmark)}; licence: {benchmark['licence']}; hash {about['problems']}",
    )
    yield "graded as", str(about["metric"])
    yield "sampling", _values(about["sampling"])
    yield "budget", _values(about["budget"])
    yield "samples", f"{about['repeats']} a problem, seed {about['seed']}, {about['concurrency']} at a time"
    for server in first["servers"]:
        yield f"{server['role']} server", _server(server)
    yield "code", f"commit {first['commit'] or 'unknown'}; {_values(first['versions'])}"
    yield "machine", f"{first['platform']}, {first['cpus']} CPUs, Python {first['python']}"
    yield "prices", section.prices.said


def _when(section: Section) -> str:
    sessions = section.run.sessions
    return "; ".join(f"{each['date']} to {each.get('ended', 'interrupted')}" for each in sessions)


def _source(benchmark: Mapping[str, Any]) -> str:
    named = [benchmark["source"], benchmark["subset"], benchmark["split"]]
    return " ".join(str(name) for name in named if name) if benchmark["source"] else str(benchmark["name"])


def _server(server: Mapping[str, Any]) -> str:
    models = [f"{model['id']}, context {model.get('max_model_len', 'unknown')}" for model in server["models"] or ()]
    return f"vLLM {server['version'] or 'unknown'} at {server['url']}: {'; '.join(models) or 'unknown'}"


def _values(named: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
