"""
Start the servers of the miniature models.

A world is a kind of problems with the models that were trained on them. A profile of
``profiles.toml`` sets the duration of a forward pass of each model, so that latency on a CPU has
the shape of a GPU's. The vLLM plugin in ``plugin/`` implements that pace. Only the servers started
here load it.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
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

MODELS = Path(__file__).with_name("models")
PROFILES = Path(__file__).with_name("profiles.toml")
# a folder with the metadata of a distribution, for the servers' PYTHONPATH
PLUGIN = Path(__file__).with_name("plugin")
ARCHITECTURE = "PacedQwen3ForCausalLM"
PAIR = ("large", "small")
SERVED = "testbed-"  # the prefix of the names under which the models are served
# roles whose servers open /inference/v1/generate, which suffix scoring needs
SCORERS = frozenset({"large"})
DRAFTER = "small"  # drafts tokens for the large model where `draft_model` speculation is on
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
    "kv-cache-memory-bytes": 256 * 2**20,
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
SPECULATIONS: Mapping[str, Speculation] = {
    "none": NO_SPECULATION,
    "ngram": dict.fromkeys(PAIR, NGRAM),
    "draft_model": {"large": {"method": "draft_model", "num_speculative_tokens": 4}},
}


@dataclass(frozen=True, slots=True)
class World:
    """One kind of problems, with the models that were trained on them."""

    name: str
    """The name of the world."""
    folders: tuple[Path, ...]
    """The folders of its models. The first folder that has a model counts."""
    context: int
    """The longest context, in tokens."""
    cache: int
    """The size of a server's key-value cache, in MiB."""
    sequences: int = SEQUENCES
    """Requests that a server runs at the same time."""

    def model(self, name: str) -> Path:
        """Return the folder of the model *name*. Raise `ConfigurationError` if there is none."""
        for folder in self.folders:
            if (folder / name / "config.json").is_file():
                return folder / name
        raise ConfigurationError(
            f"no miniature model at {self.folders[0] / name}: install stepspec again, which brings"
            " the models along"
        )

    @property
    def flags(self) -> dict[str, Any]:
        """The flags that depend on the world."""
        return {
            "max-model-len": self.context,
            "max-num-seqs": self.sequences,
            "kv-cache-memory-bytes": self.cache * 2**20,
            "max-num-batched-tokens": self.sequences * self.context,
        }


SHORT = World("short", (MODELS,), context=2048, cache=64)


def miniature(names: Iterable[str]) -> bool:
    """Whether all of the models called *names* are miniature models."""
    return all(name.startswith(SERVED) for name in names)


@dataclass(frozen=True, slots=True)
class PassPace:
    """The least duration of a forward pass: a constant, and a duration for each of its tokens."""

    seconds_per_pass: float
    """The constant, in seconds."""
    seconds_per_token: float
    """Seconds for each token of the pass."""

    def overrides(self) -> dict[str, Any]:
        """Return the values of a Qwen3's configuration with which vLLM serves at this pace."""
        return {
            "architectures": [ARCHITECTURE],
            "paced_seconds_per_pass": self.seconds_per_pass,
            "paced_seconds_per_token": self.seconds_per_token,
        }


def read_pace(profile: str, role: str) -> PassPace | None:
    """
    Return the pace of *role* in *profile*; None if the profile has no paces.

    Raise `ConfigurationError` for an unknown profile, and for a role that the profile lacks.
    """
    profiles = tomllib.loads(PROFILES.read_text(encoding="utf-8"))
    if profile not in profiles:
        raise ConfigurationError(
            f"--profile: there is no pacing profile {profile!r}; there are:"
            f" {', '.join(sorted(profiles))}"
        )
    paces = profiles[profile]
    if not paces:
        return None
    if role not in paces:
        raise ConfigurationError(
            f"the pacing profile {profile!r} has no pace for {role!r}; it has: {', '.join(paces)}"
        )
    return PassPace(**paces[role])


@contextmanager
def paced_drafter(model: Path, pace: PassPace | None) -> Generator[Path]:
    """
    Yield a copy of the folder *model* with the *pace* in its configuration.

    vLLM applies the overrides of its command line to the model that it serves, not to the model
    that drafts for it. Without a pace yield *model* itself.
    """
    if pace is None or not model.is_dir():
        yield model
        return
    with TemporaryDirectory(prefix="stepspec-drafter-") as name:
        folder = Path(name)
        for file in model.iterdir():
            if file.name != "config.json":
                (folder / file.name).symlink_to(file.resolve())
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        config.update(pace.overrides())
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield folder


def weights_digest(*names: str, world: World = SHORT) -> str:
    """Return a digest of the weights of the models *names*. Raise `ConfigurationError`."""
    digest = blake2b(digest_size=8)
    for name in names:
        digest.update((world.model(name) / "model.safetensors").read_bytes())
    return digest.hexdigest()


def speculations(method: str) -> Speculation:
    """
    Return the token-level speculation of the pair, by role.

    Raise `ConfigurationError` for a *method* for which the miniature pair has no drafter.
    """
    if method not in SPECULATIONS:
        raise ConfigurationError(
            f"--speculation: the miniature pair has no speculation method {method!r}; it has:"
            f" {', '.join(SPECULATIONS)}"
        )
    return SPECULATIONS[method]


def miniature_servers(
    profile: str = "paced",
    roles: Sequence[str] = PAIR,
    *,
    world: World = SHORT,
    speculation: Speculation = NO_SPECULATION,
    drafter: Path | None = None,
) -> tuple[ServerCommand, ...]:
    """
    Describe the servers of *roles*, which are names of the world's models.

    A server serves ``testbed-<role>``. The second server of a role is called ``<role>-2``.
    *speculation* is by role. *drafter* is the model of ``draft_model``; None: the small model.
    Raise `ConfigurationError` for an unknown profile and for a missing model.
    """
    counts = Counter[str]()
    servers: list[ServerCommand] = []
    for role in roles:
        drafting = dict(speculation.get(role, {}))
        if drafting.get("method") == "draft_model":
            drafting["model"] = str(drafter or world.model(DRAFTER))
        server = _server(
            profile,
            role,
            world.model(role),
            world.flags,
            drafting,
        )
        counts[role] += 1
        if counts[role] > 1:
            server = replace(server, name=f"{role}-{counts[role]}")
        servers.append(server)
    return tuple(servers)


def _server(
    profile: str,
    role: str,
    model: Path,
    own: Mapping[str, Any],
    drafting: Mapping[str, Any],
) -> ServerCommand:
    pace = read_pace(profile, role)
    flags: dict[str, Any] = {**FLAGS, **own, "enable-scale-out": role in SCORERS}
    if drafting:
        flags["speculative-config"] = drafting
    env = {**ENVIRONMENT, "VLLM_PLUGINS": ""}
    if pace:
        flags["hf-overrides"] = json.dumps(pace.overrides())
        env["VLLM_PLUGINS"] = "stepspec_paced"
        # An empty entry at the end would be the working directory.
        paths = (str(PLUGIN), os.environ.get("PYTHONPATH"))
        env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if role in SCORERS:
        env.update(ZEROED_MEMORY)
    return ServerCommand(
        name=role,
        model=model,
        served_name=f"{SERVED}{model.name}",
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
    profile: str = "paced",
    roles: Sequence[str] = PAIR,
    *,
    console: Console,
    world: World = SHORT,
    log_dir: Path | None = None,
    speculation: Speculation = NO_SPECULATION,
) -> AsyncGenerator[Mapping[str, Served]]:
    """
    Start the servers of *roles* with progress on *console*, and stop them on exit.

    The arguments are those of `miniature_servers` and of `launch`.
    """
    async with AsyncExitStack() as stack:
        drafter = stack.enter_context(
            paced_drafter(world.model(DRAFTER), read_pace(profile, DRAFTER))
        )
        servers = miniature_servers(
            profile,
            roles,
            world=world,
            speculation=speculation,
            drafter=drafter,
        )
        with show_progress(console) as on_ready:
            launching = launch(
                servers,
                log_dir=log_dir,
                on_ready=on_ready,
                prepare=_warm_up,
            )
            served = await stack.enter_async_context(launching)
        yield served
