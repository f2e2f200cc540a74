"""The counters of token-level speculation, as vLLM writes them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from stepspec.orchestrator.chain import Chain
from stepspec.orchestrator.doctor.advice import conclude
from stepspec.orchestrator.endpoints import Endpoint, VllmEndpoint
from stepspec.orchestrator.endpoints.client import Connection
from stepspec.orchestrator.endpoints.metrics import read_acceptance, total
from stepspec.orchestrator.stats import Acceptance

from ..doctor.test_doctor import FAST, GOOD, shown
from ..service.served import until
from .server import FakeVllm

SHOWN = b"""# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
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


@pytest.mark.parametrize(
    ("metrics", "found"),
    [
        (SHOWN, Acceptance(15, 60, 30)),
        (SHOWN.replace(b"_total", b""), Acceptance(15, 60, 30)),
        (SHOWN.replace(b"num_accepted_tokens_total", b"gone"), None),
        (b'vllm:num_requests_running{engine="0"} 3.0\n', None),
        (b"", None),
    ],
)
def test_the_counters_of_all_engines_are_added_up(metrics: bytes, found: Acceptance | None) -> None:
    assert read_acceptance(metrics) == found


def test_the_rate_is_of_tokens_and_the_length_counts_the_models_own() -> None:
    one = Acceptance(10, 40, 20)
    assert (one.rate, one.length) == (0.5, 3.0)
    assert str(one) == "50%, 3.00 a pass"
    assert (Acceptance().rate, Acceptance().length, str(Acceptance())) == (None, None, "nothing drafted")


def test_the_difference_of_two_readings_is_the_work_in_between() -> None:
    earlier, later = Acceptance(10, 40, 20), Acceptance(12, 48, 21)
    assert later - earlier == Acceptance(2, 8, 1)
    assert earlier + (later - earlier) == later


async def test_a_look_waits_for_no_place_and_takes_none() -> None:
    fake = FakeVllm(["So"], gate=asyncio.Semaphore(0), metrics=SHOWN)
    async with fake.serve(max_concurrency=1) as settings, VllmEndpoint(settings) as endpoint:
        writing = asyncio.create_task(endpoint.model().write(Chain.of("What?")))
        await until(lambda: any(path == "/v1/completions" for path, _ in fake.requests))
        async with asyncio.timeout(30):
            assert await endpoint.acceptance() == Acceptance(15, 60, 30)
        assert not writing.done()
        writing.cancel()
        await asyncio.wait([writing])


def test_servers_that_do_not_speculate_are_left_out() -> None:
    assert total([None, Acceptance(1, 4, 2), None, Acceptance(1, 4, 0)]) == Acceptance(2, 8, 2)
    assert total([None, None]) is None


def test_the_doctor_shows_it() -> None:
    speculating = replace(GOOD, acceptance=Acceptance(10, 40, 20))
    (row,) = [line for line in shown(conclude(FAST, speculating)).splitlines() if line.startswith("drafted tokens")]
    assert row.split("accepted")[1].split() == ["none", "50%,", "3.00", "a", "pass"]


async def test_a_server_without_metrics_has_no_acceptance() -> None:
    async with FakeVllm().serve() as settings, VllmEndpoint(settings) as endpoint:
        assert await endpoint.acceptance() is None
    gone = VllmEndpoint(Endpoint(role="large", url="http://127.0.0.1:9"))
    gone.connection = Connection(gone.settings)
    assert await gone.acceptance() is None
    await gone.connection.close()
