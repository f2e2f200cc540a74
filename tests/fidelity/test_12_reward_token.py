"""
RSD's reward was read at a token that held the end of the step as well (`.` and a blank line are one
in Qwen).
"""

from __future__ import annotations

import pytest

from stepspec.orchestrator import Chain, Step
from stepspec.orchestrator.backends.vllm import RewardModelEndpoint

from ..orchestrator.backends.test_reward_model import CHAIN, FakePooling, rated


async def test_the_delimiter_is_a_token_of_its_own_behind_every_step() -> None:
    server = FakePooling()
    await rated(server)
    read = server.read[-1]
    assert [place for place, word in enumerate(read) if word == "\n\n"] == [
        len(read) - len("That is 42.") - 2,
        len(read) - 1,
    ]
    assert read[-2] == "."
    assert ".\n\n" not in read


async def test_a_step_that_was_rated_is_the_prefix_of_the_next() -> None:
    """So that the server reads it from its cache, and every reward is read where it was."""
    server = FakePooling()
    async with server.critic() as endpoint, RewardModelEndpoint(endpoint) as critic:
        await critic.critic().rate(CHAIN)
        before = len(server.read[-1])
        await critic.critic().rate(CHAIN.extend(Step("So it is.\n\n", "small")))
    assert server.read[-1][:before] == server.read[-2]


@pytest.mark.parametrize(
    ("delimiter", "layout"), [("<extra_0>", "chat"), ("\n\n", "plain"), (".\n\n;\n\n", "plain")]
)
async def test_the_reward_is_read_at_the_last_token_of_the_delimiter(
    delimiter: str, layout: str
) -> None:
    """The authors take the last id of the encoded delimiter."""
    server = FakePooling()
    server.head = lambda text: [[float(place)] for place in range(len(server.read[-1]))]
    await rated(
        server,
        Chain.of("What?").extend(Step("Six.\n\n", "small")),
        delimiter=delimiter,
        layout=layout,
    )
    last = delimiter if layout == "chat" else "\n\n"
    assert server.read[-1][-3:] == ["x", ".", last]
