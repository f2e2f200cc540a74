"""Three or four scripted models, the cheaper ones nested, with texts drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from stepspec.orchestrator import Budget, Chain, Model, Policy, Token, reason
from stepspec.orchestrator.budget import Budgeted
from stepspec.orchestrator.chain import DELIMITER, THINK_END, Role
from stepspec.orchestrator.endpoints.interfaces import RunModel
from stepspec.orchestrator.events import Event, Observer
from stepspec.orchestrator.nesting import Nested, observe_within
from stepspec.orchestrator.reason import End

from ...fakes import Previous, ScriptedModel
from ..arms import PROBLEM, build, quarters, taste

OUTER = (
    "specreason",
    "cascade",
    "bild",
    "reflective",
    "keeping",
    "relay",
    "lookahead-reasoning",
    "small",
)
INNER = ("specreason", "bild", "keeping", "lookahead-reasoning", "glimpse", "cascade", "small")


@dataclass
class Family:
    """
    A policy over a nested pair and a large model, and everything that is under it, the cheapest
    first.
    """

    policy: Policy
    pair: Nested
    models: Sequence[ScriptedModel]
    budget: Budget
    events: list[Event] = field(default_factory=lambda: list[Event]())

    async def run(self, ahead: int = 0, deadline: float | None = None) -> tuple[Chain, End]:
        """Run the loop; nothing may be open after it, however it ends."""
        try:
            return await reason(
                self.policy,
                PROBLEM,
                ahead=ahead,
                spent=self.budget.spent,
                deadline=deadline,
                observe=self.events.append,
            )
        finally:
            assert [model.open for model in self.models] == [0] * len(self.models), (
                "requests left open"
            )


def script(seed: int, name: str, length: int) -> Callable[[Previous], str]:
    """
    Paragraphs that all models often agree on; those of the cheapest one are empty, or end too soon,
    now and then.
    """

    @cache
    def say(previous: Previous) -> str:
        author = name if taste(seed, "differs", name, previous) < 0.4 else "any"
        sentence = (
            f"So {len(previous)} is {int(taste(seed, author, previous) * 100)}, as {author} one"
            " says."
        )
        if name == "0" and taste(seed, "trouble", previous) < 0.2:
            return (DELIMITER, THINK_END, sentence)[int(taste(seed, "odd", previous) * 3)]
        return sentence + (DELIMITER if len(previous) + 1 < length else f"\n{THINK_END}")

    return say


def member(seed: int, name: str, role: Role, observe: Observer, *, sticky: bool) -> ScriptedModel:
    """Make one model, called by its *name*, which tells how dear it is."""
    doubt = taste(seed, "doubt", name)

    def judge(chain: Chain, question: str) -> Mapping[str, float]:
        key = (seed, "grade", name, chain.text, question)
        bad, good = ("No", "Yes") if question.endswith("Yes or No.") else ("2", "8")
        return {bad if taste(key) < doubt / 2 else good: 1.0}

    def logprob(before: str, token: str) -> float:
        return -3.0 if taste(seed, "logprob", name, before, token) < doubt / 4 else -0.25

    def rivals(before: str, token: str) -> list[Token]:
        return [
            Token(token, logprob(before, token)),
            *[Token(f" {number}", -3.0) for number in range(5)],
        ]

    return ScriptedModel(
        role,
        script(seed, name, 2 + int(taste(seed, "length") * 5)),
        judge=judge,
        logprob=logprob,
        rivals=rivals,
        latency=lambda chain: quarters(seed, name, chain.text),
        reading=lambda chain: quarters(seed, name, "reading", chain.text),
        closing=quarters(seed, "closing") if seed % 3 == 0 else 0.0,
        sticky=sticky,
        observe=observe,
    )


def family(
    outer: str,
    *inner: str,
    seed: int = 0,
    budget: Budget | None = None,
    sticky: bool = False,
    events: list[Event] | None = None,
) -> Family:
    """
    Nest one pair for each of the policies *inner*, the cheapest first, under the policy *outer*.
    """
    budget = budget or Budget()
    events = list[Event]() if events is None else events
    observers: list[Observer] = [events.append]
    for _ in inner:
        observers.append(observe_within("small", observers[-1]))
    models = [member(seed, "0", "small", observers[-1], sticky=sticky)]
    cheap: RunModel = models[0]
    for place, name in enumerate(inner, 1):
        models.append(
            member(seed, str(place), "large", observers[len(inner) - place + 1], sticky=sticky)
        )
        made = partial(_made, name, seed)
        cheap = Nested("small", cheap, models[-1], made, observers[len(inner) - place])
    assert isinstance(cheap, Nested)
    pair = cheap.budgeted(budget.left)
    large = member(seed, str(len(models)), "large", observers[0], sticky=sticky)
    policy = build(outer, Budgeted(pair, budget.left), Budgeted(large, budget.left), seed)
    return Family(policy, pair, [*models, large], budget, events)


def _made(name: str, seed: int, small: Model, large: Model) -> Policy:
    return build(name, small, large, seed)
