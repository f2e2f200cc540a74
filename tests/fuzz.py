"""
Fuzz the parsers of what comes from outside, guided by the code that each input reaches: ``python -m
tests.fuzz``.

Atheris is installed below ``build/fuzz``. Each target runs in a process of its own for
``--seconds``, from the inputs in ``tests/corpora/NAME`` and those that earlier runs left in
``build/fuzz``. A parser may return, or raise one of our own errors. What else it does is a finding:
its input is left in ``build/fuzz``, and belongs into ``tests/corpora``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "fuzz"
SITE = WORK / "site"
CORPORA = ROOT / "tests" / "corpora"
LONGEST = 2048  # bytes of an input
SLOW = 10  # seconds: an input that takes longer is a finding

Target = Callable[[bytes], object]


def stream() -> Target:
    """The events of a stream are the same however the network divides its bytes."""
    from stepspec.orchestrator.backends.vllm import replies
    from stepspec.orchestrator.endpoints.settings import Deadlines
    from stepspec.orchestrator.errors import EndpointError
    from stepspec.orchestrator.http import http_errors
    from stepspec.orchestrator.http.sse import Events

    call = http_errors.Call("small", "http://host", "write")

    async def pieces(content: bytes, size: int) -> AsyncIterator[bytes]:
        for at in range(0, len(content), size):
            yield content[at : at + size]

    def release() -> None:
        pass

    async def read(content: bytes, size: int) -> list[bytes]:
        events = Events(call, pieces(content, size), release, Deadlines(), 1e12)
        found = list[bytes]()
        with suppress(EndpointError):
            while (event := await events.next()) is not None:
                found.append(event)
        await events.close()
        return found

    async def both(content: bytes) -> None:
        whole = await read(content, len(content) or 1)
        assert await read(content, 1 + len(content) % 7) == whole
        for event in whole:
            with suppress(EndpointError):
                replies.parse_chunk(call, event, 1)

    return lambda content: asyncio.run(both(content))


def steps() -> Target:
    """
    A step has the text of its tokens, and ends at the same place however its text is divided into
    tokens.
    """
    from stepspec.orchestrator.chain import THINK_END, Chain, Token
    from stepspec.orchestrator.step_builder import (
        OUTSIDE,
        Closing,
        StepBounds,
        StepBuilder,
    )
    from stepspec.orchestrator.step_ends import StepEnds

    kinds = [StepEnds.of("\n\n"), StepEnds.of(["\n\n", "Wait"]), StepEnds.of(["Step", "; "])]

    def build(ends: StepEnds, text: str, size: int, closing: Closing) -> tuple[str, str | None]:
        bounds = StepBounds(ends, limit=10_000, closing=closing)
        builder = StepBuilder("small", "words", Chain.of("?"), bounds)
        for at in range(0, len(text), size):
            if stop := builder.add(Token(text[at : at + size], 0.0, id=7)):
                step = builder.end(stop)
                assert "".join(token.text for token in step.tokens) == step.text
                return step.text, stop
        return builder.so_far().text, None

    def run(content: bytes) -> None:
        kind = (content[:1] or b"0")[0]
        text = content[1:].decode(errors="replace")
        ends = kinds[kind % 3]
        closing = (Closing(THINK_END), Closing("</seed:think>"), OUTSIDE)[kind // 3 % 3]
        whole = build(ends, text, 1, closing)
        assert build(ends, text, 3, closing) == whole
        assert build(ends, text, 17, closing) == whole

    return run


def templates() -> Target:
    """A chat template is learnt, or refused."""
    from stepspec.orchestrator.endpoints.chat_template import template_from_renderings
    from stepspec.orchestrator.errors import MissingCapability
    from tests.templates import ask

    def run(content: bytes) -> None:
        head, turn, answer, begun, opening, closing = (
            content.decode(errors="replace").split("\0") + [""] * 6
        )[:6]
        with suppress(MissingCapability):
            template = template_from_renderings([
                f"{head}stepspecfirst{answer}{begun}",
                f"{head}stepspecfirst{turn}stepspecreply{answer}",
                f"{head}stepspecfirst{turn}{opening}stepspecreasons{closing}stepspecreply{answer}",
                f"{head}stepspecfirst{turn}<answer>\nstepspecreply\n</answer>{answer}",
                f"{head}stepspecfirst{turn}stepspecreply{turn}stepspecsecond{answer}{begun}",
            ])  # fmt: skip
            assert ask(template, "Why?").count("Why?") >= 1
            for thinks in (True, False):
                assert template.begin(head + begun, thinks=thinks).startswith(head + begun)

    return run


def traces() -> Target:
    """A line of a trace is an event, or refused."""
    from stepspec.orchestrator import trace
    from stepspec.orchestrator.errors import ConfigurationError
    from tests.fakes import replay

    def run(content: bytes) -> None:
        events = list[Any]()
        with suppress(ConfigurationError):
            events += [trace.parse(line).event for line in content.split(b"\n")]
        with suppress(ConfigurationError):
            replay(events)

    return run


def requests() -> Target:
    """A body of a request is valid, or refused in a few words."""
    import orjson
    from pydantic import BaseModel, ValidationError

    from stepspec.service.formats.chat import ChatRequest, LiveRequest
    from stepspec.service.formats.messages import CountTokensRequest, MessagesRequest
    from stepspec.service.formats.responses import ResponsesRequest
    from stepspec.service.formats.validation import explain

    kinds: list[type[BaseModel]] = [
        ChatRequest,
        ResponsesRequest,
        MessagesRequest,
        CountTokensRequest,
        LiveRequest,
    ]

    def run(content: bytes) -> None:
        try:
            body = orjson.loads(content[1:])
        except orjson.JSONDecodeError:
            return
        schema = kinds[content[0] % len(kinds)]
        refused = None
        try:
            schema.model_validate(body)
        except ValidationError as exc:
            refused = str(explain(schema, body, exc))
        assert refused is None or 0 < len(refused) < 5000

    return run


def settings() -> Target:
    """A file of settings is read, or refused."""
    from stepspec.orchestrator.errors import StepspecError
    from stepspec.settings import load

    folder = Path(tempfile.mkdtemp(prefix="stepspec-fuzz-"))
    os.environ["STEPSPEC_CONFIG"] = str(folder / "stepspec.toml")

    def run(content: bytes) -> None:
        (folder / "stepspec.toml").write_bytes(content)
        with suppress(StepspecError):
            load()

    return run


def answers() -> Target:
    """An answer is found in any text, and divided markup gives the text back."""
    from stepspec.orchestrator.answer import extract
    from stepspec.orchestrator.backends.vllm import special_tokens

    def run(content: bytes) -> None:
        text = content.decode(errors="replace")
        extract(text)
        divided = special_tokens.divided(text, ["<|im_end|>", "</think>", "[INST]", "||"])
        assert divided.replace(special_tokens.SENTINEL, "") == text
        assert "<|im_end|>" not in divided

    return run


TARGETS: Mapping[str, Callable[[], Target]] = {
    each.__name__: each for each in (stream, steps, templates, traces, requests, settings, answers)
}


def fuzz(name: str, seconds: int) -> None:
    """Run one target in this process, which ends with it."""
    sys.path.insert(0, str(SITE))
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=["stepspec"]):
        target = TARGETS[name]()
    found = WORK / name
    kept = CORPORA / name
    for folder in (found, kept):
        folder.mkdir(parents=True, exist_ok=True)
    flags = (
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST}",
        f"-timeout={SLOW}",
        "-rss_limit_mb=2048",
    )
    quiet = ("-print_final_stats=1", "-verbosity=0", f"-artifact_prefix={WORK}/{name}-")
    atheris.Setup([sys.argv[0], *flags, *quiet, str(found), str(kept)], target)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1] if __doc__ else None)
    parser.add_argument("targets", nargs="*", help=f"default: all of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=600, help="for each target (default: 600)")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.targets) - TARGETS.keys():
        parser.error(f"no target {', '.join(sorted(unknown))}; there are: {', '.join(TARGETS)}")
    if options.alone:
        fuzz(options.targets[0], options.seconds)
        return 0
    if not SITE.is_dir():
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--target", str(SITE), "atheris>=3,<4"],
            check=True,
        )
    found = 0
    for name in options.targets or TARGETS:
        command = (sys.executable, __file__, name, "--alone", "--seconds", str(options.seconds))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in done.stderr.splitlines() if "number_of_executed_units" in line]
        ran = lines[0].split()[-1] if lines else "?"
        print(
            f"{name}: {ran} inputs in {options.seconds} s,"
            f" {'a finding' if done.returncode else 'no finding'}",
            flush=True,
        )
        if done.returncode:
            found += 1
            print(done.stderr[-4000:], flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
