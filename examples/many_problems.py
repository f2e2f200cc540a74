"""
Solve many problems at once with one `Solver`: one problem per line in, one JSON object per line
out.

    export STEPSPEC_SMALL=http://localhost:8001/v1 STEPSPEC_LARGE=http://localhost:8002/v1
    python examples/many_problems.py < problems.txt > solutions.jsonl

A problem that fails has an "error" in its line, and the others go on. Lines are in the order in
which runs end.
"""

import asyncio
import json
import sys
from typing import Any

from rich.console import Console
from rich.progress import Progress

from stepspec import Solver, StepspecError

AT_ONCE = 16  # runs; more requests than the servers take at a time would only wait there


async def main(problems: list[str]) -> None:
    free = asyncio.Semaphore(AT_ONCE)

    async def solve(solver: Solver, number: int, problem: str) -> dict[str, Any]:
        async with free:
            try:
                solution = await solver.solve(problem)
            except StepspecError as error:
                return {"number": number, "problem": problem, "error": str(error)}
        return {
            "number": number,
            "problem": problem,
            "answer": solution.answer,
            "finish_reason": solution.finish_reason,
            "accept_rate": solution.ledger.accept_rate,
            "seconds": round(solution.seconds, 3),
        }

    async with Solver() as solver, asyncio.TaskGroup() as tasks:
        runs = [
            tasks.create_task(solve(solver, number, problem))
            for number, problem in enumerate(problems, 1)
        ]
        with Progress(console=Console(stderr=True)) as progress:
            for ended in progress.track(
                asyncio.as_completed(runs), total=len(runs), description="Solving"
            ):
                print(json.dumps(await ended), flush=True)


if __name__ == "__main__":
    asyncio.run(main([line.strip() for line in sys.stdin if line.strip()]))
