"""
Token-level speculation underneath: the large model alone and SpecReason, each without and with it, in one measurement.

A server cannot change how it drafts, so the pair is started once for each method, on the same problems.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from rich.console import Console

from .arms import LARGE, SHIPPED, Arm, Result, Sample, Task, measure, summarise
from .samples import Samples
from .testbed.progress import counting
from .testbed.servers import SPECULATIONS
from .testbed.solving_pair import pair_solver
from .testbed.tasks import fresh

OVER = (LARGE, SHIPPED)
WARM_UP = 2  # problems

SMALL_PRINT = (
    "With ngram, both servers draft from what was written before; with draft_model, the small model drafts for the "
    "large one as well, within its server, each of its passes at the small model's pace. Tokens of a role: the share "
    "of the drafted tokens that its model accepted, and the tokens that a pass with a draft gave, its own included."
)


def arms(method: str) -> tuple[Arm, ...]:
    """The arms that are measured over *method*; without one, they have their usual names."""
    return OVER if method == "none" else tuple(replace(arm, name=f"{arm.name} + {method}") for arm in OVER)


def described() -> dict[str, object]:
    """What the servers are told, so that samples of other settings are not taken for these."""
    return {
        method: {role: one.configuration("small") for role, one in speculation.items()}
        for method, speculation in SPECULATIONS.items()
    }


async def stacked(problems: int, profile: str, seed: int, samples: Samples, console: Console) -> list[Result]:
    """Measure every method's arms on the same fresh problems; what *samples* have is not run again."""
    tasks, chosen = fresh(problems, seed), {method: arms(method) for method in SPECULATIONS}
    with samples:
        for method, over in chosen.items():
            if left := missing(over, tasks, samples):
                speculation = SPECULATIONS[method]
                pair = pair_solver(profile, console, over, seed + 1, problems=WARM_UP, speculation=speculation)
                async with pair as solver:
                    with counting(console) as progress:
                        tell = partial(progress.advance, progress.add_task(method, total=left))
                        await measure(solver, over, tasks, on_sample=_keeping(samples, tell), done=samples.done)
    every = [arm for over in chosen.values() for arm in over]
    return summarise([samples.done[number, arm.name] for number in range(len(tasks)) for arm in every], every)


def missing(chosen: Sequence[Arm], tasks: Sequence[Task], samples: Samples) -> int:
    """How many samples of *chosen* are still to be measured."""
    return sum((number, arm.name) not in samples.done for number in range(len(tasks)) for arm in chosen)


def _keeping(samples: Samples, tell: Callable[[], None]) -> Callable[[int, Sample], None]:
    def keep(number: int, sample: Sample) -> None:
        samples.add(number, sample)
        tell()

    return keep
