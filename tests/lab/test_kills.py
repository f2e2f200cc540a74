"""The account of solutions during which a server was killed."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from lab.kills import Killed, table


def test_solutions_are_counted_by_the_model_whose_server_was_killed() -> None:
    found = [
        Killed("small", "http://a", 0.2, equal=True, in_use=True),
        Killed("small", "http://a", 0.9, equal=False, in_use=True, why="length, degraded: no"),
        Killed("large", "http://b", 0.9, equal=True, in_use=False),
    ]
    file = StringIO()
    Console(file=file, width=120).print(table(found))
    printed = file.getvalue()
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in printed.splitlines() if "│" in line]
    assert cells == [["small", "2", "2", "1"], ["large", "1", "0", "1"], ["all", "3", "2", "2"]]
