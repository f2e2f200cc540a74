"""
Presence and frequency penalties were forgotten by every new request and remembered by a kept
stream.
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from stepspec import Sampling
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.settings import load

from ..service.served import Behind, put_behind, serving

PENALTIES = ["presence_penalty", "frequency_penalty"]


@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_penalty_for_a_single_request_is_refused_with_the_cure(penalty: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"unknown setting 'sampling\.{penalty}' .*'repetition_penalty'"
    ):
        load(sampling={penalty: 0.5})
    assert load(sampling={"repetition_penalty": 1.1}).sampling == Sampling(repetition_penalty=1.1)


@pytest.mark.parametrize("penalty", PENALTIES)
async def test_a_request_for_a_method_is_refused_and_one_for_a_served_model_is_not(
    penalty: str,
) -> None:
    fields: dict[str, Any] = {penalty: 0.5}
    neutral: dict[str, Any] = {penalty: 0, "repetition_penalty": 1.1}
    behind = Behind()
    async with serving() as served:
        refused = await served.chat(**fields)
        none = await served.chat(**neutral)
        written = [body for path, body in served.small.requests if path == "/v1/completions"]
        await put_behind(served, behind)
        passed = await served.chat(method="huge", **fields)
    assert refused.status == 400
    assert (refused.error["param"], refused.error["code"]) == (penalty, "invalid_value")
    assert "repetition_penalty" in refused.error["message"]
    assert none.status == 200
    assert {(body[penalty], body["repetition_penalty"]) for body in written} == {(0.0, 1.1)}
    assert passed.status == 200
    assert [orjson.loads(body)[penalty] for _, _, body in behind.got] == [0.5]
