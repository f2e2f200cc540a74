"""
What vLLM's ``/metrics`` tells: the queue, token-level speculation, and how prefixes are cached.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import log

import pytest

from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.chain import Chain, Step
from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.endpoints.metrics import (
    Acceptance,
    CacheConfig,
    QueueGauges,
    poll_queue,
    read_acceptance,
    read_cache_config,
    read_queue,
    total,
)
from stepspec.orchestrator.http.client import Connection

from ...fakes import jumping
from ...service.served import until
from ...stand_in import FakeVllm
from ..conftest import Meet

QUEUE = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 7.0
vllm:num_requests_waiting{engine="1",model_name="m"} 4.0
"""
SPECULATION = b"""# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 5.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 40.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m"} 20.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 21.0
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="m"} 9.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 8.0
"""
PROBLEM = Chain.of("What is 1 + 1? " * 8)
GRADES = {"7": log(0.5), "9": log(0.25)}


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        (QUEUE, QueueGauges(5, 5)),
        (b"vllm:num_requests_running 2.0\nvllm:num_requests_waiting 0.0\n", QueueGauges(2, 0)),
        (b"vllm:num_requests_running 2.0\n", None),
        (b"vllm:num_requests_running NaNsense\nvllm:num_requests_waiting 0.0\n", None),
        (b"", None),
        (b"<html>no such page</html>", None),
    ],
)
def test_the_gauges_of_all_engines_are_added_up(metrics: bytes, found: QueueGauges | None) -> None:
    assert read_queue(metrics) == found


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        (SPECULATION, Acceptance(15, 60, 30)),
        (SPECULATION.replace(b"_total", b""), Acceptance(15, 60, 30)),
        (SPECULATION.replace(b"num_accepted_tokens_total", b"gone"), None),
        (QUEUE, None),
    ],
)
def test_the_counters_of_all_engines_are_added_up(metrics: bytes, found: Acceptance | None) -> None:
    assert read_acceptance(metrics) == found


def test_the_tokens_of_the_cache_are_those_of_all_engines_and_servers() -> None:
    info = b'vllm:cache_config_info{block_size="16",engine="%d",num_gpu_blocks="%d"} 1.0\n'
    gauges = read_queue(QUEUE + info % (0, 100) + info % (1, 50))
    assert gauges is not None
    assert gauges.cache == 2400
    assert total([gauges, None, QueueGauges(1, 1, 600)]) == QueueGauges(6, 6, 3000)
    assert total([gauges, QueueGauges(1, 1)]) == QueueGauges(6, 6)
    assert total([None, None]) is None


def test_servers_that_do_not_speculate_are_left_out_of_the_total() -> None:
    assert total([None, Acceptance(1, 4, 2), None, Acceptance(1, 4, 0)]) == Acceptance(2, 8, 2)
    assert total([None, None]) is None


def test_the_accept_rate_is_of_tokens_and_the_length_counts_the_models_own() -> None:
    one = Acceptance(10, 40, 20)
    assert (one.rate, one.length, str(one)) == (0.5, 3.0, "50%, 3.00 a pass")
    assert (Acceptance().rate, Acceptance().length, str(Acceptance())) == (
        None,
        None,
        "nothing drafted",
    )
    later = Acceptance(12, 48, 21)
    assert later - one == Acceptance(2, 8, 1)
    assert one + (later - one) == later


async def test_a_server_without_metrics_has_neither_a_queue_nor_counters() -> None:
    async with FakeVllm().serve() as settings, VllmEndpoint(settings) as endpoint:
        assert (await endpoint.queue(), await endpoint.acceptance()) == (None, None)
    gone = VllmEndpoint(Endpoint(role="large", url="http://127.0.0.1:9", retries=3))
    gone.connection = Connection(gone.settings)
    assert (await gone.queue(), await gone.acceptance()) == (None, None)
    await gone.connection.close()


async def test_metrics_and_health_are_read_while_all_slots_of_the_endpoint_are_taken() -> None:
    fake = FakeVllm(["So"], gate=asyncio.Semaphore(0), metrics=SPECULATION)
    async with fake.serve(max_concurrency=1) as settings, VllmEndpoint(settings) as endpoint:
        writing = asyncio.create_task(endpoint.model().write(Chain.of("What?")))
        await until(lambda: any(path == "/v1/completions" for path, _ in fake.requests))
        async with asyncio.timeout(30):
            assert await endpoint.acceptance() == Acceptance(15, 60, 30)
            await endpoint.check_health()
        assert not writing.done()
        writing.cancel()
        await asyncio.wait([writing])


@jumping
async def test_polling_continues_over_errors_and_stalls_and_ends_with_the_block() -> None:
    answers = [QueueGauges(1, 0), None, "stall", QueueGauges(2, 9, 4096)]
    reports: list[tuple[float, int, int, int | None]] = []

    async def read() -> QueueGauges | None:
        answer = answers.pop(0) if answers else None
        if isinstance(answer, str):
            await asyncio.sleep(1e9)
            return None
        return answer

    def tell(running: int, waiting: int, cache: int | None) -> None:
        reports.append((asyncio.get_running_loop().time(), running, waiting, cache))

    async with poll_queue(read, tell):
        await asyncio.sleep(20)
    assert reports == [(0.0, 1, 0, None), (8.0, 2, 9, 4096)]


def info(**labels: object) -> bytes:
    """What vLLM shows of its cache."""
    known = {
        "enable_prefix_caching": True,
        "block_size": 640,
        "mamba_cache_mode": "align",
        "prefix_match_unit": None,
    }
    shown = ",".join(f'{name}="{value}"' for name, value in {**known, **labels}.items())
    gauge = f'vllm:cache_config_info{{engine="0",{shown}}} 1.0'
    return f"# TYPE vllm:cache_config_info gauge\n{gauge}\n".encode()


@pytest.mark.parametrize(
    ("metrics", "config", "checkpoints"),
    [
        (info(), CacheConfig(True, 640), False),
        (info(prefix_match_unit=32), CacheConfig(True, 640, 32), True),
        (info(prefix_match_unit=640), CacheConfig(True, 640, 640), False),
        (
            info(prefix_match_unit=32, enable_prefix_caching=False),
            CacheConfig(False, 640, 32),
            False,
        ),
        (b'vllm:cache_config_info{block_size="16"} 1.0\n', CacheConfig(None, 16), False),
    ],
)
def test_the_cache_metrics_of_a_server_are_read(
    metrics: bytes, config: CacheConfig, checkpoints: bool
) -> None:
    found = read_cache_config(b"vllm:num_requests_running 0.0\n" + metrics)
    assert found is not None
    assert replace(found, known=()) == config
    assert found.checkpoints is checkpoints
    assert "block_size" in found.known


def test_without_metrics_the_cache_is_unknown() -> None:
    assert read_cache_config(b"vllm:num_requests_running 0.0\n") is None


@pytest.mark.parametrize(
    ("block", "unit"), [(640, 32), (528, 16), (784, 16), (1600, 32), (None, 16)]
)
def test_the_match_unit_divides_the_block(block: int | None, unit: int) -> None:
    assert CacheConfig(block=block).finest == unit


async def reads(meet: Meet, server: FakeVllm) -> list[int]:
    """How many tokens each of five verdicts about a growing chain reads."""
    chain = PROBLEM
    async with meet(server) as met:
        # finds out that the server tells of chosen tokens
        await met.model.ask(PROBLEM, "Right?", "79")
        met.events.clear()
        for number in range(5):
            chain = chain.extend(Step(f"And {number}, as it is.\n\n", "small"))
            assert await met.model.ask(chain, "Right?", "79") == pytest.approx(
                {"7": 0.5, "9": 0.25}
            )
    return [call.prompt - call.cached for call in met.calls]


async def test_a_question_leaves_the_state_of_a_hybrid_where_the_next_one_finds_it(
    meet: Meet,
) -> None:
    fine = FakeVllm(digits=GRADES, unit=4, metrics=info(block_size=64, prefix_match_unit=4))
    first, *others = await reads(meet, fine)
    assert first > 200
    assert max(others) < 200  # the step and the question, and the step again; not the chain
    assert max(others) - min(others) <= 8  # whatever the chain's length
    questions = [body["prompt"] for path, body in fine.requests if path == "/v1/completions"][1:]
    assert all(question[: len(chain)] == chain for question, chain in questions)


async def test_without_a_checkpoint_every_question_reads_the_chain(meet: Meet) -> None:
    silent = FakeVllm(digits=GRADES, unit=4)
    found = await reads(meet, silent)
    assert found == sorted(found)
    assert found[-1] - found[0] > 60  # All of what was written since.
    assert not any(
        isinstance(body["prompt"][0], list)
        for path, body in silent.requests
        if "completions" in path
    )


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
        assert met.endpoint.answers_by_id is False
    question, chain = server.requests[-1][1]["prompt"]
    assert question[: len(chain)] == chain
    first = met.calls[0]
    last = met.calls[-1]
    assert (first.cached, last.prompt, last.written) == (0, len(question) + len(chain), 2)
    assert 2 * len(chain) - 8 <= last.cached <= 2 * len(chain)
