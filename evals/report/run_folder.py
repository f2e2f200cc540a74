"""Read run folders, and merge those of the same measurement into one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import orjson

from stepspec.orchestrator.errors import ConfigurationError

from ..evaluation import PROBLEMS, RUN, SAMPLES, TRACES
from ..results import usual_baseline
from ..runner import trace_name
from ..sample import Arm, Sample
from ..store import JsonlStore, Place, SampleStore

Record: TypeAlias = Mapping[str, Any]

OWN_CHECK = "a check of the benchmark"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """
    One run folder: *about* is the header of its samples file, *record* its provenance, *done* its
    samples.
    """

    path: Path
    about: Record
    record: Record
    problems: tuple[str, ...]
    metrics: tuple[str, ...]  # how answers are graded
    arms: tuple[Arm, ...]
    done: Mapping[Place, Sample]


@dataclass(frozen=True, slots=True)
class Run:
    """
    One measurement: folders with the same problems, models, sampling and budget, and possibly
    different arms.

    If two folders have the same sample, that of the first folder counts.
    """

    folders: tuple[RunFolder, ...]

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
    def problems(self) -> tuple[str, ...]:
        return max((folder.problems for folder in self.folders), key=len)

    @property
    def baseline(self) -> str:
        """The arm that the run was measured against."""
        return self.folders[0].record.get("baseline") or usual_baseline(self.arms)

    @property
    def arms(self) -> tuple[Arm, ...]:
        return tuple({arm.name: arm for folder in self.folders for arm in folder.arms}.values())

    @property
    def done(self) -> Mapping[Place, Sample]:
        return {
            place: sample
            for folder in reversed(self.folders)
            for place, sample in folder.done.items()
        }

    def trace(self, number: int, sample: Sample) -> Path | None:
        """
        Return the path of the trace of *sample*, whose number is *number*; None if the trace was
        not kept.
        """
        home = next(folder for folder in self.folders if (number, sample.arm) in folder.done)
        path = home.path / TRACES / trace_name(number, sample.arm)
        return path if path.is_file() else None


def read_folder(path: Path) -> RunFolder:
    """Read the run folder at *path*. Raise `ConfigurationError` if *path* is not a run folder."""
    header = JsonlStore.about(path / SAMPLES)
    about: Record = cast("Record", header) if isinstance(header, dict) else {}
    if "arms" not in about:
        raise ConfigurationError(
            f"no run in {path}: expected a folder of `stepspec eval`, with a file {SAMPLES}"
        )
    try:
        arms = tuple(map(Arm.from_record, about["arms"]))
        record = orjson.loads((path / RUN).read_bytes())
        lines = map(orjson.loads, (path / PROBLEMS).read_bytes().splitlines())
        problems, metrics = zip(
            *((line["problem"], line.get("metric", OWN_CHECK)) for line in lines), strict=True
        )
    except OSError as exc:
        raise ConfigurationError(
            f"{exc.filename}: {exc.strerror}; run `stepspec eval` to write it again"
        ) from exc
    except (KeyError, TypeError, ValueError, ConfigurationError) as exc:
        raise ConfigurationError(f"{path} is not a run folder of this version: {exc}") from exc
    return RunFolder(
        path,
        about,
        record,
        problems,
        tuple(sorted(set(metrics))),
        arms,
        SampleStore(path / SAMPLES, about).done,
    )


def merge_folders(folders: Sequence[RunFolder]) -> list[Run]:
    """
    Merge the folders of the same measurement into one run, in the order of *folders*; see
    `_mergeable`.
    """
    runs: list[list[RunFolder]] = []
    for folder in folders:
        home = next((run for run in runs if all(_mergeable(folder, other) for other in run)), None)
        if home is None:
            runs.append([folder])
        else:
            home.append(folder)
    return [Run(tuple(run)) for run in runs]


def _mergeable(a: RunFolder, b: RunFolder) -> bool:
    """
    Whether both folders measured the same problems in the same way, and arms of the same name are
    equal.
    """
    keys = (a.about.keys() | b.about.keys()) - {"arms"}
    arms = {arm.name: arm for arm in b.arms}
    same = all(a.about.get(key) == b.about.get(key) for key in keys)
    return same and all(arms.get(arm.name, arm) == arm for arm in a.arms)
