"""The gauges as vLLM writes them, and how they are polled."""

from __future__ import annotations

import asyncio

import pytest

from stepspec.orchestrator.endpoints import Endpoint, VllmEndpoint
from stepspec.orchestrator.endpoints.client import Connection
from stepspec.orchestrator.endpoints.metrics import QueueGauges, poll_queue, read_queue

from ...fakes import run
from .server import FakeVllm

SHOWN = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 7.0
vllm:num_requests_waiting{engine="1",model_name="m"} 4.0
"""


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        (SHOWN, QueueGauges(5, 5)),
        (b"vllm:num_requests_running 2.0\nvllm:num_requests_waiting 0.0\n", QueueGauges(2, 0)),
        (b"vllm:num_requests_running 2.0\n", None),
        (b"vllm:num_requests_running NaNsense\nvllm:num_requests_waiting 0.0\n", None),
        (b"", None),
        (b"<html>no such page</html>", None),
    ],
)
def test_the_gauges_of_all_engines_are_added_up(metrics: bytes, found: QueueGauges | None) -> None:
    assert read_queue(metrics) == found


async def test_a_server_without_metrics_has_no_queue() -> None:
    async with FakeVllm().serve() as settings, VllmEndpoint(settings) as endpoint:
        assert await endpoint.queue() is None
    gone = VllmEndpoint(Endpoint(role="large", url="http://127.0.0.1:9", retries=3))
    gone.connection = Connection(gone.settings)
    assert await gone.queue() is None
    await gone.connection.close()


def test_polling_continues_over_errors_and_stalls_and_ends_with_the_block() -> None:
    answers = [QueueGauges(1, 0), None, "stall", QueueGauges(2, 9, 4096)]
    reports: list[tuple[float, int, int, int | None]] = []

    class Server:
        async def queue(self) -> QueueGauges | None:
            answer = answers.pop(0) if answers else None
            if isinstance(answer, str):
                await asyncio.sleep(1e9)
                return None
            return answer

    def tell(running: int, waiting: int, cache: int | None) -> None:
        reports.append((asyncio.get_running_loop().time(), running, waiting, cache))

    async def main() -> None:
        async with poll_queue(Server(), tell):
            await asyncio.sleep(20)

    run(main())
    assert reports == [(0.0, 1, 0, None), (8.0, 2, 9, 4096)]


def test_the_tokens_of_the_cache_are_those_of_all_engines_and_servers() -> None:
    info = b'vllm:cache_config_info{block_size="16",engine="%d",num_gpu_blocks="%d"} 1.0\n'
    shown = SHOWN + info % (0, 100) + info % (1, 50)
    gauges = read_queue(shown)
    assert gauges is not None
    assert gauges.cache == 2400
    assert QueueGauges.sum([gauges, None, QueueGauges(1, 1, 600)]) == QueueGauges(6, 6, 3000)
    assert QueueGauges.sum([gauges, QueueGauges(1, 1)]) == QueueGauges(6, 6)
    assert QueueGauges.sum([None]) is None
