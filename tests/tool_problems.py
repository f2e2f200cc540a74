"""
Problems that need tools: a `lookup` of prices that no model can know, and a `calculator`.

A problem is solved in a loop of turns: the model thinks in a few short steps and calls tools, the
tools answer, until a turn has the answer instead of calls. `run_tool` implements the tools, and
`tool_loop` drives a loop with any model and grades it.
"""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from stepspec.evals.benchmarks.miniature import PEOPLE, is_held_out
from stepspec.orchestrator.errors import ConfigurationError

Kind: TypeAlias = Literal["buy", "price", "stated"]
Split: TypeAlias = Literal["train", "test"]
Message: TypeAlias = dict[str, Any]
"""A message of OpenAI's chat API."""

ITEMS = (
    "cup", "pen", "book", "lamp", "chair", "clock", "plate", "spoon", "fork", "bag", "hat",
    "shirt", "sock", "ball", "kite", "drum", "bell", "rope", "brick", "candle", "basket",
    "bucket", "mirror", "pillow", "towel", "ladder",
)  # fmt: skip
KINDS: Mapping[Kind, float] = {"buy": 0.65, "price": 0.1, "stated": 0.25}
RESULT = "result: "
AT_ONCE = "Look up all prices at once."
LARGEST = 199  # of a number: the vocabulary has one token for each
TURNS = 8  # of a loop; the longest worked one has fewer


@dataclass(frozen=True, slots=True)
class Difficulty:
    """
    The *kinds* of problems to draw from, and the least and the largest number of different *items*
    that are bought.

    Raise `ConfigurationError` for impossible ones.
    """

    kinds: tuple[Kind, ...] = ("buy", "price", "stated")
    items: tuple[int, int] = (1, 2)

    def __post_init__(self) -> None:
        if not self.kinds or not set(self.kinds) <= KINDS.keys():
            raise ConfigurationError(f"kinds {self.kinds}: one or more of {', '.join(KINDS)}")
        if not 1 <= self.items[0] <= self.items[1] <= 2:
            raise ConfigurationError(f"items {self.items}: 1 or 2, the smaller first")


DEFAULT = Difficulty()
NO_CALLS = Difficulty(("stated",))
THREE_CALLS = Difficulty(("buy",), (2, 2))  # two of which may be made at once


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the tool *name* with its one *argument*."""

    name: str
    argument: str

    @property
    def arguments(self) -> dict[str, str]:
        return {PARAMETERS[self.name]: self.argument}


PARAMETERS: Mapping[str, str] = {"lookup": "item", "calculator": "expression"}


@dataclass(frozen=True, slots=True)
class Problem:
    """
    A person buys *bought*, pairs of a number and an item, whose *prices* only the lookup knows.

    A problem of kind ``stated`` says that *money* is the price. With *at_once*, the prices are to
    be looked up in one turn.
    """

    kind: Kind
    person: str
    bought: tuple[tuple[int, str], ...]
    prices: tuple[int, ...]
    money: int = 0
    at_once: bool = False

    @property
    def pronoun(self) -> str:
        return PEOPLE[self.person]

    @property
    def catalogue(self) -> dict[str, int]:
        return {item: price for (_, item), price in zip(self.bought, self.prices, strict=True)}

    @property
    def total(self) -> int:
        return sum(
            number * price for (number, _), price in zip(self.bought, self.prices, strict=True)
        )

    @property
    def answer(self) -> int:
        match self.kind:
            case "buy":
                return self.total
            case "price":
                return self.prices[0]
            case "stated":
                return self.money

    @property
    def things(self) -> str:
        return " and ".join(f"{item} x {number}" for number, item in self.bought)

    @property
    def text(self) -> str:
        asked = f" {AT_ONCE}" if self.at_once else ""
        match self.kind:
            case "buy":
                return f"{self.person} buys {self.things}. What does {self.pronoun} pay?{asked}"
            case "price":
                return f"What does a {self.bought[0][1]} cost?"
            case "stated":
                return (
                    f"{self.person} buys {self.things} for {self.money} dollars. What does"
                    f" {self.pronoun} pay?"
                )

    @property
    def split(self) -> Split:
        return "test" if is_held_out(f"{self.text} {self.prices}") else "train"

    @property
    def calls(self) -> tuple[tuple[Call, ...], ...]:
        """The calls of each turn of the worked loop; the last turn, which answers, has none."""
        if self.kind == "stated":
            return ()
        lookups = tuple(Call("lookup", item) for _, item in self.bought)
        turns = (lookups,) if self.at_once else tuple((call,) for call in lookups)
        total = " + ".join(f"{number} * {self.catalogue[item]}" for number, item in self.bought)
        return turns if self.kind == "price" else (*turns, (Call("calculator", total),))


def generate(seed: int, split: Split, difficulty: Difficulty = DEFAULT) -> Iterator[Problem]:
    """Yield problems of one split, without end; the sequence depends on *seed* only."""
    rng = random.Random(f"tools {seed} {split}")
    while True:
        problem = draw(rng, difficulty)
        if problem.split == split:
            yield problem


def draw(rng: random.Random, difficulty: Difficulty = DEFAULT) -> Problem:
    """Draw one problem of either split."""
    while True:
        (kind,) = rng.choices(difficulty.kinds, [KINDS[kind] for kind in difficulty.kinds])
        count = 1 if kind == "price" else rng.randint(*difficulty.items)
        bought = tuple((rng.randint(1, 5), item) for item in rng.sample(ITEMS, count))
        problem = Problem(
            kind,
            rng.choice(list(PEOPLE)),
            bought if kind != "price" else ((1, bought[0][1]),),
            tuple(rng.randint(10, 50) for _ in bought),
            rng.randint(10, LARGEST) if kind == "stated" else 0,
            at_once=kind == "buy" and count > 1 and rng.random() < 0.3,
        )
        if problem.total <= LARGEST:
            return problem


def tools(*more: Message) -> list[Message]:
    """Return the tools as OpenAI's chat API takes them, with *more* after them."""
    return [
        _tool("lookup", "Look up the price of one item.", "The item, in the singular."),
        _tool("calculator", "Calculate with whole numbers.", "Such as 2 * 17 + 3 * 23."),
        *more,
    ]


def _tool(name: str, description: str, about: str) -> Message:
    parameter = PARAMETERS[name]
    schema = {"type": "object", "properties": {parameter: {"type": "string", "description": about}}}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {**schema, "required": [parameter], "additionalProperties": False},
        },
    }


def run_tool(catalogue: Mapping[str, int], name: str, arguments: Mapping[str, object]) -> str:
    """Run one of the tools. What is wrong with a call is the result, as an agent would see it."""
    if name == "lookup":
        item = str(arguments.get("item"))
        return f"{item}: {catalogue[item]}" if item in catalogue else f"there is no item {item!r}"
    if name == "calculator":
        try:
            return f"{RESULT}{calculate(str(arguments.get('expression')))}"
        except (SyntaxError, ValueError, ZeroDivisionError) as error:
            return f"this cannot be calculated: {error}"
    return f"there is no tool {name!r}"


OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: int.__add__,
    ast.Sub: int.__sub__,
    ast.Mult: int.__mul__,
    ast.FloorDiv: int.__floordiv__,
}


def calculate(expression: str) -> int:
    """
    Return the value of an *expression* of whole numbers. Raise SyntaxError or ValueError for
    another one.
    """

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"only whole numbers with + - * // are known, not {ast.unparse(node)!r}")

    return value(ast.parse(expression, mode="eval").body)


@dataclass(frozen=True, slots=True)
class Loop:
    """
    What a model did about one problem: its *calls* in each turn, and the last turn's text, empty
    without an end.
    """

    problem: Problem
    calls: tuple[tuple[Call, ...], ...]
    text: str

    @property
    def correct(self) -> bool:
        """Whether the answer is right and the tools were called as in the worked loop."""
        return self.calls == self.problem.calls and f"\\boxed{{{self.problem.answer}}}" in self.text


def tool_loop(
    problem: Problem, before: Sequence[Message] = (), *, turns: int = TURNS
) -> Generator[list[Message], Message, Loop]:
    """
    Yield the messages of each request, take the assistant's message for it, run its calls, and
    return the loop.

    The messages *before* stand before the problem. The loop ends with the first message without
    calls, with a call whose arguments are no JSON, or after so many *turns*. It waits for nothing
    itself: whoever drives it talks to the model.
    """
    messages = [*before, {"role": "user", "content": problem.text}]
    made = list[tuple[Call, ...]]()
    for _ in range(turns):
        reply = yield list(messages)
        wanted = [call["function"] for call in reply.get("tool_calls") or ()]
        if not wanted:
            return Loop(problem, tuple(made), str(reply.get("content") or ""))
        if not all(map(_is_json, wanted)):
            break
        messages.append(reply)
        made.append(tuple(_call(call) for call in wanted))
        for call in reply["tool_calls"]:
            result = run_tool(
                problem.catalogue, call["function"]["name"], _arguments(call["function"])
            )
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return Loop(problem, tuple(made), "")


def _is_json(function: Mapping[str, Any]) -> bool:
    try:
        json.loads(function["arguments"])
    except ValueError:
        return False
    return True


def _arguments(function: Mapping[str, Any]) -> Mapping[str, object]:
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return {}
    return cast("Mapping[str, object]", arguments) if isinstance(arguments, dict) else {}


def _call(function: Mapping[str, Any]) -> Call:
    arguments = _arguments(function)
    return Call(str(function["name"]), str(next(iter(arguments.values()), "")))
