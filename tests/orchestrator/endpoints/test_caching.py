"""How a server caches prefixes, read from its metrics, and how a question about a hybrid uses it."""

from __future__ import annotations

from math import log

import pytest

from stepspec.orchestrator.chain import Chain, Step
from stepspec.orchestrator.endpoints.metrics import CacheConfig, read_cache_config

from .conftest import Meet
from .server import FakeVllm

PROBLEM = Chain.of("What is 1 + 1? " * 8)
GRADES = {"7": log(0.5), "9": log(0.25)}


def info(**labels: object) -> bytes:
    """What vLLM shows of its cache."""
    known = {"enable_prefix_caching": True, "block_size": 640, "mamba_cache_mode": "align", "prefix_match_unit": None}
    shown = ",".join(f'{name}="{value}"' for name, value in {**known, **labels}.items())
    return f'# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{engine="0",{shown}}} 1.0\n'.encode()


@pytest.mark.parametrize(
    ("metrics", "config", "checkpoints"),
    [
        (info(), CacheConfig(True, 640, None, "align"), False),
        (info(prefix_match_unit=32), CacheConfig(True, 640, 32, "align"), True),
        (info(prefix_match_unit=640), CacheConfig(True, 640, 640, "align"), False),
        (info(mamba_cache_mode="none", prefix_match_unit=32), CacheConfig(True, 640, 32, None), True),
        (info(prefix_match_unit=32, enable_prefix_caching=False), CacheConfig(False, 640, 32, "align"), False),
        (info(mamba_cache_mode="none", block_size=16), CacheConfig(True, 16, None, None), False),
        (b'vllm:cache_config_info{block_size="16"} 1.0\n', CacheConfig(None, 16, None, None), False),
    ],
)
def test_the_cache_metrics_of_a_server_are_read(metrics: bytes, config: CacheConfig, checkpoints: bool) -> None:
    found = read_cache_config(b"vllm:num_requests_running 0.0\n" + metrics)
    assert found is not None
    assert (found.enabled, found.block, found.unit, found.mode) == (
        config.enabled,
        config.block,
        config.unit,
        config.mode,
    )
    assert found.checkpoints is checkpoints
    assert "block_size" in found.known


def test_without_metrics_the_cache_is_unknown() -> None:
    assert read_cache_config(b"vllm:num_requests_running 0.0\n") is None


@pytest.mark.parametrize(("block", "unit"), [(640, 32), (528, 16), (784, 16), (1600, 32), (None, 16)])
def test_the_match_unit_divides_the_block(block: int | None, unit: int) -> None:
    assert CacheConfig(block=block).finest == unit


async def reads(meet: Meet, server: FakeVllm) -> list[int]:
    """How many tokens each of five verdicts about a growing chain reads."""
    chain = PROBLEM
    async with meet(server) as met:
        await met.model.ask(PROBLEM, "Right?", "79")  # finds out that the server tells of chosen tokens
        met.events.clear()
        for number in range(5):
            chain = chain.extend(Step(f"And {number}, as it is.\n\n", "small"))
            assert await met.model.ask(chain, "Right?", "79") == pytest.approx({"7": 0.5, "9": 0.25})
    return [call.prompt - call.cached for call in met.calls]


async def test_a_question_leaves_the_state_of_a_hybrid_where_the_next_one_finds_it(meet: Meet) -> None:
    fine = FakeVllm(digits=GRADES, unit=4, metrics=info(block_size=64, prefix_match_unit=4))
    first, *others = await reads(meet, fine)
    assert first > 200
    assert all(
        read_cache_config < 200 for read_cache_config in others
    )  # the step and the question, and the step again; not the chain
    assert max(others) - min(others) <= 8  # whatever the chain's length
    questions = [body["prompt"] for path, body in fine.requests if path == "/v1/completions"][1:]
    assert all(question[: len(chain)] == chain for question, chain in questions)


async def test_without_a_checkpoint_every_question_reads_the_chain(meet: Meet) -> None:
    silent = FakeVllm(digits=GRADES, unit=4)
    found = await reads(meet, silent)
    assert found == sorted(found)
    assert found[-1] - found[0] > 60  # All of what was written since.
    assert not any(isinstance(body["prompt"][0], list) for path, body in silent.requests if "completions" in path)


async def test_a_server_with_likeliest_tokens_only_also_gets_the_chain(meet: Meet) -> None:
    server = FakeVllm(
        digits=GRADES,
        unit=4,
        metrics=info(block_size=64, prefix_match_unit=4),
        lacks=frozenset({"logprob_token_ids"}),
    )
    async with meet(server) as met:
        for _ in range(2):
            grades = await met.model.ask(PROBLEM, "Right?", "789")
            assert grades == pytest.approx({"7": 0.5, "8": 0.0, "9": 0.25})
        assert met.endpoint.by_id is False
    question, chain = server.requests[-1][1]["prompt"]
    assert question[: len(chain)] == chain
    first, last = met.calls[0], met.calls[-1]
    assert (first.cached, last.prompt, last.written) == (0, len(question) + len(chain), 2)
    assert 2 * len(chain) - 8 <= last.cached <= 2 * len(chain)
