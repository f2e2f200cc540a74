"""What the terminal shows while servers start and while problems are gone through."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.launcher import Served, Server, TokenSpeculation, launch
from stepspec.orchestrator.launcher.commands import ZEROS, arguments
from stepspec.orchestrator.launcher.up import line, starting

from .profiles import pace, paced_drafter

__all__ = ["counting", "line", "starting"]


def counting(console: Console) -> Bars:
    """Bars that count, with the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Bars(*columns, console=console)


MODELS = Path(__file__).parent / "models"
PAIR = ("large", "small")
TINY = "tiny"  # drafts for the small one in a nested pair
SCORERS = frozenset({"large"})  # their servers open /inference/v1/generate, which scoring only a suffix needs
CONTEXT = 2048  # tokens, the most that the models were made for
DRAFTER = "small"  # drafts tokens for the large model, where that is asked for
NOTHING: Mapping[str, TokenSpeculation] = {}

FLAGS: Mapping[str, Any] = {
    "dtype": "float32",
    "enforce-eager": True,  # nothing to compile that would be worth the wait
    # Else a third process for each server: eight seconds of imports, and 2 ms more for every token.
    "distributed-executor-backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    "kv-cache-memory-bytes": 256 * 2**20,
    "block-size": 32,  # of the prefix cache; 128 by default on a CPU, 16 on a GPU
    "max-num-seqs": 16,
    # All that 16 prompts can hold, so that none is read in parts: on a CPU, vLLM 0.32 dies ("CPU Generator does not use
    # offset") when it reads a part of a prompt whose request samples by a seed.
    "max-num-batched-tokens": 16 * CONTEXT,
    "generation-config": "vllm",  # what a request leaves out is vLLM's default, not the model's
    "enable-prompt-tokens-details": True,  # tells how much of a prompt was cached
    "disable-uvicorn-access-log": True,
    "scheduling-policy": "priority",  # verdicts before drafts, and both before bets, where requests have to wait
    # Between the brackets of JSON a model that was never shown any writes white space until its room is used up. vLLM
    # reads this from its own configuration only, not from a request, and only where the backend is named.
    "structured-outputs-config": {"backend": "xgrammar", "disable_any_whitespace": True},
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

SPECULATIONS: Mapping[str, Mapping[str, TokenSpeculation]] = {
    "none": NOTHING,
    "ngram": {role: TokenSpeculation(method="ngram") for role in PAIR},
    "draft_model": {"large": TokenSpeculation(method="draft_model")},
}


def weights(*names: str, models: Path = MODELS) -> str:
    """A digest of the weights of the models called *names*, so that figures of others are not taken for theirs."""
    digest = blake2b(digest_size=8)
    for name in names:
        digest.update((models / name / "model.safetensors").read_bytes())
    return digest.hexdigest()


def miniature_servers(
    profile: str = "paced",
    roles: Sequence[str] = PAIR,
    *,
    models: Path = MODELS,
    context: int = CONTEXT,
    speculation: Mapping[str, TokenSpeculation] = NOTHING,
    drafter: Path | None = None,
) -> tuple[Server, ...]:
    """
    Describe the servers of *roles*: "large", "small", "small-other", "tiny"; each serves ``testbed-<role>``.

    *context* is in tokens. *speculation* is by role; the *drafter* of ``draft_model`` is the small model if none is
    given. Raise ConfigurationError for an unknown profile and for a model that is not there.
    """
    drafting = {role: one.configuration(str(drafter or models / DRAFTER)) for role, one in speculation.items()}
    return tuple(
        _server(profile, role, models / role, {**_own(role, context), **_speculating(drafting.get(role))})
        for role in roles
    )


def speculating(method: str) -> Mapping[str, TokenSpeculation]:
    """
    By role, what to run under the pair: *method* under both, but ``draft_model`` under the large model only.

    Raise ConfigurationError for a method that the miniature pair has no drafter for.
    """
    if method not in SPECULATIONS:
        raise ConfigurationError(
            f"the miniature pair cannot speculate by {method!r}; it can by: {', '.join(SPECULATIONS)}"
        )
    return SPECULATIONS[method]


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
    speculation: Mapping[str, TokenSpeculation] = NOTHING,
) -> AsyncGenerator[Mapping[str, Served]]:
    """Start the servers of *roles*, with a line of progress on *console*, and stop them when the block is left."""
    async with AsyncExitStack() as stack:
        drafter = stack.enter_context(paced_drafter(models / DRAFTER, pace(profile, DRAFTER)))
        servers = miniature_servers(profile, roles, models=models, speculation=speculation, drafter=drafter)
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
        args=tuple(arguments({**FLAGS, **extra, **paced})),
        env={**ENVIRONMENT, **plugins, **zeros},
    )


def _own(role: str, context: int) -> dict[str, Any]:
    return {"max-model-len": context, "enable-scale-out": role in SCORERS}


def _speculating(configuration: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"speculative-config": configuration} if configuration else {}
