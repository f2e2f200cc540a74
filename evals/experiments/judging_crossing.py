"""
Calculate from how many requests at once on a verdict takes more of a server's time than writing the step.

A verdict reads the step, which the large model has to read in any case before it can write on, and a question. Alone, a
verdict takes one pass, and the step one for each of its tokens. The more requests share a pass, the less a pass counts
and the more its tokens, of which a verdict has more than the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from rich.table import Table

from stepspec.orchestrator.interfaces import Model, Policy
from stepspec.policies import make

from ..simulation.costs import ServerCosts

GROUP = 4  # steps for which one question is asked, by those ways that ask less often
MOST = 1024  # requests at once, up to which the curves are compared
# Tokens of a question with the turns around it, in the vocabulary of Qwen3 with its chat template.
QWEN3 = {"after": 69, "several": 87}


@dataclass(frozen=True, slots=True)
class Way:
    """
    A way to judge: one verdict for *group* steps, by the *policy* with its *options*; *draft* steps are one draft.

    Besides the steps, a verdict reads a question, called *question* in `QWEN3`; "" for none.
    """

    name: str
    policy: str
    options: Mapping[str, Any]
    question: str
    group: int = 1
    draft: int = 1

    def make(self, model: Model) -> Policy:
        return make(self.policy, model, model, **self.options)


ANY = {"threshold": 0, "sure": 0}  # every verdict accepts
WAYS = (
    Way("as in the paper", "specreason", ANY, "after"),
    Way(f"judge_every: {GROUP}", "specreason", {**ANY, "judge_every": GROUP}, "several", GROUP, GROUP),
    Way("BiLD's score", "bild", {"scale": "step", "rollback": 1000}, ""),
)


@dataclass(frozen=True, slots=True)
class Crossing:
    """
    From how many requests *at_once* on judging a step takes at least as long as writing it; None: never up to `MOST`.

    *read* is the number of tokens that are read for each step. *at_80* is the same for 80% of the time of writing:
    where a fifth of the drafts is rejected, the large model then spends as much on verdicts and repairs as on writing
    every step itself. *limit* is judging over writing for ever more requests; None if writing then costs nothing.
    """

    way: str
    read: float
    at_once: int | None
    at_80: int | None
    limit: float | None


def writing(costs: ServerCosts, tokens: float, at_once: int) -> float:
    """Seconds of the server for each step of *tokens* tokens, if *at_once* chains write at the same time."""
    return tokens * costs.seconds(at_once) / at_once / costs.written


def judging(costs: ServerCosts, read: float, group: int, at_once: int) -> float:
    """Seconds of the server for each step, if *at_once* verdicts on *group* steps each are read at the same time."""
    prompts = ceil(read * group * at_once)
    passes = ceil(prompts / costs.tokens)
    return (passes * costs.per_pass + prompts * costs.per_prompt_token) / (group * at_once)


def crossing(way: Way, costs: ServerCosts, tokens: float, read: float) -> Crossing:
    """Compare judging with writing for steps of *tokens* tokens, for each of which *read* tokens are read."""

    def reached(share: float) -> int | None:
        loads = range(1, MOST + 1)
        slower = (n for n in loads if judging(costs, read, way.group, n) >= share * writing(costs, tokens, n))
        return next(slower, None)

    written = tokens * costs.per_sequence / costs.written
    return Crossing(
        way.name, read, reached(1), reached(0.8), read * costs.per_prompt_token / written if written else None
    )


def crossings(costs: ServerCosts, tokens: float, read: Mapping[str, float]) -> list[Crossing]:
    """Where the curves cross for each of `WAYS` that *read* has the tokens of."""
    return [crossing(way, costs, tokens, read[way.name]) for way in WAYS if way.name in read]


def even(per_pass: float, per_token: float) -> ServerCosts:
    """The costs of a server that reads a token in the same time as it writes one, besides the time of a pass."""
    return ServerCosts(per_pass, per_token, per_token, sequences=MOST)


def qwen3_reads(tokens: float) -> dict[str, float]:
    """Tokens read for each step of *tokens* tokens, in Qwen3's vocabulary and chat template."""
    return {way.name: tokens + QWEN3.get(way.question, 0) / way.group for way in WAYS}


def table(found: Sequence[Crossing]) -> Table:
    """A table with one row for each way; `small_print` explains the columns."""
    rendered = Table(box=None, padding=(0, 1, 0, 0))
    for column in ("", "read a step", "as much at", "80% at", "in the limit"):
        rendered.add_column(column, justify="right" if column else "left", no_wrap=True)
    for one in found:
        loads = (f"over {MOST}" if load is None else str(load) for load in (one.at_once, one.at_80))
        rendered.add_row(one.way, f"{one.read:.0f}", *loads, "" if one.limit is None else f"{one.limit:.2f}")
    return rendered


def small_print(costs: ServerCosts, tokens: float) -> str:
    """Explain the columns of `table`."""
    return (
        f"Calculated, for {1e3 * costs.per_pass:g} ms a pass and {1e6 * costs.per_prompt_token:g} us a token, read or "
        f"written, and steps of {tokens:.0f} tokens. Read a step: tokens that are read for each step. As much at: from "
        "so many requests at once on, judging a step takes the large model's server as long as writing it. 80% at: at "
        "least 80% as long; if a fifth of the drafts is rejected, verdicts and repairs together then take as long as "
        "writing everything. In the limit: judging over writing, for ever more requests. Attention to the context is "
        "left out; it makes writing slower than reading."
    )
