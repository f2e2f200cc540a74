"""The miniature pair as vLLM servers on a CPU: which flags, and why."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from ...orchestrator.chain import Role
from ...orchestrator.endpoints import Endpoint
from ...orchestrator.errors import ConfigurationError
from ...orchestrator.serving import Served, Server, launch
from .profiles import pace
from .progress import starting

MODELS = Path(__file__).parent / "models"
PAIR = ("large", "small")
SCORERS = frozenset({"large"})  # their servers open /inference/v1/generate, which scoring only a suffix needs
CONTEXT = 2048  # tokens, the most that the models were made for

FLAGS: Mapping[str, Any] = {
    "dtype": "float32",
    "enforce-eager": True,  # nothing to compile that would be worth the wait
    # Else a third process for each server: eight seconds of imports, and 2 ms more for every token.
    "distributed-executor-backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    "kv-cache-memory-bytes": 256 * 2**20,
    "block-size": 32,  # of the prefix cache; 128 by default on a CPU, 16 on a GPU
    "max-num-seqs": 16,
    "generation-config": "vllm",  # what a request leaves out is vLLM's default, not the model's
    "enable-prompt-tokens-details": True,  # tells how much of a prompt was cached
    "disable-uvicorn-access-log": True,
}

ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "PYTHONWARNINGS": "ignore",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}

# With the scores of a suffix, vLLM's V1 runner sends memory that it has not written to. As zeros it at least is JSON;
# otherwise, glibc gives away whatever bits were there, and every other reply fails over a number that is none.
ZEROS: Mapping[str, str] = {"MALLOC_PERTURB_": "255"}


def miniature_servers(
    profile: str = "paced",
    roles: Sequence[str] = PAIR,
    *,
    models: Path = MODELS,
    context: int = CONTEXT,
) -> tuple[Server, ...]:
    """
    Describe the servers of *roles*: "large", "small", "small-other"; each serves ``testbed-<role>``.

    *context* is in tokens. Raise ConfigurationError for an unknown profile and for a model that is not there.
    """
    return tuple(
        _server(profile, role, models / role, {"max-model-len": context, "enable-scale-out": role in SCORERS})
        for role in roles
    )


def endpoint(served: Served, role: Role) -> Endpoint:
    """Return the settings of the endpoint that a server of the pair is, for *role*."""
    suffix_scoring = served.name in SCORERS
    return Endpoint(role=role, url=served.base_url, model=served.served_name, suffix_scoring=suffix_scoring)


@asynccontextmanager
async def running(
    profile: str = "paced",
    roles: Sequence[str] = PAIR,
    *,
    console: Console,
    models: Path = MODELS,
    log_dir: Path | None = None,
    ready_timeout: float = 300.0,
) -> AsyncGenerator[Mapping[str, Served]]:
    """Start the servers of *roles*, with a line of progress on *console*, and stop them when the block is left."""
    servers = miniature_servers(profile, roles, models=models)
    async with AsyncExitStack() as stack:
        with starting(console) as tell:
            launching = launch(servers, log_dir=log_dir, ready_timeout=ready_timeout, on_progress=tell)
            served = await stack.enter_async_context(launching)
        yield served


def _server(profile: str, role: str, model: Path, extra: Mapping[str, Any]) -> Server:
    if not (model / "config.json").is_file():
        raise ConfigurationError(f"no miniature model at {model}; python -m stepspec.evals.testbed makes them")
    at = pace(profile, role)
    paced = {"hf-overrides": json.dumps(at.overrides())} if at else {}
    plugins = {"VLLM_PLUGINS": "stepspec_paced" if at else ""}
    zeros: Mapping[str, str] = ZEROS if role in SCORERS else {}
    return Server(
        name=role,
        model=model,
        served_name=f"testbed-{role}",
        args=tuple(_arguments({**FLAGS, **extra, **paced})),
        env={**ENVIRONMENT, **plugins, **zeros},
    )


def _arguments(flags: Mapping[str, Any]) -> list[str]:
    """Spell flags as vLLM's command line wants them: True stands alone, False not at all."""
    spelled: list[str] = []
    for name, value in flags.items():
        if value is not False:
            spelled += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return spelled
