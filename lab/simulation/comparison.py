"""Simulate what a load measured, problem by problem, and compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import orjson

from lab.crowd import TWO_LARGE, Block, BlockPlace, BlockStore, Load
from lab.simulation.figures import Servers, simulate_block
from lab.virtual_clock import run
from stepspec.evals.sample import Arm
from stepspec.evals.store import JsonlStore
from stepspec.orchestrator.errors import ConfigurationError

NEAR = 0.1  # a simulated time that differs by less from the measured one reproduces it
BLOCKS = ".blocks.jsonl"
QUANTITIES = ("mean", "first step", "answer at")


@dataclass(frozen=True, slots=True)
class Comparison:
    """
    One arm under one load: the seconds of *n* problems, measured and simulated, by the names of `QUANTITIES`.

    "mean" is from a problem's arrival to its answer, "first step" to the first verified step, and "answer at" to the
    first text of the answer, all of them means; a quantity that was not measured is left out.
    """

    name: str
    load: str
    n: int
    measured: Mapping[str, float]
    simulated: Mapping[str, float]

    @property
    def ratios(self) -> Mapping[str, float]:
        """Simulated over measured."""
        return {name: self.simulated[name] / seconds for name, seconds in self.measured.items() if seconds > 0}

    @property
    def near(self) -> bool:
        """Whether the simulated time of a problem is within `NEAR` of the measured one."""
        return abs(self.ratios["mean"] - 1) <= NEAR


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a load measured: its *loads*, *arms* and *blocks*, by their places, and what it is *about*."""

    loads: tuple[Load, ...]
    arms: tuple[Arm, ...]
    blocks: Mapping[BlockPlace, Block]
    about: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Measurement:
        """Read a file of blocks, or the one beside the figures at *path*. Raise `ConfigurationError` for any other."""
        stored = path if path.name.endswith(BLOCKS) else path.with_suffix(BLOCKS)
        about = JsonlStore.about(stored)
        try:
            lines = [orjson.loads(line) for line in stored.read_bytes().splitlines()[1:]]
            loads = dict.fromkeys(Load(int(line["load"].split()[0])) for line in lines)
            arms = {line["arm"]["name"]: Arm.from_record(line["arm"]) for line in lines}
        except (OSError, KeyError, TypeError, ValueError) as exc:
            raise ConfigurationError(f"{stored}: no blocks of a load, which `lab.load` writes ({exc})") from exc
        done = BlockStore(stored, about, list(arms.values())).done
        if not any(timing.script for block in done.values() for timing in block.timings):
            raise ConfigurationError(f"{stored}: no problem has a script: measure again, with this version")
        return cls(tuple(loads), tuple(arms.values()), done, about)


def compare(
    measurement: Measurement, servers: Servers, on_block: Callable[[], object] = lambda: None
) -> list[Comparison]:
    """Simulate every block of *measurement* on *servers*; problems that have no solution are left out."""
    found: list[Comparison] = []
    for load, arm in product(measurement.loads, measurement.arms):
        places = sorted(place for place in measurement.blocks if place[:2] == (load.name, arm.name))
        pairs: list[tuple[Block, Block]] = []
        for place in places:
            pairs.append(_simulated(measurement, load, arm, place, servers))
            on_block()
        if any(ours.timings for ours, _ in pairs):
            found.append(_compared(load, arm, pairs))
    return found


def _simulated(
    measurement: Measurement, load: Load, arm: Arm, place: BlockPlace, servers: Servers
) -> tuple[Block, Block]:
    """The measured block at *place*, of the problems that were solved, and the same block simulated."""
    block = measurement.blocks[place]
    solved = [timing for timing in block.timings if timing.script is not None]
    scripts = [timing.script for timing in solved if timing.script is not None]
    started = Servers(servers.small, servers.large, {"large": 2 if arm.name == TWO_LARGE.name else 1}).start()
    work = simulate_block(load, arm, scripts, scripts, started, seed=measurement.about["seed"], block=place[2])
    simulated = run(work)[0] if scripts else Block((), 0.0)
    return Block(tuple(solved), block.seconds), simulated


def _compared(load: Load, arm: Arm, pairs: Sequence[tuple[Block, Block]]) -> Comparison:
    measured, simulated = ([timing for pair in pairs for timing in pair[side].timings] for side in (0, 1))
    sums: list[dict[str, float]] = []
    for timings in (measured, simulated):
        values = {
            "mean": [timing.latency for timing in timings],
            "first step": [timing.first_step for timing in timings if timing.first_step is not None],
            "answer at": [timing.first_answer for timing in timings if timing.first_answer is not None],
        }
        sums.append({name: fmean(values[name]) for name in QUANTITIES if values[name]})
    ours, theirs = sums
    return Comparison(arm.name, load.name, len(measured), {name: ours[name] for name in ours if name in theirs}, theirs)
