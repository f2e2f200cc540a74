"""
Each problem has its line, a failure spoils no other, and no more runs than allowed are under way.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from ..stand_in import Latency, StandIn
from .running import listening, run_example

PROBLEMS = 40
AT_ONCE = 16


@dataclass
class SessionCounter(StandIn):
    """Counts from how many runs there are requests, at most."""

    sessions: list[str] = field(default_factory=list[str])
    most: int = 0

    async def complete(self, request: web.Request) -> web.StreamResponse:
        session = request.headers["X-Session-ID"]
        self.sessions.append(session)
        self.most = max(self.most, len(set(self.sessions)))
        try:
            return await super().complete(request)
        finally:
            self.sessions.remove(session)


async def test_every_problem_has_its_line_and_a_failure_spoils_no_other(tmp_path: Path) -> None:
    small = SessionCounter(steps=2, step_tokens=8, latency=Latency(first=0.5), room=1024)
    problems = [f"What is {number} x 7?" for number in range(PROBLEMS)]
    problems[3] = "long " * 2000
    async with listening(small, StandIn(steps=2, step_tokens=8, room=1024)) as pair:
        printed = await run_example(
            "many_problems.py",
            variables=pair.settings,
            folder=tmp_path,
            stdin="\n\n".join(problems),
        )
    lines = sorted(map(json.loads, printed.splitlines()), key=lambda line: line["number"])
    assert [(line["number"], line["problem"]) for line in lines] == list(
        enumerate(map(str.strip, problems), 1)
    )
    failed = lines.pop(3)
    assert (
        "leave no room to think; this model's maximum context length is 1024 tokens"
        in failed["error"]
    )
    assert "answer" not in failed
    for line in lines:
        assert (line["answer"], line["finish_reason"], line["accept_rate"]) == ("42", "stop", 1)
        assert line["seconds"] >= 0.5
    assert AT_ONCE / 2 < small.most <= AT_ONCE
