"""Read run folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from stepspec.orchestrator.errors import ConfigurationError

from ..evaluation import PROBLEMS, RUN, SAMPLES, TRACES
from ..runner import trace_name
from ..sample import Sample
from ..store import Place, SampleStore

Record: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One run folder."""

    path: Path
    """The folder."""
    about: Record
    """What its samples have in common, as in the header of their file."""
    record: Record
    """Its provenance: the benchmark, and the sessions that measured."""
    problems: tuple[str, ...]
    """The texts of the problems."""
    arms: tuple[str, ...]
    """The names of the arms. The run was measured against the first one."""
    done: Mapping[Place, Sample]
    """The samples, by number and arm."""

    @property
    def repeats(self) -> int:
        """How many samples of each problem an arm has."""
        return int(self.about["repeats"])

    @property
    def sessions(self) -> list[Record]:
        """The provenance of each session, in their order."""
        return list(self.record["sessions"])

    def trace(self, number: int, arm: str) -> Path | None:
        """Return the path of the trace of a sample; None if the trace was not kept."""
        path = self.path / TRACES / trace_name(number, arm)
        return path if path.is_file() else None


def read_folder(path: Path) -> Run:
    """Read the run folder at *path*. Raise `ConfigurationError` if *path* is not a run folder."""
    try:
        record = orjson.loads((path / RUN).read_bytes())
        about = record["about"]
        arms = tuple(arm["name"] for arm in about["arms"])
        lines = map(orjson.loads, (path / PROBLEMS).read_bytes().splitlines())
        problems = tuple(line["problem"] for line in lines)
    except OSError as exc:
        raise ConfigurationError(
            f"no run in {path}: expected a folder of `stepspec eval` ({exc.filename}:"
            f" {exc.strerror})"
        ) from exc
    except (KeyError, TypeError, ValueError) as exc:
        raise ConfigurationError(f"{path} is not a run folder of this version: {exc}") from exc
    return Run(
        path=path,
        about=about,
        record=record,
        problems=problems,
        arms=arms,
        done=SampleStore(path / SAMPLES, about).done,
    )
