"""The check of the random pair finds errors, and none in correct runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from stepspec import Solver
from stepspec.evals.testbed.servers import MODELS
from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import THINK_END, Chain, Role, Step, Token
from tests import random_pair
from tests.orchestrator.backends.real_vocabularies import RealVllm
from tests.random_pair import MethodRow, Side, attempt, find_faults, servers

TOKENIZER = Tokenizer.from_file(str(MODELS / "small" / "tokenizer.json"))
TEXT = "On Monday 3 + 4 = 7.\n\nThen é and 🙂.\n\nSo it is."
BUDGET = Budget(tokens=64)


@pytest.fixture
async def met() -> AsyncGenerator[tuple[Solver, Mapping[Role, Side]]]:
    """Two models that write the same, and what the checks know of them."""
    written = TOKENIZER.encode(TEXT, add_special_tokens=False).ids
    (end,) = TOKENIZER.encode("<|im_end|>", add_special_tokens=False).ids
    server = RealVllm(tokenizer=TOKENIZER, written=written, end=end)
    async with (
        server.serve("small") as small,
        server.serve("large") as large,
        Solver(small, large) as solver,
        VllmEndpoint(small) as own,
    ):
        side = Side(own.tokenizer, TOKENIZER)
        yield solver, {"small": side, "large": side}


async def test_a_run_that_is_right_is_counted_and_has_no_failures(
    met: tuple[Solver, Mapping[Role, Side]],
) -> None:
    solver, sides = met
    row = MethodRow("large")
    for number in range(3):
        await attempt(solver, sides, row, number, BUDGET)
    assert row.failures == []
    assert (row.runs, row.steps) == (3, 9)
    assert row.halves > 0
    assert row.tokens > 3 * 12


async def test_a_run_that_raises_is_a_failure(met: tuple[Solver, Mapping[Role, Side]]) -> None:
    row = MethodRow("reward")  # which needs a critic
    await attempt(*met, row, 5, BUDGET)
    (failure,) = row.failures
    assert failure.startswith("run 5: ConfigurationError: ")


async def test_the_errors_of_a_chain_are_listed(met: tuple[Solver, Mapping[Role, Side]]) -> None:
    _, sides = met
    ids = TOKENIZER.encode("So it is.", add_special_tokens=False).ids
    vocabulary = sides["small"].model_tokenizer.vocabulary
    tokens = tuple(Token(sides["small"].text([number]), id=number) for number in ids)
    right = Step("So it is.", "small", tokens=tokens, vocabulary=vocabulary)
    assert await find_faults(sides, Chain.of("Why?").extend(right), right, BUDGET) == []
    longer = replace(right, text="So it is.!")
    swapped = replace(right, tokens=(replace(tokens[0], id=tokens[1].id), *tokens[1:]))
    for wrong, words in ((longer, "do not join"), (swapped, "decode to")):
        assert words in "\n".join(
            await find_faults(sides, Chain.of("Why?").extend(wrong), None, BUDGET)
        )
    chain = Chain.of("Why?").extend(right)
    assert "are allowed" in "\n".join(await find_faults(sides, chain, None, Budget(tokens=2)))
    assert "tokens in all" in "\n".join(
        await find_faults(sides, chain, right, Budget(tokens=len(tokens) + 1))
    )
    answered = chain.extend(Step(f"\n{THINK_END}", "small", "end")).extend(
        right
    )  # the answer's steps are the last ones
    assert (
        await find_faults(sides, answered, None, Budget(tokens=2 * len(tokens), answer=len(tokens)))
        == []
    )
    assert "tokens in all" in "\n".join(
        await find_faults(sides, answered, None, Budget(tokens=2 * len(tokens) - 1, answer=1))
    )


def test_the_critic_is_served_for_pooling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def vocabulary(family: str, cache: Path) -> Path:
        return MODELS / "small" / "tokenizer.json"

    monkeypatch.setattr(random_pair, "tokenizer_file", vocabulary)
    large, small, critic = servers(tmp_path)
    assert (large.name, small.name, critic.name) == ("large", "small", "critic")
    for one in (large, small, critic):
        batched, sequences, length = (
            int(one.args[one.args.index(f"--max-{name}") + 1])
            for name in ("num-batched-tokens", "num-seqs", "model-len")
        )
        assert batched >= sequences * length  # as in the miniature pair
    assert "--enable-scale-out" in large.args
    assert "--enable-scale-out" not in small.args
    assert critic.args[critic.args.index("--runner") + 1] == "pooling"
    assert "--generation-config" not in critic.args
