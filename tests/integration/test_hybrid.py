"""
A hybrid model on real vLLM: its prefix cache with and without the cure, and the report of the
doctor.
"""

from __future__ import annotations

from collections.abc import Generator
from random import Random

import aiohttp
import pytest

from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.chain import Chain, Step
from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.endpoints.metrics import MATCH_UNIT_TOKENS
from stepspec.policies import SpecReason
from stepspec.servers.doctor import diagnose
from stepspec.servers.launcher import Served

from .conftest import Pair, serving
from .hybrid import hybrid_server, make_hybrid

pytestmark = pytest.mark.servers
BLOCK = 640
HYBRID_FLAGS = {"mamba-cache-mode": "align", "prefix-match-unit": MATCH_UNIT_TOKENS}


@pytest.fixture(scope="module")
def hybrids(tmp_path_factory: pytest.TempPathFactory, forked: tuple[str, ...]) -> Generator[Pair]:
    """
    The same hybrid twice: with the cure in the place of the small model, without in that of the
    large one.
    """
    model = make_hybrid(tmp_path_factory.mktemp("hybrid") / "model")
    servers = hybrid_server(model, "plain"), hybrid_server(model, "cured", HYBRID_FLAGS)
    with serving(servers, forked) as served:
        yield Pair(large=served["plain"], small=served["cured"])


async def cached(served: Served, prompt: list[int]) -> int:
    body = {"model": served.served_name, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    async with (
        aiohttp.ClientSession(raise_for_status=True) as http,
        http.post(f"{served.base_url}/completions", json=body) as reply,
    ):
        tokens: int = (await reply.json())["usage"]["prompt_tokens_details"]["cached_tokens"]
        return tokens


@pytest.mark.parametrize(
    ("length", "plain"), [(400, (0, 0)), (800, (0, BLOCK)), (1500, (BLOCK, 2 * BLOCK))], ids=str
)
async def test_a_longer_prompt_reads_full_blocks_again_without_the_cure(
    hybrids: Pair, length: int, plain: tuple[int, int]
) -> None:
    random = Random(length)
    begun = [random.randrange(10, 600) for _ in range(length)]
    further = begun + [random.randrange(10, 600) for _ in range(20)]
    found = {
        served.name: tuple(
            [await cached(served, prompt) for prompt in (begun, further, further)][1:]
        )
        for served in (hybrids.large, hybrids.small)
    }
    assert all(one <= most for one, most in zip(found["plain"], plain, strict=True))
    assert all(length - 2 * MATCH_UNIT_TOKENS <= one <= length + 20 for one in found["cured"])


def endpoint(served: Served) -> Endpoint:
    return Endpoint(
        role="large" if served.name == "plain" else "small",
        url=served.base_url,
        suffix_scoring=True,
        retries=0,
    )


async def test_the_doctor_distinguishes_large_blocks_from_a_disabled_cache(hybrids: Pair) -> None:
    found = await diagnose(endpoint(hybrids.small), endpoint(hybrids.large))
    plain = found.large
    cured = found.small
    assert plain.can is not None
    assert cured.can is not None
    assert (plain.can.prefix_cache, cured.can.prefix_cache) == (True, True)
    assert plain.can.cache is not None
    assert plain.can.cache.block == BLOCK
    notes = [note for note in map(str, found.findings) if "prefix cache" in note]
    assert len(notes) == 1
    assert f"large: the prefix cache is on, but works in blocks of {BLOCK} tokens" in notes[0]
    assert notes[0].endswith("--mamba-cache-mode align --prefix-match-unit 32")


async def test_questions_are_answered_as_before_the_cure(hybrids: Pair) -> None:
    """
    What follows a saved state is what follows the whole prompt: the cure changes the time alone.
    """
    graded: list[list[float]] = []
    for served in (hybrids.large, hybrids.small):
        async with VllmEndpoint(endpoint(served)) as known:
            await known.capabilities()
            assert known.checkpoints is (served.name == "cured")
            policy = SpecReason(known.model(), known.model(), threshold=0, sure=0)
            chain = Chain.of("How many are left?")
            grades = list[float]()
            for number in range(6):
                draft = Step(f"There are {number} of them, and {number * 7} others.\n\n", "small")
                verdict = await policy.verify(chain, draft)
                grades.append(verdict.score or 0.0)
                chain = chain.extend(draft)
            graded.append(grades)
    assert graded[1] == pytest.approx(graded[0], abs=0.05)  # bfloat16, added up in another order
