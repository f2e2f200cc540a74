"""The command ``serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .. import service_factory
from ..api import Solver
from .run_flags import with_run_flags
from .terminal import (
    CriticUrl,
    LargeUrl,
    SmallUrl,
    wait,
)

EXAMPLES = """
Examples:

  stepspec serve --small http://localhost:8001/v1 --large http://localhost:8002/v1

  stepspec serve --policy bild -o scale=step --ahead 3     # what `auto` means; both servers are in stepspec.toml

  STEPSPEC_CONFIG=specreason.toml stepspec serve --alternative bild.toml   # both from `stepspec calibrate`

  stepspec serve --host 0.0.0.0 --key SECRET --log-format json
"""


@with_run_flags("serve", before="alternative", help={"policy": "The method that `auto` means."})
def serve(
    small: SmallUrl = None,
    large: LargeUrl = None,
    critic: CriticUrl = None,
    alternative: Annotated[
        list[Path] | None,
        typer.Option(help="Policy file of another calibrated method that `auto` may choose; may be repeated."),
    ] = None,
    shadow: Annotated[
        float | None,
        typer.Option(help="Share of the accepted steps that the large model checks in the background.", min=0, max=1),
    ] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen at; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="The port; default 8765, 0 for any free one.")] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="An API key that clients must send; better set STEPSPEC_SERVICE__KEYS.")
    ] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Serve a public address without a key.", show_default=False)
    ] = None,
    cors_origin: Annotated[list[str] | None, typer.Option(help="Origin of web pages that may use the service.")] = None,
    thinking: Annotated[
        str | None,
        typer.Option(help="Field of replies for the thinking: both, reasoning, reasoning_content, content, none."),
    ] = None,
    max_running: Annotated[int | None, typer.Option(help="Number of requests processed at the same time.")] = None,
    max_waiting: Annotated[
        int | None, typer.Option(help="Number of requests that may wait; more are rejected.")
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(help="Deadline of a request in seconds; then it is answered from the thinking so far."),
    ] = None,
    drain_seconds: Annotated[
        float | None, typer.Option(help="Seconds that running requests have to finish at shutdown.")
    ] = None,
    root_path: Annotated[str | None, typer.Option(help="Path under which a proxy serves the service.")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_prompts: Annotated[
        bool | None, typer.Option("--log-prompts", help="Write problems and answers to the log.", show_default=False)
    ] = None,
    **overrides: Any,
) -> None:
    """
    Serve an OpenAI-compatible endpoint in front of both models, and a dashboard at /.

    These settings, and more, may also come from STEPSPEC_* variables and from stepspec.toml; docs/service.md lists it.
    """
    service_factory.require()
    settings = service_factory.service_settings(
        host=host,
        port=port,
        keys=key,
        insecure=insecure,
        cors_origins=cors_origin,
        thinking=thinking,
        max_running=max_running,
        max_waiting=max_waiting,
        max_seconds=max_seconds,
        drain_seconds=drain_seconds,
        root_path=root_path,
        log_format=log_format,
        log_level=log_level,
        log_prompts=log_prompts,
    )
    solver = Solver(
        small,
        large,
        critic=critic,
        alternatives=alternative,
        shadow=shadow,
        **overrides,
    )
    wait(service_factory.serve(solver, settings))
