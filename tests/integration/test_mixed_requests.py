"""A small mix of requests to the service over the real pair: the command sends a thousand."""

from __future__ import annotations

from collections import Counter

import pytest

from stepspec.evals.experiments.mixed_requests import measure, service
from stepspec.evals.experiments.request_kinds import KINDS

from .conftest import Pair

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]


async def test_none_is_lost_and_none_answered_wrongly(pair: Pair) -> None:
    servers = {"small": pair.small.base_url, "large": pair.large.base_url}
    async with service(servers) as program:
        report = await measure(program, servers, KINDS, requests=120, concurrent=16, problems=2)
    assert report.failures() == []
    assert Counter(outcome.fate for outcome in report.outcomes)["answered"] > 60
