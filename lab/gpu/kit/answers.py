"""
Solve problems by one method, many at once, until a time: answers.py METHOD.json PROBLEMS.jsonl
OUT.jsonl.

METHOD.json holds a table with the keys

- name, and policy with its options, or plain = true for one ordinary chat request to the large
  model;
- overrides: other options of a run, such as ahead; prior, from which `auto` begins; temperature;
  max_tokens; concurrency; limit (problems at most);
- like: for the control `random`, the OUT.jsonl of the method whose accept rate it gets;
- until: a file that holds the time (seconds since 1970) at which to stop; it is read again for
  every problem.

Each line of OUT.jsonl is one problem's outcome, written as soon as it is there. Text is graded
later, elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from stepspec import Solver
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.endpoints import Sampling
from stepspec.settings import load

ENOUGH = 150  # outcomes from which the accept rate of another method is read
LONGEST_WAIT = 60.0  # seconds for these


def outcomes(path: Path) -> list[dict[str, Any]]:
    """The outcomes so far in *path*."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def accept_rate(path: Path, problems: int) -> float:
    """The share of the drafts in *path* that were accepted, once there are enough outcomes."""
    began = time.monotonic()
    while len(outcomes(path)) < min(ENOUGH, problems) and time.monotonic() - began < LONGEST_WAIT:  # noqa: ASYNC110
        await asyncio.sleep(1)  # another process writes it
    rows = outcomes(path)
    drafts = sum(row.get("drafts", 0) for row in rows)
    return round(sum(row.get("accepted", 0) for row in rows) / drafts, 4) if drafts else 0.0


def seconds_left(until: Path) -> float:
    return float(until.read_text()) - time.time()


class Plain:
    """The large model as users have it without stepspec: one chat request."""

    def __init__(self, method: Mapping[str, Any]) -> None:
        self.method = method
        self.url = os.environ.get("LARGE_URL", "http://127.0.0.1:9302/v1")

    async def __aenter__(self) -> Plain:
        timeout = aiohttp.ClientTimeout(total=600)
        self.http = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()

    async def outcome(
        self, prompt: str, seed: int | None, trace_to: Path | None = None
    ) -> dict[str, Any]:
        body = {
            "model": "large",
            "messages": [{"role": "user", "content": prompt}],
            "temperature": self.method["temperature"],
            # as methods do; it costs vLLM time
            "top_p": 1 if self.method["temperature"] == 0 else Sampling().top_p,
            "max_tokens": self.method["max_tokens"],
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        text: list[str] = []
        finish = ""
        tokens = 0
        async with self.http.post(f"{self.url}/chat/completions", json=body) as reply:
            reply.raise_for_status()
            async for line in reply.content:
                if not line.startswith(b"data: {"):
                    continue
                event: Any = json.loads(line[6:])
                tokens = event["usage"]["completion_tokens"] if event.get("usage") else tokens
                for choice in event["choices"]:
                    text.append(choice["delta"].get("content") or "")
                    finish = choice.get("finish_reason") or finish
        return {"text": "".join(text), "finish": finish, "large": tokens}


class Method:
    """A method of stepspec."""

    def __init__(self, method: Mapping[str, Any]) -> None:
        self.method = method
        self.overrides: Any = method.get("overrides", {})
        self.solver = Solver(load(prior=method.get("prior")))

    async def __aenter__(self) -> Method:
        await self.solver.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.solver.__aexit__(*error)

    async def outcome(
        self, prompt: str, seed: int | None, trace_to: Path | None = None
    ) -> dict[str, Any]:
        method = self.method
        solution = await self.solver.solve(
            prompt,
            policy=method["policy"],
            options=method.get("options", {}),
            sampling=Sampling(temperature=method["temperature"]),
            seed=seed if method["temperature"] else None,
            budget=Budget(tokens=method["max_tokens"]),
            trace_to=trace_to,
            **self.overrides,
        )
        ledger = solution.ledger
        return {
            "text": solution.text,
            "finish": solution.finish_reason,
            "large": ledger.large.kept,
            "small": ledger.small.kept,
            "wasted": ledger.small.discarded + ledger.large.discarded,
            "judging": ledger.large.judging,
            "drafts": ledger.drafts,
            "accepted": ledger.accepted,
            "alone": round(solution.share_alone, 3),
            "degraded": list(solution.degraded),
        }


async def main(method: dict[str, Any], problems: list[dict[str, Any]], out: Path) -> None:
    until = Path(method["until"])
    if like := method.get("like"):
        rate = await accept_rate(Path(like), len(problems))
        method["options"] = {**method.get("options", {}), "p": rate}
        out.with_suffix(".rate").write_text(str(rate))
    gate = asyncio.Semaphore(method["concurrency"])
    with out.open("a") as file:

        async def one(solver: Plain | Method, problem: dict[str, Any]) -> None:
            async with gate:
                left = seconds_left(until)
                if left < 1:
                    return
                began = time.perf_counter()
                try:
                    async with asyncio.timeout(left):
                        row = await solver.outcome(problem["prompt"], problem["index"])
                except TimeoutError:
                    return
                except Exception as exc:
                    row = {"error": f"{type(exc).__name__}: {exc}"[:300]}
                head = {"bench": problem["bench"], "index": problem["index"]}
                seconds = round(time.perf_counter() - began, 4)
                file.write(json.dumps({**head, "seconds": seconds, **row}) + "\n")
                file.flush()

        async with Plain(method) if method.get("plain") else Method(method) as solver:
            await asyncio.gather(*(one(solver, problem) for problem in problems))


if __name__ == "__main__":
    chosen = json.loads(Path(sys.argv[1]).read_text())
    lines = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
    began = time.time()
    asyncio.run(main(chosen, lines[: chosen.get("limit")], Path(sys.argv[3])))
    print(f"{chosen['name']}: {time.time() - began:.1f} s")
