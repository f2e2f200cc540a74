"""
The same chain by the large model alone and by methods, at set accept rates: timings.py CASES.json
PROBLEMS.jsonl OUT.

Each case is a table: name; accept (the rate that the scripted judge has); at (chains at once);
rounds; the keys of `answers`. Cases run one after the other, so that each has the card for itself.
OUT gets a line for every chain in timings.jsonl, as it is done, and the trace of the first chain of
each case in NAME.trace.jsonl.

A case with `turns`, a list of methods, lets these take turns at the same problems, one chain at a
time. In each of its rounds every method has a new solver, which knows nothing yet, for the next
`at` problems, from the one at `start` on. It samples without a seed, as most users do, so that
`large` writes many steps with one request.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from stepspec.orchestrator.endpoints.request_context import separate_cache

from .answers import Method, Plain

TRACED = 3  # rounds whose chains leave a trace


def solver_of(method: dict[str, Any]) -> Plain | Method:
    return Plain(method) if method.get("plain") else Method(method)


def set_accept_rate(case: dict[str, Any]) -> None:
    if (rates := os.environ.get("SCRIPT_ACCEPT_FILE")) and "accept" in case:
        Path(rates).write_text(str(case["accept"]))


async def run_chain(
    solver: Plain | Method, prompt: str, seed: int | None, salt: str, trace_to: Path | None
) -> dict[str, Any]:
    """
    Run one chain, which finds nothing in the prefix caches that chains with another *salt* wrote.
    """
    began = time.perf_counter()
    with separate_cache(salt):
        outcome = await solver.outcome(prompt, seed, trace_to)
    del outcome["text"]
    return {"seconds": round(time.perf_counter() - began, 4), **outcome}


async def run_case(case: dict[str, Any], prompts: list[str], out: Path) -> None:
    at: int = case.get("at", 1)
    async with solver_of(case) as solver:
        for number in range(case.get("rounds", 1)):
            chosen = [prompts[(number * at + place) % len(prompts)] for place in range(at)]
            trace_to = None if number else out / f"{case['name']}.trace.jsonl"
            salts = [f"{case['name']} {number} {place}" for place in range(at)]
            traces = [trace_to, *[None] * (at - 1)]
            rows = await asyncio.gather(
                *map(run_chain, [solver] * at, chosen, range(at), salts, traces)
            )
            write_round(case["name"], number, rows, out)


async def take_turns(case: dict[str, Any], prompts: list[str], out: Path) -> None:
    at: int = case["at"]
    for number in range(case["rounds"]):
        async with AsyncExitStack() as stack:
            solvers = {method["name"]: solver_of(method) for method in case["turns"]}
            for solver in solvers.values():
                await stack.enter_async_context(solver)
            for position in range(at):
                problem: int = (case["start"] + number * at + position) % len(prompts)
                names = list(solvers)
                for name in (*names[problem % len(names) :], *names[: problem % len(names)]):
                    salt = f"{case['name']} {name} {problem}"
                    trace_to = out / f"{salt}.trace.jsonl" if number < TRACED else None
                    row = await run_chain(solvers[name], prompts[problem], None, salt, trace_to)
                    write(
                        out,
                        {
                            "case": name,
                            "of": case["name"],
                            "round": number,
                            "position": position,
                            **row,
                        },
                    )


def write(out: Path, row: dict[str, Any]) -> None:
    with (out / "timings.jsonl").open("a") as file:
        file.write(f"{json.dumps(row)}\n")


def write_round(name: str, number: int, rows: list[dict[str, Any]], out: Path) -> None:
    """Write the chains of one round as lines, and print their mean duration."""
    for row in rows:
        write(out, {"case": name, "round": number, **row})
    mean = sum(row["seconds"] for row in rows) / len(rows)
    drafts, accepted = (sum(row.get(key, 0) for row in rows) for key in ("drafts", "accepted"))
    print(
        f"{name:32s} round {number}: mean {mean:7.2f} s, accepted {accepted} of {drafts}",
        flush=True,
    )


async def main(cases: list[dict[str, Any]], prompts: list[str], out: Path) -> None:
    for case in cases:
        set_accept_rate(case)
        try:
            async with asyncio.timeout(case.get("seconds", 60)):
                await (take_turns if "turns" in case else run_case)(case, prompts, out)
        except Exception as exc:
            print(f"{case['name']}: {type(exc).__name__}: {exc}"[:400], flush=True)


if __name__ == "__main__":
    lines = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
    folder = Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(
        main(json.loads(Path(sys.argv[1]).read_text()), [line["prompt"] for line in lines], folder)
    )
