"""Methods under load on real vLLM servers: the figures of every arm, and no request that stays open."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson

from lab.load import main
from stepspec.evals.testbed.solving_pair import fresh_tasks

from .conftest import Pair, running_requests


def test_two_problems_at_once_by_every_arm(pair: Pair, tmp_path: Path) -> None:
    rows = [{"problem": task.problem, "answer": str(task.gold)} for task in fresh_tasks(4, 31)]
    data, output = tmp_path / "problems.jsonl", tmp_path / "load.json"
    data.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    main(
        concurrency="2",
        policy=["specreason"],
        small=pair.small.base_url,
        large=pair.large.base_url,
        second_large=pair.large.base_url.replace("127.0.0.1", "localhost"),
        data=data,
        problems=2,
        blocks=1,
        temperature=0.0,
        output=output,
    )
    cells = orjson.loads(output.read_bytes())
    assert [(cell["name"], cell["concurrency"]) for cell in cells] == [
        (name, 2) for name in ("large alone", "large alone, two replicas", "specreason")
    ]
    assert {(cell["n"], cell["failed"], cell["judge"]) for cell in cells} == {(2, 0, pair.large.served_name)}
    assert {cell["accuracy"]["value"] for cell in cells if cell["name"] == "large alone"} == {1.0}
    assert all(cell["first_step"] < cell["first_answer"] < cell["latencies"]["p50"]["high"] for cell in cells)
    assert asyncio.run(_open_requests(pair)) == 0


async def _open_requests(pair: Pair) -> int:
    """Wait, 10 s at most, until the servers have noticed what was cancelled; return how many requests are left."""
    left = 1
    for _ in range(100):
        left = sum([await running_requests(server) for server in (pair.large, pair.small)])
        if not left:
            break
        await asyncio.sleep(0.1)
    return left
