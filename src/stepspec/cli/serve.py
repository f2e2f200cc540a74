"""The command ``serve``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from stepspec.evals.flags import SAMPLING, SEED, SERVERS, Flag, with_settings

from .. import service_factory
from ..api import Solver
from .terminal import wait

EXAMPLES = """
Examples:

  stepspec serve --small http://localhost:8001/v1 \\
      --large http://localhost:8002/v1

  # what `auto` means; both servers are in stepspec.toml
  stepspec serve --policy bild -O scale=step --ahead 3

  stepspec serve --host 0.0.0.0 --key SECRET --log-format json
"""


def _service(name: str, annotation: object) -> Flag:
    return Flag(("service", name), annotation)


SERVICE: Mapping[str, Flag] = {
    "host": _service("host", Annotated[str | None, typer.Option("--host", help="The address; default 127.0.0.1.")]),
    "port": _service(
        "port", Annotated[int | None, typer.Option("--port", help="The port; default 8765, 0 for any free one.")]
    ),
    "key": _service(
        "keys",
        Annotated[
            list[str] | None,
            typer.Option("--key", help="An API key that clients must send; better set STEPSPEC_SERVICE__KEYS."),
        ],
    ),
    "insecure": _service(
        "insecure",
        Annotated[
            bool | None,
            typer.Option(
                "--insecure", help="Without a key, serve a public address, and any name and page.", show_default=False
            ),
        ],
    ),
    "cors_origin": _service(
        "cors_origins",
        Annotated[
            list[str] | None, typer.Option("--cors-origin", help="Origin of web pages that may use the service.")
        ],
    ),
    "thinking": _service(
        "thinking",
        Annotated[
            str | None,
            typer.Option(
                "--thinking",
                help="Field of replies for the thinking: both, reasoning, reasoning_content, content, none.",
            ),
        ],
    ),
    "max_running": _service(
        "max_running",
        Annotated[int | None, typer.Option("--max-running", help="Number of requests processed at the same time.")],
    ),
    "max_waiting": _service(
        "max_waiting",
        Annotated[
            int | None, typer.Option("--max-waiting", help="Number of requests that may wait; more are rejected.")
        ],
    ),
    "max_seconds": _service(
        "max_seconds",
        Annotated[
            float | None,
            typer.Option(
                "--max-seconds",
                help="Deadline of a request in seconds; then it is answered from the thinking so far.",
            ),
        ],
    ),
    "drain_seconds": _service(
        "drain_seconds",
        Annotated[
            float | None,
            typer.Option("--drain-seconds", help="Seconds that running requests have to finish at shutdown."),
        ],
    ),
    "root_path": _service(
        "root_path",
        Annotated[str | None, typer.Option("--root-path", help="Path under which a proxy serves the service.")],
    ),
    "log_format": _service("log_format", Annotated[str | None, typer.Option("--log-format", help="console or json.")]),
    "log_level": _service(
        "log_level", Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")]
    ),
    "log_prompts": _service(
        "log_prompts",
        Annotated[
            bool | None,
            typer.Option("--log-prompts", help="Write problems and answers to the log.", show_default=False),
        ],
    ),
}


@with_settings("serve", SERVERS, SAMPLING, SEED, SERVICE, help={"policy": "The method that `auto` means."})
def serve() -> None:
    """
    Serve an OpenAI-compatible endpoint in front of both models, and a dashboard at /.

    These settings, and more, may also come from STEPSPEC_* variables and from stepspec.toml; docs/service.md lists it.
    """
    service_factory.require()
    solver = Solver()
    wait(service_factory.serve(solver, solver.settings.service))
