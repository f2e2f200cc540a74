"""
Render and lint the chart by Helm: sets of values come in as JSON by their names, and what became of
them goes out.

In a process of its own, because Helm's library brings along Go's runtime and its signal handlers.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from helm_python import HelmError
from helm_python.chart import Chart, lint


def outcome(chart: Chart, path: str, values: dict[str, Any]) -> dict[str, Any]:
    try:
        chart.validate_schema(values)
        report = lint(path, values, strict=True)
        return {
            "files": chart.render(values, name="demo", namespace="prod"),
            "lint": report["errors"],
        }
    except HelmError as exc:
        return {"error": str(exc)}


def main() -> None:
    path = sys.argv[1]
    with Chart.load(path) as chart:
        json.dump(
            {name: outcome(chart, path, values) for name, values in json.load(sys.stdin).items()},
            sys.stdout,
        )


if __name__ == "__main__":
    main()
