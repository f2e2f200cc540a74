"""Where the campaign runs: the machine with the GPU, or for a dry run this machine's CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(os.environ.get("KIT_ROOT", "/tmp/k"))
KIT = Path(__file__).parent

COMMON = (
    "--enable-prefix-caching --enable-prompt-tokens-details --generation-config vllm"
    " --scheduling-policy priority --disable-uvicorn-access-log"
)
SCRIPTED = (
    "--load-format dummy --logits-processors kit.scripted:Scripted --logprobs-mode"
    " processed_logprobs"
)


@dataclass(frozen=True)
class Server:
    """
    One server: its name, port, the folder of its model under ROOT, and its flags. *entry* is what
    Python runs.
    """

    name: str
    port: int
    model: str
    flags: Sequence[str]
    entry: Sequence[str]
    fallback: Sequence[str] = ()
    """
    What Python runs if *entry* does not live; with the same flags but for those of several API
    processes.
    """


@dataclass(frozen=True)
class Phase:
    """
    One start of the scripted servers: *large* are further flags of the large one; with *mps* they
    share the card.
    """

    name: str = "timings"
    large: Sequence[str] = ()
    mps: bool = False


@dataclass(frozen=True)
class Target:
    """A machine, the servers of the campaign and what is measured there, in seconds at most."""

    python: str
    shapes: Sequence[str]
    scripted: Sequence[Server]
    real: Sequence[Server]
    arrives: bool = True
    """Whether vLLM, wheels and weights arrive in parcels; in a dry run they are there already."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    phases: Sequence[Phase] = (Phase(),)
    timings: float = 145
    first_timings: float = 150
    answers_end: float = 80
    """
    Seconds before the end of the campaign at which the answers stop and the last measurements
    begin.
    """
    concurrency: int = 64
    start: float = 300
    doctor: bool = True
    judge_minutes: float = 0.5
    cases: Sequence[Mapping[str, Any]] = ()
    """What is timed with the scripted servers."""
    first: Sequence[Mapping[str, Any]] = ()
    """What is timed with the real pair before the answers."""
    methods: Sequence[Mapping[str, Any]] = ()
    last: Sequence[Mapping[str, Any]] = ()
    estimate: Sequence[Mapping[str, Any]] = ()
    """The methods that the estimate is about; they are measured afterwards, beside `plain`."""
    estimate_minutes: float = 2
    ratio_problems: int = 16


SCRIPT: Mapping[str, Any] = {"temperature": 0, "max_tokens": 2000}


def case(
    name: str, accept: float = 0.8, at: int = 1, rounds: int = 1, **overrides: Any
) -> Mapping[str, Any]:
    chosen = {"policy": "specreason", "overrides": {"auto": False, **overrides}}
    return {**SCRIPT, **chosen, "name": name, "accept": accept, "at": at, "rounds": rounds}


def plain(name: str, at: int = 1) -> Mapping[str, Any]:
    return {**SCRIPT, "plain": True, "name": name, "at": at}


GPU_CASES = (
    {**case("warm", 0.95), "max_tokens": 120, "seconds": 20},
    case("accept100", 0.95, 1, 2),
    plain("plain"),
    case("accept68", 0.8, 1, 2),
    case("accept68-hedged", 0.8, 1, 1, hedge=1.0),
    case("accept68-hedged-late", 0.8, 1, 1, hedge=0.999),
    plain("plain-8", 8),
    case("accept81-8", 0.8, 8),
    case("accept81-8-hedged", 0.8, 8, hedge=1.0),
    case("accept100-8", 0.95, 8),
    case("accept68-auto", 0.8, 1, auto=True),
)

ANSWER: Mapping[str, Any] = {"temperature": 0, "max_tokens": 1024}


def method(
    name: str, policy: str, options: Mapping[str, Any] | None = None, **more: Any
) -> Mapping[str, Any]:
    overrides = {"auto": False, **more.pop("overrides", {})}
    return {
        **ANSWER,
        "name": name,
        "policy": policy,
        "options": dict(options or {}),
        "overrides": overrides,
        **more,
    }


ALONE: Mapping[str, Any] = {**ANSWER, "name": "plain", "plain": True, "concurrency": 64}
SPECREASON = method("specreason", "specreason", concurrency=64)
READING = method("reading", "reading")
BILD_STEP = method("bild-step", "bild", {"scale": "step", "fallback": 0, "rollback": 5})
AUTO = method("auto", "reading", overrides={"auto": True})
METHODS = (
    ALONE,
    method("small", "small"),
    SPECREASON,
    READING,
    BILD_STEP,
    AUTO,
    method("random-like-reading", "random", like="reading"),
    method("bild", "bild", concurrency=16),
    method("reflective", "reflective", concurrency=16),
    method("reading-formulas", "reading", {"words": 99}),
)

V026 = ("-m", "vllm.entrypoints.openai.api_server")
V032 = ("-m", "vllm.entrypoints.launchers.api_server.entry")
# the caches have a set size, so that no server waits for the other's memory
LITTLE = "--gpu-memory-utilization 0.05"
SHAPED = (
    f"--max-model-len 8192 --max-num-seqs 64 --cudagraph-capture-sizes 1 2 4 8 16 32 64 {LITTLE}"
)
MANY = (
    "--max-model-len 4096 --max-num-seqs 512 --cudagraph-capture-sizes 1 2 4 8 16 32 64 128 192"
    f" 256 384 512 {LITTLE}"
)


def scripted(
    name: str, port: int, model: str, cache: float, flags: str, entry: Sequence[str] = V026
) -> Server:
    """A server of dummy weights, with a cache of that many gigabytes."""
    words = f"{COMMON} {SCRIPTED} --kv-cache-memory-bytes {cache * 1e9:.0f} {flags}"
    return Server(name, port, f"models/{model}", words.split(), entry)


def real(name: str, port: int, cache: float, processes: int) -> Server:
    """A server of the real pair, for many requests at once."""
    words = (
        f"{COMMON} {MANY} --kv-cache-memory-bytes {cache * 1e9:.0f} --api-server-count {processes}"
    )
    return Server(name, port, f"pair/{name}", words.split(), ("-m", "kit.serve"), V026)


GPU = Target(
    python="python3",
    shapes=("qwen3-32b", "qwen3-1.7b"),
    scripted=(
        scripted("large", 9302, "qwen3-32b", 10, SHAPED),
        scripted("small", 9301, "qwen3-1.7b", 4, SHAPED),
    ),
    real=(real("large", 9312, 20, 3), real("small", 9311, 8, 2)),
    env={"VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0"},
    cases=GPU_CASES,
    methods=METHODS,
    last=[{**each, "at": 1, "rounds": 5, "seconds": 10} for each in METHODS if "like" not in each],
)

# The second campaign asks what `auto` does: with the script, where drafts pay and where none is
# accepted, on the first problem of a new solver and on the second; then with the real pair, also
# with many at once.
JUDGED = {**READING, "name": "judged", "judged": True}
"""`reading` with what `stepspec tune` wrote: options, and the prior from which `auto` begins."""
FRESH = (
    ALONE,
    AUTO,
    method("specreason-auto", "specreason", overrides={"auto": True}),
    {**JUDGED, "name": "judged-auto", "overrides": {"auto": True}},
    method("large", "large"),
)


def shorter(cases: Sequence[Mapping[str, Any]], **more: Any) -> tuple[Mapping[str, Any], ...]:
    return tuple({**each, **more, "name": each["name"]} for each in cases)


def turns(
    name: str,
    methods: Sequence[Mapping[str, Any]],
    rounds: int,
    at: int,
    start: int = 0,
    *,
    seconds: float = 300,
    **more: Any,
) -> Any:
    """
    A case in which *methods* take turns, with a new solver in each round; *more* holds for each of
    them.
    """
    table = {"name": name, "rounds": rounds, "at": at, "start": start, "seconds": seconds}
    return {**table, "turns": shorter(methods, **more)}


SCRIPTED_TURNS = (ALONE, FRESH[2])

REAL = replace(
    GPU,
    scripted=(
        scripted("large", 9302, "qwen3-32b", 5, SHAPED),
        scripted("small", 9301, "qwen3-1.7b", 2.5, SHAPED),
    ),
    env={**GPU.env, "SCRIPT_TOKENS": "600"},
    timings=185,
    first_timings=400,
    answers_end=8,
    doctor=False,  # the scripted servers leave the card before the weights of the real pair come
    cases=(
        GPU_CASES[0],
        {**turns("drafts pay", SCRIPTED_TURNS, 2, 2, seconds=80, **SCRIPT), "accept": 0.95},
        {**turns("none accepted", SCRIPTED_TURNS, 2, 2, seconds=100, **SCRIPT), "accept": 0},
        plain("plain-8", 8),
        case("auto-8", 0.95, 8, 2, auto=True),
    ),
    first=(
        turns("warm", FRESH, 1, 1, 159),
        turns("first", FRESH, 14, 3, seconds=150),
        *(
            {**each, "name": f"{each['name']}-32", "at": 32, "rounds": 2}
            for each in (*FRESH[:3], FRESH[4])
        ),
        turns("first, 0.6", FRESH, 26, 3, 78, seconds=210, temperature=0.6),
    ),
    methods=(),
    last=(),
)

# The third asks what keeps one shared card above the floor: vLLM's scheduling ahead, and processes
# that take turns.
FLOOR = replace(
    GPU,
    real=(),
    phases=(
        Phase(),
        Phase("timings-sync", large=("--no-async-scheduling",)),
        Phase("timings-mps", mps=True),
    ),
    cases=shorter((*GPU_CASES[:5], *GPU_CASES[6:8], GPU_CASES[9]), seconds=30),
    timings=125,
)

EAGER = (
    "--enforce-eager --dtype float32 --max-model-len 2048 --max-num-seqs 16 --block-size 32 "
    "--distributed-executor-backend vllm.v1.executor.uniproc_executor.UniProcExecutor"
)


def miniature(name: str, port: int, entry: Sequence[str] = V032, flags: str = "") -> Server:
    words = (
        f"{COMMON} {EAGER} --kv-cache-memory-bytes {256 * 2**20} --max-num-batched-tokens 32768"
        f" {flags}"
    )
    return Server(name, port, f"pair/{name}", words.split(), entry)


CPU = Target(
    python=os.environ.get("KIT_PYTHON", "python3"),
    shapes=("tiny",),
    scripted=(
        scripted("large", 9402, "tiny", 0.2, EAGER, entry=V032),
        scripted("small", 9401, "tiny", 0.2, EAGER, entry=V032),
    ),
    real=(
        miniature("large", 9412, ("-m", "kit.serve"), "--api-server-count 2"),
        miniature("small", 9411),
    ),
    arrives=False,
    env={
        "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_PLUGINS": "",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "SCRIPT_TOKENS": "120",
    },
    timings=60,
    answers_end=60,
    concurrency=4,
    doctor=False,
    judge_minutes=0.1,
    cases=shorter(GPU_CASES[2:4], rounds=1, max_tokens=400),
    first=(turns("first", FRESH, 1, 2, max_tokens=300),),
    methods=(
        *shorter([ALONE, READING, AUTO, METHODS[6]], limit=2, max_tokens=300, temperature=0.6),
        *shorter([ALONE, JUDGED], limit=2, max_tokens=300),
    ),
    last=shorter(METHODS[:2], rounds=1, at=1, max_tokens=300),
    estimate=shorter([READING], max_tokens=300),
    estimate_minutes=0.1,
    ratio_problems=2,
)
# The fourth runs on a CPU too: new solvers with 32 chains at once; the large model takes PACE
# seconds for a token.
PACED = {
    "SCRIPT_TOKENS": "500",
    "SCRIPT_PACE_large": os.environ.get("PACE", "0.02"),
    "SCRIPT_PACE_small": "0.001",
}
WIDE = [replace(each, flags=[*each.flags, "--max-num-seqs", "64"]) for each in CPU.scripted]
CROWD = (
    plain("plain-32"),
    case("specreason-32", 0.95, auto=True),
    {**AUTO, **SCRIPT, "name": "reading-32"},
)
SCRIPT_ONLY = replace(CPU, real=())
LOAD = replace(
    SCRIPT_ONLY,
    scripted=WIDE,
    env={**CPU.env, **PACED},
    timings=240,
    cases=shorter(CROWD, at=32, rounds=3),
)
# The fifth as well: do hedges pay where each model has hardware of its own?
HEDGES = [
    {**case(f"accept{share}{'-hedged' * hedge}", rate, 1, 6, hedge=float(hedge)), "seconds": 120}
    for share, rate in ((68, 0.8), (51, 0.6), (95, 0.95))
    for hedge in (0, 1)
]
LONGER = {**CPU.env, **PACED, "SCRIPT_TOKENS": "800"}
ONE = replace(SCRIPT_ONLY, env=LONGER, timings=400, cases=(plain("plain"), *HEDGES))
TARGETS: Mapping[str, Target] = {
    "gpu": GPU,
    "real": REAL,
    "floor": FLOOR,
    "cpu": CPU,
    "load": LOAD,
    "hedges": ONE,
}
