"""What of a budget two contexts can hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..budget import Budget
from ..chain import Chain
from ..concurrency import at_once
from ..errors import ContextTooLong
from .interfaces import ModelEndpoint

JUDGING_ROOM = 192  # tokens of context that a judge's question may take beside the chain
LEAST_ROOM = 32  # tokens to think and answer in, without which a run is not worth beginning


async def fitted(budget: Budget, chain: Chain, endpoints: Sequence[ModelEndpoint]) -> Budget:
    """
    Cut *budget* to what the contexts of all *endpoints* hold beside the problem and a judge's question.

    Raise `ContextTooLong` if that is not worth beginning, and an `EndpointError` if a server cannot count.
    """
    rooms = await at_once(_room(endpoint, chain) for endpoint in endpoints)
    tokens = min([budget.tokens, *rooms])
    answer = budget.answer if budget.answer is None else min(budget.answer, tokens - 1)
    return replace(budget, tokens=tokens, answer=answer)


async def _room(endpoint: ModelEndpoint, chain: Chain) -> int:
    prompt = await endpoint.count(chain.messages)
    room = endpoint.room - prompt - JUDGING_ROOM
    if room < LEAST_ROOM:
        raise ContextTooLong(
            f"the problem has {prompt} tokens, which leaves no room to think in a context of "
            f"{endpoint.room}; shorten it, or serve the model with a longer --max-model-len",
            role=endpoint.role,
            url=endpoint.settings.url,
        )
    return room
