"""``python -m tests.stand_in``: a stand-in vLLM server as a program."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from stepspec.cli.program import script

from . import GENERATE, Latency, StandIn

EXAMPLES = """
Examples:

  python -m tests.stand_in --port 8001 --token-ms 5                    # a small model

  python -m tests.stand_in --port 8002 --token-ms 25 --accept 0.8      # a large one, and the judge

  curl --json '["none", "reset:5", "stall:3", "503:2", "memory"]' http://127.0.0.1:8001/faults
"""


def main(
    port: Annotated[
        int, typer.Option(help="Port to listen at; 0: a free one, which is printed.")
    ] = 8000,
    model: Annotated[str, typer.Option(help="Name of the model.")] = "stand-in",
    steps: Annotated[int, typer.Option(min=1, help="Steps of the thinking.")] = 40,
    step_tokens: Annotated[int, typer.Option(min=2, help="Tokens of a step.")] = 30,
    token_ms: Annotated[
        float, typer.Option(min=0, help="Milliseconds for each token but the first.")
    ] = 0.0,
    accept: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of the questions that get the grade 9, or yes."),
    ] = 1.0,
    block: Annotated[
        int, typer.Option(min=0, help="Block of the prefix cache in tokens; 0: no cache.")
    ] = 16,
    room: Annotated[int, typer.Option(min=512, help="The longest sequence, in tokens.")] = 32_768,
    scale_out: Annotated[bool, typer.Option("--scale-out", help=f"Open {GENERATE}.")] = False,
) -> None:
    """
    Serve vLLM's protocol without a model: steps of a set length at a set pace, verdicts, and faults
    on demand.
    """
    server = StandIn(
        names=(model,),
        steps=steps,
        step_tokens=step_tokens,
        latency=Latency(token=token_ms / 1000),
        accept=accept,
        block=block,
        room=room,
        scale_out=scale_out,
        garbage=False,
    )

    async def serve() -> None:
        async with server.listening(port=port) as url:
            print(f"the stand-in listens at {url}", flush=True)
            await asyncio.Event().wait()

    try:
        asyncio.run(serve())
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    script(main, EXAMPLES)
