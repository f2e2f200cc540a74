"""
A chat template that hides the thinking block, on a real server: stepspec detects it by its effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from stepspec import Endpoint, Sampling, Solver
from stepspec.evals.testbed.servers import LARGE, miniature_servers
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.chain import THINK_END, Chain

from .conftest import Pair, serving

pytestmark = pytest.mark.servers
SHOWN = "<|im_start|>assistant\\n<think>\\n"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hidden(
    pair: Pair, forked: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Generator[Pair]:
    """
    The miniature pair, but the large model opens its thinking block by itself, and its template
    shows none.
    """
    template = tmp_path_factory.mktemp("hidden") / "chat_template.jinja"
    shown = (LARGE / "chat_template.jinja").read_text()
    assert SHOWN in shown
    template.write_text(shown.replace(SHOWN, SHOWN.removesuffix("<think>\\n")))
    (server,) = miniature_servers("off", [LARGE])
    flags = (
        "--chat-template",
        str(template),
        "--logits-processors",
        "tests.integration.opening:Opens",
    )
    opening = replace(
        server, args=(*server.args, *flags), env={**server.env, "PYTHONPATH": str(ROOT)}
    )
    with serving([opening], forked) as served:
        yield replace(pair, large=served["large"])


async def test_a_hidden_block_is_learnt_and_the_prompts_are_those_of_a_template_that_shows_it(
    pair: Pair, hidden: Pair
) -> None:
    tasks = fresh_tasks(6, 11)
    prompts: list[list[int]] = []
    for each in (pair, hidden):
        async with VllmEndpoint(Endpoint(role="large", url=each.large.base_url)) as large:
            assert large.template.thinks
            shown = await large.tokenizer.encode_prefix(Chain.of(tasks[0].problem).messages)
            prompts.append(shown.ids)
    assert prompts[0] == prompts[1]
    assert (large.template.source, large.template.opened) == ("effect", "<think>\n")
    async with Solver(
        hidden.small.base_url, hidden.large.base_url, sampling=Sampling(), auto=False
    ) as solver:
        solutions = await asyncio.gather(*(solver.solve(task.problem) for task in tasks))
    right = [
        solution.answer == str(task.gold) for solution, task in zip(solutions, tasks, strict=True)
    ]
    assert sum(right) >= len(tasks) - 1
    for solution in solutions:
        assert solution.thinking.endswith(THINK_END)
        assert "\\boxed" in solution.text
        assert "\\boxed" not in solution.thinking
