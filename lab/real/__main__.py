"""
Fetch a real pair, serve it, solve GSM8K and MATH-500 with every method that makes sense, and write
the table.

``make real``, or ``python -m lab.real``. Everything goes on where it was stopped. With ``--small``
and ``--large``, servers that run already are measured, and nothing is fetched; with ``--models``,
models that are there are served.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import platform
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from stepspec.evals.command_line import script
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.launcher import Server, launch
from stepspec.orchestrator.launcher.up import show_progress

from .campaign import TEMPERATURES, Cell, measure, plan, table, write_section
from .weights import LARGE, SMALL, SMOL, prepare

FOLDER = Path("build/real")
READY = 1800.0  # seconds in which a server of a busy CPU is ready
FLAGS = (
    "--max-model-len 4096 --enable-prefix-caching --enable-prompt-tokens-details"
    " --generation-config vllm --scheduling-policy priority --dtype bfloat16 --max-num-seqs 16"
    " --enforce-eager"
)
CAPTION = (
    "Qwen2.5-Coder-1.5B-Instruct (Q4_K_M, converted to bfloat16) with {small}, `{command}`, {date},"
    " {where}. Each model was trained by others, and on none of our prompts; neither thinks in a"
    " block of its own, so that the method writes the answer, too. A model of 0.5 billion"
    " parameters is a poor draft for one of 1.5: what counts here is how many drafts are accepted,"
    " how good the judge is, and the accuracy. {shared}Brackets: 95% intervals."
)
EXAMPLES = """
Examples:

  make real

  # a handful of problems, to see that it works
  python -m lab.real -n 4 --fewer 2 --temperature 0

  # models that are there, on a machine with a GPU
  python -m lab.real --small http://gpu:8001/v1 --large http://gpu:8002/v1 -n 500 --concurrency 64
"""
stderr = Console(stderr=True)


@asynccontextmanager
async def served(small: Path, large: Path, logs: Path) -> AsyncGenerator[dict[str, str]]:
    """Serve both models, each on one core if this machine has no GPU; yield their URLs by role."""
    cores = {"small": "0", "large": str((os.cpu_count() or 2) - 1)}

    def server(role: str, model: Path) -> Server:
        env = {
            "VLLM_CPU_OMP_THREADS_BIND": cores[role],
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "HF_HUB_OFFLINE": "1",
        }
        return Server(role, model, role, tuple(FLAGS.split()), env)

    with show_progress(stderr) as on_progress:
        async with launch(
            [server("small", small), server("large", large)],
            log_dir=logs,
            ready_timeout=READY,
            on_progress=on_progress,
        ) as running:
            yield {role: one.base_url for role, one in running.items()}


@asynccontextmanager
async def pair(
    urls: dict[str, str | None], models: Path | None, folder: Path, third: bool
) -> AsyncGenerator[dict[str, str]]:
    """
    The URLs of both servers: those of *urls*, or of servers of *models*, or of models that are
    fetched first.
    """
    given = {role: url for role, url in urls.items() if url}
    if given:
        yield given
        return
    drafter = SMOL if third else SMALL
    if models is not None:
        folders = [models / drafter.name, models / LARGE.name]
        for each in folders:
            check_model(each)
    else:
        folders = [prepare(weights, folder, say) for weights in (drafter, LARGE)]
    async with served(folders[0], folders[1], folder / "logs") as running:
        yield running


def check_model(folder: Path) -> None:
    """Raise `ConfigurationError` if there is no model in *folder*."""
    if not (folder / "config.json").exists():
        raise ConfigurationError(
            f"--models: no model in {folder}; leave it out to fetch the models"
        )


def say(text: str) -> None:
    stderr.print(text, highlight=False)


def command(
    problems: Annotated[
        int, typer.Option("--problems", "-n", min=1, help="Problems of each benchmark.")
    ] = 40,
    fewer: Annotated[
        int, typer.Option(min=0, help="Problems for the methods that ask or route; 0: none.")
    ] = 12,
    temperature: Annotated[list[float] | None, typer.Option(help="By default 0 and 0.6.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Problems solved at the same time.")] = 12,
    folder: Annotated[
        Path, typer.Option(help="For packages, models and runs: 8 GB.", metavar="FOLDER")
    ] = FOLDER,
    models: Annotated[
        Path | None,
        typer.Option(help="A folder with the models small and large; nothing is fetched."),
    ] = None,
    small: Annotated[
        str | None, typer.Option(help="URL of a server that runs; with --large.")
    ] = None,
    large: Annotated[
        str | None, typer.Option(help="URL of a server that runs; with --small.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A folder with gsm8k.jsonl and math500.jsonl, instead of the hub."),
    ] = None,
    third: Annotated[
        bool, typer.Option("--smol", help="Draft with SmolLM2-135M, which has another vocabulary.")
    ] = False,
    page: Annotated[Path, typer.Option(help="The page to write the table into.")] = Path(
        "docs/results.md"
    ),
) -> None:
    """
    Solve GSM8K and MATH-500 with a real pair and every method that makes sense, and write the
    table.
    """
    if bool(small) != bool(large):
        raise ConfigurationError(
            "--small and --large belong together: name both servers, or neither"
        )
    if small and small == large:
        raise ConfigurationError("--small and --large are the same server: name two")
    temperatures = temperature or TEMPERATURES
    name = "smol" if third else "pair"
    title = "A real pair on this machine" + (
        " with a small model of another vocabulary" if third else ""
    )

    (folder / "logs").mkdir(parents=True, exist_ok=True)

    async def work() -> None:
        async with pair({"small": small, "large": large}, models, folder, third) as urls:
            done: dict[Cell, list[dict[str, Any]]] = {}
            for cell in plan(problems, fewer, temperatures):
                if cell.limit == 0:
                    continue
                say(f"{cell.folder}: {len(cell.methods)} methods, {cell.limit} problems")
                words = cell.command(urls, folder / "runs" / name, data, concurrency)
                done[cell] = await asyncio.to_thread(measure, cell, words)
                write_section(page, name, title, f"{_caption(third, concurrency)}\n\n{table(done)}")
                say(f"wrote {page}")

    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        say("interrupted; what was measured stays, and a new run goes on from there")
        raise typer.Exit(130) from None


def _caption(third: bool, concurrency: int) -> str:
    at_once = "one problem at a time" if concurrency == 1 else f"{concurrency} problems at once"
    return CAPTION.format(
        small=(SMOL if third else SMALL).model,
        command=f"python -m lab.real{' --smol' if third else ''}",
        date=datetime.date.today(),
        where=f"{at_once}, {os.cpu_count()} cores of {platform.machine()}",
        shared=(
            "All arms share the servers at the same time, so that seconds compare methods only"
            " roughly. "
        ),
    )


if __name__ == "__main__":
    script(command, EXAMPLES)
