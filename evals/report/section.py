"""One run as a report shows it: every figure, the remarks that belong to them, and where they come from."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stepspec.orchestrator.errors import ConfigurationError

from .cases import Cases, cases
from .figures import Counted, Figures, counted, figures, numbered
from .judging import Judge, judge, verdicts
from .prices import Cost, Prices, costs
from .run_folder import Run

MINIATURE = "testbed-"  # how the names of the miniature pair's models begin


@dataclass(frozen=True, slots=True)
class Section:
    """The figures of one *run*, priced by *prices*."""

    run: Run
    figures: tuple[Figures, ...]
    judges: tuple[Judge, ...]
    counted: tuple[Counted, ...]
    prices: Prices
    costs: tuple[Cost, ...]
    cases: Cases

    @property
    def title(self) -> str:
        return str(self.run.about["benchmark"])

    @property
    def problems(self) -> int:
        """How many problems all arms have solved as often as wanted: those that figures are about."""
        return self.figures[0].standing.result.n // self.run.repeats

    @property
    def dates(self) -> str:
        days = sorted({session["date"][:10] for session in self.run.sessions})
        return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"

    @property
    def models(self) -> dict[str, str]:
        return dict(self.run.about["models"])

    @property
    def commands(self) -> list[str]:
        """What was typed, each command once."""
        return list(dict.fromkeys(shlex.join(session["command"]) for session in self.run.sessions))

    @property
    def miniature(self) -> bool:
        return all(name.startswith(MINIATURE) for name in self.models.values())

    @property
    def stamp(self) -> str:
        """What no figure may stand without."""
        each = "" if self.run.repeats == 1 else f" x {self.run.repeats} samples"
        pair = " (the miniature pair)" if self.miniature else ""
        models = f"{self.models['large']} with {self.models['small']}{pair}"
        return f"{self.title}, n = {self.problems}{each}; {models}; {self.dates}"

    @property
    def remarks(self) -> list[str]:
        """What limits the figures of this run."""
        said = [_miniature(self.commands)] if self.miniature else []
        wanted, concurrency = len(self.run.tasks), int(self.run.about["concurrency"])
        if self.problems < wanted:
            said.append(
                f"Unfinished: {self.problems} of {wanted} problems were solved by all arms, and only these count. "
                "The same `stepspec eval` goes on from here."
            )
        if concurrency > 1:
            said.append(
                f"{concurrency} runs went on at the same time: seconds are those under that load, and GPU-seconds an "
                "upper bound, for requests of different runs shared the servers."
            )
        if len(self.run.folders) > 1:
            said.append(
                f"Put together from {len(self.run.folders)} run folders: arms that were not measured in the same one "
                "are not interleaved, and drift between the runs is in their ratios."
            )
        if half := self.run.about.get("half"):
            said.append(f"Only the half of the benchmark that is kept for the {half} was used.")
        beside = [remark for session in self.run.sessions for remark in session.get("remarks", ())]
        return [*said, *dict.fromkeys(beside)]


def _miniature(commands: list[str]) -> str:
    words = [word for command in commands for word in shlex.split(command)]
    told = words[words.index("--profile") + 1] if "--profile" in words[:-1] else "paced"
    profile = f" (profile `{told}`)" if "--testbed" in words else ""
    return (
        "The miniature pair: two models of 0.1 and 1.3 million parameters, trained on arithmetic, served by real "
        f"vLLM on a CPU; only the cost of a forward pass is set{profile}, to have the shape of a GPU's. Figures say "
        "what the machinery costs and how methods compare where the judge is good, and nothing about any real pair of "
        "models."
    )


def section(run: Run, prices: Prices) -> Section:
    """Work out everything about *run*. Raise `ConfigurationError` if no problem was solved by all of its arms."""
    found = figures(run.done, run.arms, run.repeats)
    if not found:
        names = ", ".join(str(folder.path) for folder in run.folders)
        raise ConfigurationError(f"{names}: no problem was solved by all arms yet; go on with the same `stepspec eval`")
    samples = numbered(run.done, run.arms, run.repeats)
    judges = (
        judge(arm.name, arm.policy, samples[arm.name], verdicts(run, samples[arm.name]), run.repeats)
        for arm in run.arms
    )
    return Section(
        run,
        tuple(found),
        tuple(one for one in judges if one is not None),
        tuple(counted(run.sessions)),
        prices,
        tuple(costs(found, prices)),
        cases(found, samples, run.repeats),
    )


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
