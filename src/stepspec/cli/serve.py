"""The command ``serve``."""

from __future__ import annotations

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

  stepspec serve --host 0.0.0.0 --key SECRET --log-format json
"""


@with_run_flags("serve", before="shadow", help={"policy": "The method that `auto` means."})
def serve(
    small: SmallUrl = None,
    large: LargeUrl = None,
    critic: CriticUrl = None,
    shadow: Annotated[
        float | None,
        typer.Option(
            help="Let the large model check this share of accepted steps, off the critical path.", min=0, max=1
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen at; 127.0.0.1 unless given.")] = None,
    port: Annotated[int | None, typer.Option(help="The port; 8765 unless given, 0 for any that is free.")] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="An API key that opens the service; better in STEPSPEC_SERVICE__KEYS.")
    ] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Serve a public address without a key.", show_default=False)
    ] = None,
    cors_origin: Annotated[list[str] | None, typer.Option(help="A web page's origin that may use it.")] = None,
    thinking: Annotated[
        str | None, typer.Option(help="Where replies tell it: both, reasoning, reasoning_content, content, none.")
    ] = None,
    max_running: Annotated[int | None, typer.Option(help="Requests worked on at the same time.")] = None,
    max_waiting: Annotated[int | None, typer.Option(help="Requests that may wait; more are refused.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="A request's deadline; it ends in an answer.")] = None,
    drain_seconds: Annotated[float | None, typer.Option(help="How long running requests may finish.")] = None,
    root_path: Annotated[str | None, typer.Option(help="The path that a proxy serves it under.")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_prompts: Annotated[
        bool | None, typer.Option("--log-prompts", help="Write problems and answers to the log.", show_default=False)
    ] = None,
    **overrides: Any,
) -> None:
    """
    Serve an OpenAI-compatible endpoint in front of both models, and a page at / to watch them on.

    All of this, and more, may also come from STEPSPEC_* variables and from stepspec.toml; docs/service.md lists it.
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
        shadow=shadow,
        **overrides,
    )
    wait(service_factory.serve(solver, settings))
