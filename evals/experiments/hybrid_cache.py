"""
Measure the tokens that a verdict reads again on a hybrid model, with vLLM's default cache and with the remedy.

``python -m stepspec.evals.experiments.hybrid_cache`` serves a random-weight hybrid twice on this CPU, and prints a
table. The hybrid is the large model; the drafts are worked problems, so that every arm judges the same texts. One step
in six is refused and repaired, whatever the grade: a random model's grade means nothing. Tokens are exact, seconds
are this machine's.
"""

from __future__ import annotations

import asyncio
import datetime
import platform
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import chain as joined
from itertools import islice
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Annotated

import orjson
import typer
from rich.console import Console

from stepspec.orchestrator.chain import Chain, Step
from stepspec.orchestrator.endpoints import Endpoint, VllmEndpoint
from stepspec.orchestrator.events import Called, Observer
from stepspec.orchestrator.interfaces import Model, Policy
from stepspec.orchestrator.launcher import Served, launch
from stepspec.orchestrator.launcher.up import show_progress
from stepspec.orchestrator.launcher.vllm_flags import HYBRID_FLAGS
from stepspec.policies import BiLD, SpecReason

from ..command_line import script
from ..testbed.problems import generate, worked_steps
from ..testbed.random_models import hybrid_server, make_hybrid

EXAMPLES = """
Examples:

  python -m stepspec.evals.experiments.hybrid_cache                # two servers on this CPU, two minutes

  python -m stepspec.evals.experiments.hybrid_cache --refuse-every 0 --json > accepted.json    # no step is refused
"""
SEED = 2026  # of the texts
STEPS = 60
REFUSE_EVERY = 6  # steps; 0: none is refused
REPAIR = 16  # tokens of a repair, which is thrown away: the chain goes on with the same text in every arm
EVERY = 4  # steps judged at once
METHODS = {"specreason": 1, f"specreason, judge_every={EVERY}": EVERY, "bild": 1}  # and the steps of their drafts
DEFAULT, FLAGS, CURED = "default", "flags alone", "cure"
COLUMNS = ("server", "method", "verdicts", "tokens each", "most", "per step", "vs default", "per repair", "seconds")


@dataclass(frozen=True, slots=True)
class VerdictCost:
    """
    What *verdicts* on *steps* steps cost on one *server* by one *method*.

    *read* and *most* are the prompt tokens that one verdict read because they were not cached, in the mean and at the
    most; *total* is their sum, *repair* their mean for a repair. *seconds* is the median time of a verdict.
    """

    server: str
    method: str
    verdicts: int
    steps: int
    read: float
    most: int
    total: int
    repair: float
    seconds: float


@dataclass(slots=True)
class CacheArm:
    """One method on one server, and its place in the texts."""

    server: str
    method: str
    policy: Policy
    large: Model
    events: list[Called]
    chain: Chain
    group: int = 1
    place: int = 0
    verdicts: list[list[Called]] = field(default_factory=list[list[Called]])
    repairs: list[Called] = field(default_factory=list[Called])

    async def judge(self, texts: Sequence[str], refuse_every: int) -> None:
        """Judge the next draft; where a step of it is refused, have it repaired, and go on behind it."""
        drafts = texts[self.place : self.place + self.group]
        numbers = range(self.place + 1, self.place + len(drafts) + 1)
        refused = next((at for at, n in enumerate(numbers) if refuse_every and n % refuse_every == 0), None)
        self.events.clear()
        await self.policy.verify(self.chain, Step("".join(drafts), "small"))
        self.verdicts.append([*self.events])
        stands = len(drafts) if refused is None else refused
        for text in drafts[:stands]:
            self.chain = self.chain.extend(Step(text, "small"))
        self.place += stands
        if refused is not None:
            self.events.clear()
            await self.large.write(self.chain, limit=REPAIR)
            self.repairs += self.events
            self.chain = self.chain.extend(Step(drafts[refused], "large"))
            self.place += 1

    def cost(self, steps: int) -> VerdictCost:
        read = [sum(call.prompt - call.cached for call in calls) for calls in self.verdicts]
        seconds = [sum(call.seconds for call in calls) for calls in self.verdicts]
        repair = mean([call.prompt - call.cached for call in self.repairs] or [0])
        return VerdictCost(
            self.server,
            self.method,
            len(read),
            steps,
            mean(read),
            max(read),
            sum(read),
            repair,
            median(seconds),
        )


async def measure(
    plain: Served, cured: Served, steps: int = STEPS, refuse_every: int = REFUSE_EVERY
) -> list[VerdictCost]:
    """Judge the same *steps* steps in every arm, in turns, on a server with the default cache and on a *cured* one."""
    texts = [*islice(joined.from_iterable(map(worked_steps, generate(SEED, "test"))), steps)]
    async with AsyncExitStack() as stack:
        arms: list[CacheArm] = []
        for name, served in ((DEFAULT, plain), (FLAGS, cured), (CURED, cured)):
            settings = Endpoint(role="large", url=served.base_url, model=served.served_name, suffix_scoring=True)
            endpoint = await stack.enter_async_context(VllmEndpoint(settings))
            await endpoint.capabilities()
            if name == FLAGS and endpoint.cache is not None:
                endpoint.cache = replace(endpoint.cache, unit=None)  # Then no chain is sent along with a question.
            arms += _arms(name, endpoint, len(arms))
        while unfinished := [arm for arm in arms if arm.place < steps]:
            for arm in unfinished:
                await arm.judge(texts, refuse_every)
    return [arm.cost(steps) for arm in arms]


def _arms(name: str, endpoint: VllmEndpoint, before: int) -> list[CacheArm]:
    """The methods on one server; each has a problem of its own, of the same length, so that no two share a prefix."""
    made: list[CacheArm] = []
    for place in range(3):
        events: list[Called] = []
        model = endpoint.model(observe=_calls(events))
        policy, method, group = (
            (SpecReason(model, model, threshold=0, sure=0), "specreason", 1),
            (
                SpecReason(model, model, threshold=0, sure=0, judge_every=EVERY),
                f"specreason, judge_every={EVERY}",
                EVERY,
            ),
            (BiLD(model, model, rollback=1000, scale="step"), "bild", 1),
        )[place]
        problem = Chain.of(f"Problem {100 + before + place}. How many are left in the end?")
        made.append(CacheArm(name, method, policy, model, events, problem, group))
    return made


def _calls(events: list[Called]) -> Observer:
    return lambda event: events.append(event) if isinstance(event, Called) else None


def table(costs: Sequence[VerdictCost]) -> str:
    """The costs as a Markdown table; *vs default* compares what is read with one step at a time on that server."""
    default = {_one_at_a_time(cost.method): cost.total for cost in reversed(costs) if cost.server == DEFAULT}
    rows = [COLUMNS, ("---", "---", *["--:"] * (len(COLUMNS) - 2))]
    rows += [
        (
            cost.server,
            cost.method,
            str(cost.verdicts),
            f"{cost.read:.0f}",
            str(cost.most),
            f"{cost.total / cost.steps:.0f}",
            f"{cost.total / default[_one_at_a_time(cost.method)]:.2f}",
            f"{cost.repair:.0f}",
            f"{cost.seconds:.3f}",
        )
        for cost in costs
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _one_at_a_time(method: str) -> str:
    return method.partition(",")[0]


async def run(steps: int, refuse_every: int, console: Console) -> list[VerdictCost]:
    """Build the hybrid, serve it twice, and measure."""
    with TemporaryDirectory(prefix="stepspec-hybrid-") as folder:
        model = make_hybrid(Path(folder) / "model")
        servers = [hybrid_server(model, "plain"), hybrid_server(model, "cured", HYBRID_FLAGS)]
        async with AsyncExitStack() as stack:
            with show_progress(console) as tell:
                served = await stack.enter_async_context(launch(servers, on_progress=tell))
            return await measure(served["plain"], served["cured"], steps, refuse_every)


def main(
    steps: Annotated[int, typer.Option(min=12, max=100, help="Steps that every arm judges.")] = STEPS,
    refuse_every: Annotated[
        int, typer.Option(min=0, help="Every so many steps one is refused; 0: none.")
    ] = REFUSE_EVERY,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Measure what a verdict reads again on a hybrid model, by default and with the cure."""
    costs = asyncio.run(run(steps, refuse_every, Console(stderr=True)))
    if json:
        about = {"date": str(datetime.date.today()), "machine": platform.machine()}
        print(orjson.dumps({**about, "costs": [asdict(cost) for cost in costs]}).decode())
    else:
        command = f"python -m stepspec.evals.experiments.hybrid_cache --steps {steps} --refuse-every {refuse_every}"
        print(table(costs))
        print(f"\n{datetime.date.today()}, {platform.machine()}: {command}")


if __name__ == "__main__":
    script(main, EXAMPLES)
