"""
Check with every method that text and token ids always agree.

Real vLLM serves two models with random weights and Qwen's real vocabulary, and a reward model, on
this CPU. At temperature 1 they often write parts of characters, rare tokens and unused ids, as
trained models do once in a thousand steps. The checks of a run: it ends without an exception; the
ids of every step decode to its text; the prompt of each step begins with the prompt of the step
before, in ids, for both models; the budget holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from unicodedata import normalize

from tokenizers import Tokenizer

from stepspec.api import Solver
from stepspec.evals.testbed.servers import ENVIRONMENT, FLAGS
from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.backends.vllm.tokenizer import ModelTokenizer
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Chain, Role, Step
from stepspec.orchestrator.endpoints import CriticEndpoint, Deadlines, Endpoint, Sampling
from stepspec.orchestrator.events import Answered, Committed, Event, Started
from stepspec.servers.launcher import Served, ServerCommand
from stepspec.servers.launcher.commands import ZEROED_MEMORY, arguments

from .random_models import HALF, make_model
from .vocabulary_packages import CACHE, tokenizer_file

LANGUAGE_MODEL_FLAGS = (
    "generation-config",
    "enable-prompt-tokens-details",
    "structured-outputs-config",
)
CONTEXT = 1024  # tokens
# seconds; many runs share two cores with three servers
DEADLINES = Deadlines(first=600, between=300, total=1200)
PROBLEMS = (
    "What is 6 x 7?",
    "Zähle bis drei: 一二三 🙂",
    "Sum 1/2 and 1/3.",
    "def f(x):\n\n\treturn x\n\nWhat is f(2)?",
)
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "specreason": {"threshold": 5.412},
    "choose": {"threshold": 5.412, "least": 0.004},
    "cascade": {"sure": 0.015, "threshold": 0.0125},
    "bild": {"fallback": 0.02, "rollback": 12.5},
    "glimpse": {"threshold": 2.6},
    "reflective": {"accept": "typical", "epsilon": 0.02},
    "reward": {"threshold": 0.5},
    "speculative-thinking": {"n1": 5, "n2": 8, "n3": 8},
}
"""
Options with which these models accept some drafts and reject others; a method that is absent has
its defaults.

The scores of a judge with random weights differ little between chains; each threshold is in the
middle of their range.
"""


@dataclass(slots=True)
class MethodRow:
    """The counts of one method; *halves* are tokens that are part of a character."""

    method: str
    runs: int = 0
    steps: int = 0
    tokens: int = 0
    halves: int = 0
    failures: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Side:
    """One model of the pair: the tokenizer of its endpoint, and the one read from its file."""

    model_tokenizer: ModelTokenizer
    tokenizer: Tokenizer

    def text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def half(self, step: Step) -> int:
        """Count the tokens of *step* that are part of a character."""
        return sum(
            HALF in self.text([token.id]) or not self.text([token.id])
            for token in step.tokens
            if token.id >= 0
        )


def servers(folder: Path, cache: Path = CACHE) -> tuple[ServerCommand, ...]:
    """
    Write the models to *folder* and describe their servers: "large", "small" and "critic".

    Raise `VocabularyUnavailable` if Qwen's vocabulary cannot be downloaded.
    """
    vocabulary = tokenizer_file("qwen", cache)
    paths = {
        "large": make_model(folder / "large", vocabulary, 1),
        "small": make_model(folder / "small", vocabulary, 2),
        "critic": make_model(folder / "critic", vocabulary, 3, labels=1),
    }
    flags: Mapping[str, Mapping[str, Any]] = {
        "large": {"enable-scale-out": True},
        "critic": {
            "runner": "pooling",
            "convert": "classify",
            "pooler-config": {"task": "classify"},
        },
    }
    return tuple(_server(name, path, flags.get(name, {})) for name, path in paths.items())


def _server(name: str, model: Path, extra: Mapping[str, Any]) -> ServerCommand:
    flags = {
        key: value
        for key, value in FLAGS.items()
        if name != "critic" or key not in LANGUAGE_MODEL_FLAGS
    }
    flags |= {
        "max-model-len": CONTEXT,
        "kv-cache-memory-bytes": 256 * 2**20,
        "max-num-seqs": 32,
        **extra,
    }
    env = {**ENVIRONMENT, "VLLM_PLUGINS": "", **(ZEROED_MEMORY if name == "large" else {})}
    return ServerCommand(name, model, f"random-{name}", tuple(arguments(flags)), env)


@asynccontextmanager
async def connect(served: Mapping[str, Served]) -> AsyncGenerator[Solver]:
    """Yield a solver with long deadlines on the *served* models."""
    critic = CriticEndpoint(url=served["critic"].base_url, deadlines=DEADLINES)
    async with Solver(
        endpoint(served, "small"), endpoint(served, "large"), critic=critic
    ) as solver:
        yield solver


def endpoint(served: Mapping[str, Served], role: Role) -> Endpoint:
    """Return the settings of the endpoint of the server for *role*."""
    return Endpoint(
        role=role, url=served[role].base_url, deadlines=DEADLINES, suffix_scoring=role == "large"
    )


async def attempt(
    solver: Solver,
    sides: Mapping[Role, Side],
    row: MethodRow,
    number: int,
    budget: Budget,
) -> None:
    """Execute run *number* of the method of *row*, check it, and add the counts to *row*."""
    events: list[Event] = []
    row.runs += 1
    try:
        await solver.solve(
            f"{PROBLEMS[number % len(PROBLEMS)]} ({number})",
            policy=row.method,
            options=OPTIONS.get(row.method, {}),
            sampling=Sampling(temperature=1.0, top_p=1.0, seed=number),
            budget=budget,
            ahead=number % 3,
            hedge=number % 2,
            observe=events.append,
        )
    except Exception as exc:  # the check is that no run fails, for any reason
        row.failures.append(f"run {number}: {type(exc).__name__}: {exc}")
        return
    chain = Chain(next(event.messages for event in events if isinstance(event, Started)))
    for event in events:
        if isinstance(event, Committed):
            chain = chain.extend(event.step)
    answer = next((event.step for event in events if isinstance(event, Answered)), None)
    row.steps += len(chain.steps)
    row.tokens += chain.tokens + (len(answer.tokens) if answer else 0)
    row.halves += sum(
        sides[step.author].half(step) for step in (*chain.steps, *([answer] if answer else ()))
    )
    row.failures += [
        f"run {number}: {fault}" for fault in await find_faults(sides, chain, answer, budget)
    ]


async def find_faults(
    sides: Mapping[Role, Side], chain: Chain, answer: Step | None, budget: Budget
) -> list[str]:
    """
    Return the faults of the steps of *chain*, of their prompts and of the *answer*, as sentences.
    """
    faults: list[str] = []
    for index, step in enumerate((*chain.steps, *([answer] if answer else ()))):
        if step.tokens and "".join(token.text for token in step.tokens) != step.text:
            faults.append(f"step {index}: its tokens do not join to its text {step.text!r}")
        side = sides[step.author]
        ids = await _ids(side, chain, step)
        if not _same(side.text(ids), step):
            faults.append(
                f"step {index}: {ids} decode to {side.text(ids)!r} and not to {step.text!r}"
            )
    for role, side in sides.items():
        prompts = [
            await side.model_tokenizer.encode_chain(Chain(chain.messages, chain.steps[:count]))
            for count in range(len(chain.steps) + 1)
        ]
        for index, (before, after) in enumerate(pairwise(prompts)):
            if after[: len(before)] != before:
                faults.append(
                    f"step {index}: the {role} model's prompt after it does not begin with the one"
                    " before it"
                )
    thinking, answering = chain.parts()
    if thinking.tokens > budget.tokens - budget.for_answer:
        faults.append(
            f"{thinking.tokens} tokens of thinking, where {budget.tokens - budget.for_answer} are"
            " allowed"
        )
    written = thinking.tokens + answering.tokens + (len(answer.tokens) if answer else 0)
    if written > budget.tokens:
        faults.append(f"{written} tokens in all, where {budget.tokens} are allowed")
    return faults


async def _ids(side: Side, chain: Chain, step: Step) -> Sequence[int]:
    """Return the ids of *step* in a prompt of its author."""
    before = await side.model_tokenizer.encode_chain(Chain(chain.messages))
    return (await side.model_tokenizer.encode_chain(Chain(chain.messages, (step,))))[len(before) :]


def _same(text: str, step: Step) -> bool:
    """
    Whether *text* is that of *step*, up to normal form (NFC) if it was encoded again, as Qwen's
    tokenizer does.
    """
    encoded = not step.tokens or any(token.id < 0 for token in step.tokens)
    return text == step.text or (encoded and normalize("NFC", text) == normalize("NFC", step.text))


async def measure(
    served: Mapping[str, Served],
    methods: Sequence[str],
    *,
    runs: int,
    tokens: int,
    at_once: int,
    cache: Path = CACHE,
) -> list[MethodRow]:
    """
    Execute *runs* runs of each of the *methods*, *at_once* of all of them in parallel, with budgets
    of *tokens* tokens.
    """
    rows = [MethodRow(method) for method in methods]
    free = asyncio.Semaphore(at_once)
    async with AsyncExitStack() as stack:
        solver = await stack.enter_async_context(connect(served))
        sides: dict[Role, Side] = {}
        tokenizer = Tokenizer.from_file(str(tokenizer_file("qwen", cache)))
        roles: tuple[Role, ...] = ("small", "large")
        for role in roles:
            model = await stack.enter_async_context(VllmEndpoint(endpoint(served, role)))
            sides[role] = Side(model.tokenizer, tokenizer)

        async def run(row: MethodRow, number: int) -> None:
            async with free:
                await attempt(solver, sides, row, number, Budget(tokens=tokens))

        await asyncio.gather(*(run(row, number) for row in rows for number in range(runs)))
    return rows
