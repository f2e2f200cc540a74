"""A pair of servers without models, and the service over it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from ..program import serve
from ..stand_in import StandIn
from .running import StandInPair, listening

STEPS = 8
STEP_TOKENS = 8


@pytest.fixture
async def pair() -> AsyncGenerator[StandInPair]:
    """Two models that think in eight steps and answer 42; the large one rejects some drafts."""
    small, large = (StandIn(steps=STEPS, step_tokens=STEP_TOKENS, accept=0.6) for _ in range(2))
    async with listening(small, large) as pair:
        yield pair


@pytest.fixture
async def client_settings(pair: StandInPair, tmp_path: Path) -> AsyncGenerator[dict[str, str]]:
    """The variables that lead OpenAI's clients to a service over the pair."""
    urls = (pair.settings["STEPSPEC_SMALL"], pair.settings["STEPSPEC_LARGE"])
    async with serve(*urls, tmp_path / "service.log", settings=pair.settings) as service:
        yield {"OPENAI_BASE_URL": f"{service.base}/v1", "OPENAI_API_KEY": "none"}
