"""
Serve a real pair, solve problems of GSM8K and MATH-500 with it, and print the figures.

``make real``, or ``python -m lab.real``. Every sample is kept, and a new run adds what is missing.
With ``--small`` and ``--large``, servers that run already are used, and nothing is fetched; with
``--models``, models that are there are served; with ``--table``, no model is needed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepspec.cli.program import script
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.servers.launcher import ServerCommand, launch
from stepspec.servers.launcher.up import show_progress

from .figures import tables
from .runs import METHODS, RUNS, Cell, Work, chosen_problems, read_samples, take, write_numbers
from .weights import LARGE, SMALL, prepare

FOLDER = Path("build/real")
READY = 1800.0  # seconds in which a server of a busy CPU is ready
FLAGS = (
    "--max-model-len 4096 --enable-prefix-caching --enable-prompt-tokens-details"
    " --generation-config vllm --scheduling-policy priority --dtype bfloat16 --max-num-seqs 32"
    " --enforce-eager --enable-scale-out --block-size 32 --max-num-batched-tokens 16384"
)
EXAMPLES = """
Examples:

  make real

  # a handful of problems, to see that it works
  python -m lab.real --problems 0-3

  # models that are there, on a machine with a GPU
  python -m lab.real --small http://gpu:8001/v1 --large http://gpu:8002/v1 --problems 0-1318

  # the figures of the samples in this repository, with drafts of other lengths
  python -m lab.real --table --folder lab/data/real-pair --problems 140-339 --draft-tokens 8
"""
stderr = Console(stderr=True)


@asynccontextmanager
async def served(small: Path, large: Path, logs: Path) -> AsyncGenerator[dict[str, str]]:
    """Serve both models, each on one core if this machine has no GPU; yield their URLs by role."""
    cores = {"small": "0", "large": str((os.cpu_count() or 2) - 1)}

    def server(role: str, model: Path) -> ServerCommand:
        env = {
            "VLLM_CPU_OMP_THREADS_BIND": cores[role],
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "MALLOC_PERTURB_": "255",
            "HF_HUB_OFFLINE": "1",
        }
        return ServerCommand(role, model, role, tuple(FLAGS.split()), env)

    with show_progress(stderr) as on_ready:
        async with launch(
            [server("small", small), server("large", large)],
            log_dir=logs,
            ready_timeout=READY,
            on_ready=on_ready,
        ) as running:
            yield {role: one.base_url for role, one in running.items()}


@asynccontextmanager
async def pair(
    urls: dict[str, str | None],
    models: Path | None,
    folder: Path,
) -> AsyncGenerator[dict[str, str]]:
    """Yield the URLs of both servers: *urls*, or those of *models*, or of fetched models."""
    given = {role: url for role, url in urls.items() if url}
    if given:
        yield given
        return
    if models is not None:
        folders = [models / SMALL.name, models / LARGE.name]
        for each in folders:
            check_model(each)
    else:
        folders = [prepare(weights, folder, say) for weights in (SMALL, LARGE)]
    async with served(folders[0], folders[1], folder / "logs") as running:
        yield running


def check_model(folder: Path) -> None:
    """Raise `ConfigurationError` if there is no model in *folder*."""
    if not (folder / "config.json").exists():
        raise ConfigurationError(
            f"--models: no model in {folder}; leave it out to fetch the models",
        )


def say(text: str) -> None:
    stderr.print(text, highlight=False)


def command(
    methods: Annotated[list[str] | None, typer.Argument(help="Methods with their options.")] = None,
    benchmark: Annotated[list[str] | None, typer.Option(help="By default gsm8k.")] = None,
    temperature: Annotated[list[float] | None, typer.Option(help="By default 0.")] = None,
    problems: Annotated[str, typer.Option(help="The first and the last, from 0.")] = "140-339",
    concurrency: Annotated[int, typer.Option(min=1, help="Problems solved at the same time.")] = 60,
    folder: Annotated[Path, typer.Option(help="For the samples.")] = RUNS,
    fetched: Annotated[Path, typer.Option(help="For packages and models: 8 GB.")] = FOLDER,
    models: Annotated[
        Path | None,
        typer.Option(help="A folder with the models small and large; nothing is fetched."),
    ] = None,
    small: Annotated[
        str | None,
        typer.Option(help="URL of a server that runs; with --large."),
    ] = None,
    large: Annotated[
        str | None,
        typer.Option(help="URL of a server that runs; with --small."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A folder with gsm8k.jsonl and math500.jsonl, instead of the hub."),
    ] = None,
    only_table: Annotated[bool, typer.Option("--table", help="Solve nothing.")] = False,
    draft_tokens: Annotated[
        list[int] | None,
        typer.Option(help="Replay drafts of this length; by default as recorded."),
    ] = None,
    numbers: Annotated[
        Path | None,
        typer.Option(help="Copy the samples into this folder, without texts."),
    ] = None,
) -> None:
    """Solve problems with a real pair; print the figures of each method beside plain."""
    if bool(small) != bool(large):
        raise ConfigurationError(
            "--small and --large belong together: name both servers, or neither",
        )
    if small and small == large:
        raise ConfigurationError("--small and --large are the same server: name two")
    chosen = chosen_problems(problems)
    cells = [
        Cell(name, heat, method)
        for name in benchmark or ["gsm8k"]
        for heat in temperature or [0.0]
        for method in methods or METHODS
    ]
    if not only_table:
        urls = {"small": small, "large": large}
        work = Work(cells, chosen, concurrency, folder, data)
        try:
            asyncio.run(solve(urls, models, fetched, work))
        except KeyboardInterrupt:
            say("interrupted; the samples stay, and a new run adds what is missing")
            raise typer.Exit(130) from None
    done = read_samples(folder, cells, chosen)
    if numbers is not None:
        write_numbers(numbers, done)
    print(tables(done, draft_tokens or [None]))


async def solve(
    urls: dict[str, str | None],
    models: Path | None,
    fetched: Path,
    work: Work,
) -> None:
    """Take the samples that *work* lacks, from servers that run or are started."""
    (fetched / "logs").mkdir(parents=True, exist_ok=True)
    async with pair(urls, models, fetched) as running:
        await take(running, work, say)


if __name__ == "__main__":
    script(command, EXAMPLES)
