"""Run folders, read back, and those of the same measurement put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import orjson
from pydantic import TypeAdapter, ValidationError

from stepspec.orchestrator.errors import ConfigurationError

from ..evaluation import PROBLEMS, RUN, SAMPLES, TRACES
from ..runner import trace_name
from ..sample import Arm, Sample, Task
from ..store import JsonlStore, Place, SampleStore

Record: TypeAlias = Mapping[str, Any]
_ARMS: TypeAdapter[tuple[Arm, ...]] = TypeAdapter(tuple[Arm, ...])


@dataclass(frozen=True, slots=True)
class Folder:
    """One run folder: what it is *about*, its *record* of provenance, and the samples it has."""

    path: Path
    about: Record
    record: Record
    tasks: tuple[Task, ...]
    arms: tuple[Arm, ...]
    done: Mapping[Place, Sample]


@dataclass(frozen=True, slots=True)
class Run:
    """
    One measurement: folders of the same problems, models, sampling and budget, whose arms may differ.

    Where two folders have the same sample, it is the first one's.
    """

    folders: tuple[Folder, ...]

    @property
    def about(self) -> Record:
        return self.folders[0].about

    @property
    def repeats(self) -> int:
        return int(self.about["repeats"])

    @property
    def sessions(self) -> list[Record]:
        return [session for folder in self.folders for session in folder.record["sessions"]]

    @property
    def tasks(self) -> tuple[Task, ...]:
        return max((folder.tasks for folder in self.folders), key=len)

    @property
    def arms(self) -> tuple[Arm, ...]:
        return tuple({arm.name: arm for folder in self.folders for arm in folder.arms}.values())

    @property
    def done(self) -> Mapping[Place, Sample]:
        return {place: sample for folder in reversed(self.folders) for place, sample in folder.done.items()}

    def trace(self, number: int, sample: Sample) -> Path | None:
        """The trace of *sample*, the one with this *number*; None if it was not kept."""
        home = next(folder for folder in self.folders if (number, sample.arm) in folder.done)
        path = home.path / TRACES / trace_name(number, sample.arm)
        return path if path.is_file() else None


def read(path: Path) -> Folder:
    """Read the run folder at *path*. Raise `ConfigurationError` if it is none."""
    found = JsonlStore.about(path / SAMPLES)
    about: Record = cast("Record", found) if isinstance(found, dict) else {}
    if "arms" not in about:
        raise ConfigurationError(f"no run in {path}: name a folder that `stepspec eval` wrote, which holds {SAMPLES}")
    try:
        arms = _ARMS.validate_python(about["arms"])
        record = orjson.loads((path / RUN).read_bytes())
        lines = map(orjson.loads, (path / PROBLEMS).read_bytes().splitlines())
        tasks = tuple(Task(line["problem"], line["answer"], line["name"]) for line in lines)
    except OSError as exc:
        raise ConfigurationError(f"{exc.filename}: {exc.strerror}; the same `stepspec eval` writes it again") from exc
    except (KeyError, TypeError, ValueError, ValidationError) as exc:
        raise ConfigurationError(f"{path} is no run folder of this version: {exc}") from exc
    return Folder(path, about, record, tasks, arms, SampleStore(path / SAMPLES, about).done)


def merge(folders: Sequence[Folder]) -> list[Run]:
    """Put together what belongs together, in the order given. Arms of one name have to be the same arm."""
    runs: list[list[Folder]] = []
    for folder in folders:
        home = next((run for run in runs if all(_alike(folder, other) for other in run)), None)
        if home is None:
            runs.append([folder])
        else:
            home.append(folder)
    return [Run(tuple(run)) for run in runs]


def _alike(one: Folder, other: Folder) -> bool:
    """Whether samples of both may stand side by side."""
    keys = (one.about.keys() | other.about.keys()) - {"arms"}
    arms = {arm.name: arm for arm in other.arms}
    same = all(one.about.get(key) == other.about.get(key) for key in keys)
    return same and all(arms.get(arm.name, arm) == arm for arm in one.arms)
