"""
Start the servers of the miniature models.

A profile of ``profiles.toml`` sets the duration of a forward pass of each model, so that latency on
a CPU has the shape of a GPU's. The vLLM plugin in ``plugin/`` implements that pace. Only the
servers started here load it.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from rich.console import Console

from stepspec.orchestrator.backends.vllm.endpoint import warm_up
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.servers.launcher import Served, ServerCommand, launch
from stepspec.servers.launcher.commands import (
    ZEROED_MEMORY,
    arguments,
    known_flags,
    vllm_version,
)
from stepspec.servers.launcher.up import show_progress

from . import Profile, SpeculationMethod

MODELS = Path(__file__).with_name("models")
PROFILES = Path(__file__).with_name("profiles.toml")
# a folder with the metadata of a distribution, for the servers' PYTHONPATH
PLUGIN = Path(__file__).with_name("plugin")
ARCHITECTURE = "PacedQwen3ForCausalLM"
LARGE = MODELS / "large"
SMALL = MODELS / "small"
PAIR = (LARGE, SMALL)
SERVED = "testbed-"  # the prefix of the names under which the models are served
# roles whose servers open /inference/v1/generate, which suffix scoring needs
SCORERS = frozenset({"large"})
Speculation: TypeAlias = Mapping[str, Mapping[str, Any]]
"""vLLM's ``--speculative-config`` by role."""
NO_SPECULATION: Speculation = {}
SEQUENCES = 16  # at once on one server

FLAGS: Mapping[str, Any] = {
    "dtype": "float32",
    "enforce-eager": True,  # compilation takes longer than it saves
    # Otherwise a third process for each server: eight seconds of imports, and 2 ms more for every
    # token.
    "distributed-executor-backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    "kv-cache-memory-bytes": 64 * 2**20,
    "max-model-len": 2048,
    "block-size": 32,  # tokens, of the prefix cache; vLLM's default is 128 on a CPU, 16 on a GPU
    "max-num-seqs": SEQUENCES,
    # The tokens of as many prompts of the longest context, so that no prompt is read in parts: on a
    # CPU, vLLM 0.32 crashes ("CPU Generator does not use offset") when it reads a part of a prompt
    # whose request samples with a seed.
    "max-num-batched-tokens": SEQUENCES * 2048,
    "generation-config": "vllm",  # sampling defaults are vLLM's, not the model's
    "enable-prompt-tokens-details": True,  # responses report how many prompt tokens were cached
    "enable-auto-tool-choice": True,
    "tool-call-parser": "hermes",  # Qwen3's
    "disable-uvicorn-access-log": True,
    # verdicts before drafts, and both before bets, when requests have to wait
    "scheduling-policy": "priority",
    # A model that was not trained on JSON writes white space between its brackets until the context
    # is full. vLLM reads this option only from its own configuration, not from a request, and only
    # if the backend is named.
    "structured-outputs-config": {"backend": "xgrammar", "disable_any_whitespace": True},
}

ENVIRONMENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    # vLLM looks for n-grams in one thread; a second one of numba's only spins
    "NUMBA_NUM_THREADS": "1",
    # by default a kernel for each of 1,024 batch sizes: 300 MB a server
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    # vLLM compiles the ranks of log-probabilities: 4 s, for nothing at this size
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "PYTHONWARNINGS": "ignore",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}

# vLLM's default of exactly five tokens rarely matches within a step.
NGRAM: Mapping[str, Any] = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
}
SPECULATIONS: Mapping[SpeculationMethod, Speculation] = {
    "none": NO_SPECULATION,
    "ngram": {model.name: NGRAM for model in PAIR},
    "draft_model": {"large": {"method": "draft_model", "num_speculative_tokens": 4}},
}


def miniature(names: Iterable[str]) -> bool:
    """Whether all of the models called *names* are miniature models."""
    return all(name.startswith(SERVED) for name in names)


def paced_configuration(profile: Profile, role: str) -> dict[str, Any]:
    """
    Return the values of a Qwen3's configuration with which vLLM serves *role* at its pace.

    Return {} if *profile* has no paces.
    """
    paces = tomllib.loads(PROFILES.read_text(encoding="utf-8"))[profile]
    return {"architectures": [ARCHITECTURE], **paces[role]} if paces else {}


@contextmanager
def paced_drafter(model: Path, overrides: Mapping[str, Any]) -> Generator[Path]:
    """
    Yield a copy of the folder *model* with the *overrides* in its configuration.

    vLLM applies the overrides of its command line to the model that it serves, not to the model
    that drafts for it. Without overrides yield *model* itself.
    """
    if not overrides or not model.is_dir():
        yield model
        return
    with TemporaryDirectory(prefix="stepspec-drafter-") as name:
        folder = Path(name)
        for file in model.iterdir():
            if file.name != "config.json":
                (folder / file.name).symlink_to(file.resolve())
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        config.update(overrides)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield folder


def weights_digest() -> str:
    """Return a digest of the weights of the pair."""
    digest = blake2b(digest_size=8)
    for model in PAIR:
        digest.update((model / "model.safetensors").read_bytes())
    return digest.hexdigest()


def miniature_servers(
    profile: Profile = "paced",
    models: Sequence[Path] = PAIR,
    *,
    speculation: Speculation = NO_SPECULATION,
    drafter: Path = SMALL,
    flags: Mapping[str, Any] = FLAGS,
) -> tuple[ServerCommand, ...]:
    """
    Describe the servers of *models*, which are folders. The name of a folder is the role.

    A server serves ``testbed-<role>``. *speculation* is by role. *drafter* is the model of
    ``draft_model``. Raise `ConfigurationError` for a missing model.
    """
    servers: list[ServerCommand] = []
    for model in models:
        drafting = dict(speculation.get(model.name, {}))
        if drafting.get("method") == "draft_model":
            drafting["model"] = str(drafter)
        pace = paced_configuration(profile, model.name)
        servers.append(_server(model, flags, pace, drafting))
    return tuple(servers)


def _server(
    model: Path,
    common: Mapping[str, Any],
    pace: Mapping[str, Any],
    drafting: Mapping[str, Any],
) -> ServerCommand:
    role = model.name
    if not (model / "config.json").is_file():
        raise ConfigurationError(
            f"no miniature model at {model}: install stepspec again, which brings the models along"
        )
    flags: dict[str, Any] = {**common, "enable-scale-out": role in SCORERS}
    if drafting:
        flags["speculative-config"] = drafting
    env = {**ENVIRONMENT, "VLLM_PLUGINS": ""}
    if pace:
        flags["hf-overrides"] = json.dumps(pace)
        env["VLLM_PLUGINS"] = "stepspec_paced"
        # An empty entry at the end would be the working directory.
        paths = (str(PLUGIN), os.environ.get("PYTHONPATH"))
        env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if role in SCORERS:
        env.update(ZEROED_MEMORY)
    return ServerCommand(
        name=role,
        model=model,
        served_name=f"{SERVED}{role}",
        args=tuple(arguments(known_flags(flags, vllm_version()))),
        env=env,
    )


def endpoint(served: Served, role: Role) -> Endpoint:
    """Return the settings of the endpoint of a running server of the pair, for *role*."""
    return Endpoint(
        role=role,
        url=served.base_url,
        model=served.served_name,
        suffix_scoring=served.name in SCORERS,
    )


def solver_settings(urls: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a solver for the servers of the pair, which answer at these *urls*."""
    return {role: {"url": url, "suffix_scoring": role in SCORERS} for role, url in urls.items()}


async def _warm_up(served: Served) -> None:
    await warm_up(endpoint(served, "large" if served.name in SCORERS else "small"))


@asynccontextmanager
async def running(
    profile: Profile,
    *,
    console: Console,
    log_dir: Path | None = None,
    speculation: Speculation = NO_SPECULATION,
) -> AsyncGenerator[Mapping[str, Served]]:
    """
    Start the servers of the pair with progress on *console*, and stop them on exit.

    *speculation* is by role. Logs go to *log_dir*, as those of `launch`.
    """
    async with AsyncExitStack() as stack:
        pace = paced_configuration(profile, SMALL.name)
        drafter = stack.enter_context(paced_drafter(SMALL, pace))
        servers = miniature_servers(profile, speculation=speculation, drafter=drafter)
        with show_progress(console) as on_ready:
            launching = launch(
                servers,
                log_dir=log_dir,
                on_ready=on_ready,
                prepare=_warm_up,
            )
            served = await stack.enter_async_context(launching)
        yield served
