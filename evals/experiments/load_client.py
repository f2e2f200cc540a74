"""
Clients of the service, for a process of their own.

``python -m stepspec.evals.experiments.load_client URL CONCURRENT REQUESTS``
"""

from __future__ import annotations

import asyncio
import sys
import time

import aiohttp
import orjson

BODY = orjson.dumps({"model": "auto", "messages": [{"role": "user", "content": "What is 6 x 7?"}], "stream": True})


async def ask(base: str, concurrent: int, requests: int) -> list[float]:
    """Send *requests* streaming requests, at most *concurrent* at a time; return the seconds of each."""
    free, seconds = asyncio.Semaphore(concurrent), list[float]()
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(base, connector=aiohttp.TCPConnector(limit=0), headers=headers) as http:

        async def one() -> None:
            async with free:
                began = time.perf_counter()
                async with http.post("/v1/chat/completions", data=BODY) as reply:
                    text = await reply.read()
                if reply.status != 200 or not text.endswith(b"data: [DONE]\n\n") or b'"error"' in text:
                    raise RuntimeError(f"HTTP {reply.status}: {text[-500:]!r}")
                seconds.append(time.perf_counter() - began)

        await asyncio.gather(*(one() for _ in range(requests)))
    return seconds


if __name__ == "__main__":
    print(orjson.dumps(asyncio.run(ask(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))).decode())
