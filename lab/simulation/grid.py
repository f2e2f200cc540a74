"""Simulate pairs on GPUs of published figures, with any number of users and any accept rate."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from lab.script import Script, Turn
from lab.simulation.costs import ServerCosts
from lab.simulation.figures import Figures, simulate, start_servers
from lab.specreason_log import draw_lengths, draw_quality
from stepspec.evals.arms import LARGE
from stepspec.evals.sample import Arm
from stepspec.orchestrator.errors import ConfigurationError

GPUS = Path(__file__).with_name("gpus.toml")
# of accepted drafts, between which the break-even point is interpolated
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
APART = 9  # mean tokens between two at which the models differ, in a step that is rejected
CLOSE = Turn(1, 1, author="large", stop="end", ends=True)


def accepted_turn(tokens: int) -> Turn:
    """Return a step whose draft of *tokens* tokens is accepted."""
    return Turn(tokens, tokens, grade=9.0)


def rejected_turn(tokens: int, repair: int, later: tuple[int, ...] = ()) -> Turn:
    """Return a step whose draft is rejected, and repaired with *repair* tokens."""
    return Turn(tokens, 0, repair, 0.0, later=later)


def draw_differences(drawn: random.Random, tokens: int) -> tuple[int, ...]:
    """Draw the places after the first one, of so many *tokens*, at which the models differ."""
    places: list[int] = []
    place = 1 + int(drawn.expovariate(1 / APART))
    while place < tokens:
        places.append(place)
        place += 1 + int(drawn.expovariate(1 / APART))
    return tuple(places)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two servers and their cards."""

    name: str
    """The name in the file."""
    small: ServerCosts
    """The costs of the small model's server."""
    large: ServerCosts
    """The costs of the large model's server."""
    small_cards: int
    """The cards of the small model's server."""
    large_cards: int
    """The cards of the large model's server."""
    shared: bool = False
    """Whether both servers run on the cards of the large model."""

    def cards(self, arm: Arm) -> int:
        """Return the cards that *arm* uses. The large model alone has its own cards only."""
        if self.shared or arm.policy == LARGE.policy:
            return self.large_cards
        return self.large_cards + self.small_cards


def read_pairs(path: Path = GPUS) -> dict[str, Pair]:
    """
    Read the pairs of a file like ``gpus.toml``.

    Raise `ConfigurationError` if the file is incomplete or wrong.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        cards = {name: table.pop("cards") for name, table in tables["servers"].items()}
        costs = {name: ServerCosts(**table) for name, table in tables["servers"].items()}
        found = {
            name: Pair(
                name=name,
                small=costs[pair["small"]],
                large=costs[pair["large"]],
                small_cards=cards[pair["small"]],
                large_cards=cards[pair["large"]],
                shared=pair.get("shared", False),
            )
            for name, pair in tables["pairs"].items()
        }
    except (OSError, KeyError, TypeError, ValueError) as exc:
        raise ConfigurationError(
            f"{path}: not the costs of servers and their pairs ({exc})",
        ) from exc
    return found


def find_pair(path: Path, name: str) -> Pair:
    """Read the pair *name*. Raise `ConfigurationError` if the file has no such pair."""
    found = read_pairs(path)
    if name not in found:
        raise ConfigurationError(
            f"there is no pair {name!r} in {path.name}; there are: {', '.join(found)}",
        )
    return found[name]


@dataclass(frozen=True, slots=True)
class Chains:
    """
    Problems to simulate, with steps and verdicts as in the logged runs of SpecReason.

    The answer is one more step, which is accepted. The large model mends a rejected draft with as
    many tokens as the draft has. A method of short drafts meets tokens at which the models differ
    all through such a step.
    """

    steps: int = 40
    """Steps of a chain, without its answer."""
    tokens: int = 100
    """Mean tokens of a step."""
    prompt: int = 200
    """Tokens of the problem."""
    question: int = 80
    """Tokens of a judge's question."""
    seed: int = 0
    """Seed of the verdicts and of the lengths."""

    def scripts(self, accepted: float, count: int = 16) -> list[Script]:
        """
        Draw *count* problems, of whose drafts the share *accepted* is good.

        The drafts that are good at one share are good at every higher one.
        """
        drawn = random.Random(self.seed)
        return [
            Script(
                self.prompt,
                self._turns(drawn, accepted),
                self.question,
            )
            for _ in range(count)
        ]

    def _turns(self, drawn: random.Random, accepted: float) -> tuple[Turn, ...]:
        quality = draw_quality(drawn, self.steps)
        best_first = sorted(range(self.steps), key=lambda step: -quality[step])
        good = set(best_first[: round(accepted * self.steps)])
        lengths = draw_lengths(drawn, self.steps, self.tokens)
        thinking: list[Turn] = []
        for step, tokens in enumerate(lengths):
            later = draw_differences(random.Random(quality[step]), tokens)
            bad = rejected_turn(tokens, repair=tokens, later=later)
            thinking.append(accepted_turn(tokens) if step in good else bad)
        answer = replace(accepted_turn(self.tokens), stop="end", ends=True)
        return (*thinking, CLOSE, answer)


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulated arm under one load."""

    pair: str
    """The name of the pair."""
    name: str
    """The name of the arm."""
    users: int
    """Problems at the same time."""
    accepted: float
    """The share of the drafts that is accepted."""
    cards: int
    """The cards of the arm."""
    figures: Figures
    """The simulated figures."""

    @property
    def hourly(self) -> float:
        """Problems an hour and card."""
        return 3600 * self.figures.problems_per_second / self.cards


def simulate_cell(
    pair: Pair,
    arm: Arm,
    users: int,
    chains: Chains,
    accepted: float,
    problems: int,
) -> Cell:
    """Simulate *problems* counted problems."""
    shared = pair.shared and arm.policy != LARGE.policy
    servers = start_servers(pair.small, pair.large, shared=shared)
    scripts = chains.scripts(accepted)
    figures = simulate(
        users,
        arm,
        scripts,
        servers,
        problems=problems,
        seed=chains.seed,
    )
    return Cell(
        pair.name,
        arm.name,
        users,
        accepted,
        pair.cards(arm),
        figures,
    )


def slower(costs: ServerCosts, ratio: float) -> ServerCosts:
    """Return the costs of a model that is *ratio* times as fast as one with *costs*."""
    return replace(
        costs,
        per_pass=costs.per_pass / ratio,
        per_sequence=costs.per_sequence / ratio,
        per_prompt_token=costs.per_prompt_token / ratio,
        per_context_token=costs.per_context_token / ratio,
    )


def break_even(
    pair: Pair,
    arm: Arm,
    speed: float,
    users: int,
    chains: Chains,
    problems: int,
) -> dict[float, float]:
    """
    Simulate *arm* with a small model that is *speed* times as fast as the pair's large model.

    Return the time of *arm* over that of the large model alone, by the share of accepted drafts.
    """
    scaled = replace(pair, small=slower(pair.large, speed))
    alone = simulate_cell(
        scaled,
        LARGE,
        users,
        chains,
        1.0,
        problems,
    ).figures.mean
    return {
        share: simulate_cell(
            scaled,
            arm,
            users,
            chains,
            share,
            problems,
        ).figures.mean
        / alone
        for share in SHARES
    }


def plain(cell: Cell) -> dict[str, Any]:
    """Return the figures of *cell* as one table of numbers, for a file."""
    figures = cell.figures
    about = asdict(cell)
    del about["figures"]
    return {
        **about,
        "n": figures.n,
        "mean": figures.mean,
        **figures.seconds,
        "first_step": figures.first_step,
        "problems_per_hour_and_card": cell.hourly,
    }


def crossing(ratios: Mapping[float, float]) -> float | None:
    """
    Return the least accept rate from which on the ratio of the times is at most 1.

    Return None if the ratio is above 1 at the highest rate.
    """
    places = sorted(ratios, reverse=True)
    if ratios[places[0]] > 1:
        return None
    for high, low in pairwise(places):
        if ratios[low] > 1:
            return low + (high - low) * (ratios[low] - 1) / (ratios[low] - ratios[high])
    return places[-1]
