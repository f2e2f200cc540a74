"""
Servers that speak vLLM's protocol without a model, for tests and measurements of what stands in
front of vLLM.

`StandIn` is a program: ``python -m tests.stand_in`` writes steps of a set length at a set pace,
judges them, and fails on demand. `FakeVllm`, its base, runs inside of a test and writes a script.
Both use real sockets.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from zlib import crc32

import orjson
from aiohttp import web

from stepspec.orchestrator.chain import DELIMITER, Role
from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.endpoints.settings import Deadlines
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.tokens import shared_length

from . import tools as stand_in_tools

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
THINK = "<think>"
THINK_END = "</think>"
SPECIAL = (IM_START, IM_END, THINK, THINK_END)
ROOM = 4096
GENERATE = "/inference/v1/generate"
RENDER = "/v1/chat/completions/render"
DERENDER = "/v1/chat/completions/derender"
GARBAGE = {
    "-3": {"logprob": 3e38, "rank": -7, "decoded_token": None},
    "9": {"logprob": -1.0, "rank": 0},
}


@dataclass(frozen=True)
class Refuse:
    """Answer with *status* instead; with *body* as it is, if there is one."""

    status: int
    message: str = "no"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None


@dataclass(frozen=True)
class Break:
    """Cut the connection after so many tokens."""

    after: int


@dataclass(frozen=True)
class Stall:
    """Send nothing any more after so many tokens, until the client goes away."""

    after: int


@dataclass(frozen=True)
class Slow:
    """Take *factor* times as long for everything."""

    factor: float


@dataclass(frozen=True)
class Spoil:
    """
    Answer with one thing wrong: no JSON ("garbage"), a stream without its end ("cut"), other token
    ids ("ids"), no log-probabilities ("bare"), null for each ("null"), or no text and no tokens
    ("empty").
    """

    what: str


SPOILS = ("garbage", "cut", "ids", "bare", "null", "empty")
Fault: TypeAlias = Refuse | Break | Stall | Slow | Spoil
SLOWED = web.RequestKey("slowed", float)
SPOILT = web.RequestKey("spoilt", str)


@dataclass(frozen=True)
class Latency:
    """
    The times of a server: seconds to the *first* token and for each further *token*. A busy server
    is no slower.
    """

    first: float = 0.0
    token: float = 0.0


@dataclass
class FakeVllm:
    """
    Writes *script* after whatever part of it the prompt ends in; ``bytes`` are tokens that end
    within a character.

    *faults* befall the coming completions one by one. With a *gate*, every token waits for a
    permit. *spelling* shifts all ids, which makes another vocabulary. *lacks* are request fields
    that are ignored.

    Every token is the likeliest of its place, followed by the *rivals*, except that the *unlikely*
    ones follow those. *digits* are the log-probabilities of a judge's answers; *grades_by_text*
    holds others for prompts that contain the key. With a *block*, the server caches prompts in
    blocks of that many tokens and reports it; with a *unit*, as of a hybrid model, only up to the
    end of an earlier prompt, rounded down to the unit. *scale_out* opens vLLM's own route to it,
    whose rows of a cached prefix are *garbage* (V1 runner) or left out (V2), and those that parse
    calls of tools if *parses_tools*. *metrics* is the text of /metrics. *special* are the spellings
    of its special tokens, of which *begin* stands before every text for which they are requested.
    """

    script: Sequence[str | bytes] = ()
    faults: deque[Fault | None] = field(default_factory=deque[Fault | None])
    gate: asyncio.Semaphore | None = None
    chunk: int = 1
    spelling: int = 0
    digits: dict[str, float] = field(default_factory=dict[str, float])
    grades_by_text: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    rivals: tuple[str, ...] = ()
    unlikely: frozenset[str] = frozenset()
    block: int = 0
    unit: int = 0
    scale_out: bool = False
    garbage: bool = True
    parses_tools: bool = True
    metrics: bytes = b""
    lacks: frozenset[str] = frozenset()
    key: str = ""
    names: tuple[str, ...] = ("fake",)
    room: int = ROOM
    latency: Latency = Latency()  # frozen
    special: tuple[str, ...] = SPECIAL
    begin: str = ""
    requests: list[tuple[str, dict[str, Any]]] = field(
        default_factory=list[tuple[str, dict[str, Any]]]
    )
    sent: int = 0
    generated: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)  # a client went away before the end
    _ids: dict[bytes, int] = field(default_factory=dict[bytes, int])
    _read: deque[list[int]] = field(default_factory=lambda: deque[list[int]](maxlen=512))

    # What it knows of tokens

    def id(self, piece: bytes) -> int:
        return self._ids.setdefault(piece, len(self._ids)) + self.spelling

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            piece = next((special for special in self.special if text.startswith(special)), text[0])
            ids.append(self.id(piece.encode()))
            text = text[len(piece) :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        pieces = {number: piece for piece, number in self._ids.items()}
        return b"".join(pieces[number - self.spelling] for number in ids).decode(errors="replace")

    def render(
        self, messages: list[dict[str, Any]], generate: bool, tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        shown = [("system", stand_in_tools.shown(tools))] if tools else []
        spelt = [*shown, *((turn["role"], stand_in_tools.spelt(turn)) for turn in messages)]
        turns = "".join(f"{IM_START}{role}\n{text}{IM_END}\n" for role, text in spelt)
        return turns + (f"{IM_START}assistant\n{THINK}\n" if generate else "")

    def continuation(self, prompt: str) -> list[bytes]:
        """Go on with the script where *prompt* leaves it, byte by byte to the next token."""
        mark = f"{THINK}\n"  # which the script may hold, too
        head = f"{IM_START}assistant\n{mark}"
        text = prompt.rpartition(head if head in prompt else mark)[2].encode()
        pieces = [piece if isinstance(piece, bytes) else piece.encode() for piece in self.script]
        rest = b"".join(pieces)[len(text) :]
        at = 0
        for index, piece in enumerate(pieces):
            if at >= len(text):
                return [*characters(rest[: at - len(text)]), *pieces[index:]]
            at += len(piece)
        return characters(rest)

    # Its routes

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(("/tokenize", body))
        messages = body.get("messages")
        tools = body.get("tools") or ()
        text = (
            self.render(messages, body["add_generation_prompt"], tools)
            if messages
            else body["prompt"]
        )
        text = self.begin + text if body.get("add_special_tokens") else text
        reply = {"tokens": self.encode(text), "max_model_len": self.room}
        return web.json_response(reply, dumps=compact)

    async def detokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"prompt": self.decode((await request.json())["tokens"])})

    async def parse_tools(self, request: web.Request) -> web.Response:
        """Say how an answer has to call tools, or parse one."""
        body: dict[str, Any] = orjson.loads(await request.read())
        self.requests.append((request.path, body))
        status, refused = (
            (403, stand_in_tools.NO_SCALE_OUT)
            if not self.scale_out
            else (400, stand_in_tools.NO_PARSER)
        )
        if not (self.scale_out and self.parses_tools):
            return web.json_response({"error": {"message": refused, "code": status}}, status=status)
        if request.path == RENDER:
            return web.json_response(stand_in_tools.rendered(body))
        if not body.get("stream"):
            (choice,) = body["generate_response"]["choices"]
            text = self.decode(choice["token_ids"])
            return web.json_response(stand_in_tools.derendered_whole(body, text))
        state: dict[str, Any] = body["stream_state"] or {}
        before: list[int] = state.get("output_token_ids", [])
        ids = [*before, *body["generate_chunk"]["choices"][0]["token_ids"]]
        return web.json_response(
            stand_in_tools.derendered(body, self.decode(before), self.decode(ids))
        )

    async def show(self, request: web.Request) -> web.Response:
        return web.Response(body=self.metrics, status=200 if self.metrics else 404)

    async def models(self, request: web.Request) -> web.Response:
        if not self.opens(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.json_response(
            {"data": [{"id": name, "max_model_len": self.room} for name in self.names]}
        )

    def permit(self, count: int) -> None:
        """Let *count* more tokens pass the gate."""
        assert self.gate
        for _ in range(count):
            self.gate.release()

    def opens(self, request: web.Request) -> bool:
        return not self.key or request.headers.get("Authorization") == f"Bearer {self.key}"

    async def complete(self, request: web.Request) -> web.StreamResponse:
        sent: dict[str, Any] = orjson.loads(await request.read())
        body = {key: value for key, value in sent.items() if key not in self.lacks}
        self.requests.append((request.path, body))
        if isinstance(body.get("prompt"), str):
            body["prompt"] = self.encode(body["prompt"])
        fault = self.faults.popleft() if self.faults else None
        if not self.opens(request):
            fault = Refuse(401, "Unauthorized")
        elif body["model"] not in self.names:
            fault = Refuse(404, f"The model `{body['model']}` does not exist.")
        elif request.path == GENERATE and not self.scale_out:
            fault = Refuse(403, "Scale-out endpoints are disabled.")
        if isinstance(fault, Slow):
            request[SLOWED] = fault.factor
            fault = None
        if isinstance(fault, Spoil):
            if fault.what == "garbage":
                return garbage(stream=bool(body.get("stream")))
            request[SPOILT] = fault.what
            fault = None
        if isinstance(fault, Refuse):
            error = orjson.dumps({"error": {"message": fault.message, "code": fault.status}})
            content = error if fault.body is None else fault.body
            return web.Response(
                body=content,
                status=fault.status,
                headers=dict(fault.headers),
                content_type="application/json",
            )
        try:
            if body.get("stream"):
                return await self.stream(request, body, fault)
            if fault:
                await self.fail(request, fault)
            await self.wait(
                request, [body["token_ids"]] if request.path == GENERATE else prompts(body)
            )
            reply = self.score(body) if request.path == GENERATE else self.answer(body)
            if what := request.get(SPOILT):
                reply = spoilt(reply, what)
                reply["choices"] = [spoilt(choice, what) for choice in reply.get("choices", ())]
            return web.json_response(reply, dumps=compact)
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise

    async def wait(self, request: web.Request, texts: Sequence[list[int]]) -> None:
        """Wait as long as the first token after *texts* takes."""
        await asyncio.sleep(self.latency.first * request.get(SLOWED, 1.0))

    async def stream(
        self, request: web.Request, body: dict[str, Any], fault: Break | Stall | None
    ) -> web.StreamResponse:
        slow = request.get(SLOWED, 1.0)
        what = request.get(SPOILT, "")
        cached = self.cache(body["prompt"])
        due = time.perf_counter() + self.latency.first * slow
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        envelope = {
            "id": f"cmpl-{id(request):x}",
            "object": "text_completion",
            "created": int(time.time()),
        }
        envelope["model"] = body["model"]
        count = 0
        for choice in self.pieces(body):
            if (left := due - time.perf_counter()) > 0:
                await asyncio.sleep(left)
            for _ in choice["token_ids"] or ("",):
                if fault and count == fault.after:
                    await self.fail(request, fault)
                if self.gate:
                    await self.gate.acquire()
                count += 1
            if what == "cut" and choice["finish_reason"]:
                return response
            await response.write(
                event({**envelope, "choices": [spoilt(choice, what)], "usage": None})
            )
            self.sent = count
            due = max(due, time.perf_counter() - 1.0) + self.latency.token * self.chunk * slow
        usage = self.usage([body["prompt"]], cached, count)
        await response.write(
            event({**envelope, "choices": [], "usage": usage}) + b"data: [DONE]\n\n"
        )
        return response

    async def fail(self, request: web.Request, fault: Break | Stall) -> None:
        if isinstance(fault, Stall):
            await asyncio.Event().wait()
        assert request.transport is not None
        request.transport.abort()
        raise ConnectionResetError

    def following(self, body: dict[str, Any]) -> Iterable[bytes]:
        """The tokens that follow the prompt of *body*, up to the end of the turn at the latest."""
        return [*self.continuation(self.decode(body["prompt"])), IM_END.encode()]

    def tokens(self, body: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
        """
        Yield what each token adds to the text, its spelling among the log-probabilities, and its
        id.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for piece in self.following(body):
            new = decoder.decode(piece)
            yield new, new, self.id(piece)

    @property
    def turn_end(self) -> int:
        """The token that ends the turn."""
        return self.id(IM_END.encode())

    def pieces(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """
        Yield the answer to one prompt in chunks, as vLLM does: text up to the stop string, ids of
        whole tokens.
        """
        stops = body.get("stop") or ()
        limit = body["max_tokens"]
        closing = body.get("stop_token_ids", ())
        longest = max(map(len, stops), default=0)
        tail = ""
        tokens = list[tuple[str, str, int]]()
        for count, (new, spelling, number) in enumerate(self.tokens(body), 1):
            text = tail + new
            ends = [(at + len(stop), stop) for stop in stops if (at := text.find(stop)) >= 0]
            shown = new[: len(new) - (len(text) - min(ends)[0])] if ends else new
            if number == self.turn_end and not body.get("include_stop_str_in_output"):
                shown = ""
            tokens.append((shown, spelling, number))
            tail = text[-longest:] if longest else ""
            stopped = bool(ends) or number in closing or number == self.turn_end
            if stopped or count == limit or len(tokens) == self.chunk:
                choice = self.choice(tokens, body)
                tokens = []
                if stopped or count == limit:
                    reason = min(ends)[1] if ends else None
                    if number in closing:
                        reason = number
                    yield choice | {
                        "finish_reason": "stop" if stopped else "length",
                        "stop_reason": reason,
                    }
                    return
                yield choice

    def choice(self, tokens: list[tuple[str, str, int]], body: dict[str, Any]) -> dict[str, Any]:
        count = body.get("logprobs") or 0
        rows = [self.row(number, count) for _, _, number in tokens]
        known = {
            "tokens": [full for _, full, _ in tokens],
            "token_logprobs": [logprob(number - self.spelling) for _, _, number in tokens],
            "top_logprobs": [
                {each["decoded_token"]: each["logprob"] for each in row.values()} for row in rows
            ],
        }
        return {
            "index": 0,
            "text": "".join(shown for shown, _, _ in tokens),
            "token_ids": (
                [number for _, _, number in tokens] if body.get("return_token_ids") else None
            ),
            "logprobs": known if body.get("logprobs") is not None else None,
            "finish_reason": None,
        }

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        cached = 0
        for prompt in prompts(body):
            choice: dict[str, Any] = {"text": "", "finish_reason": "length"}
            if "prompt_logprobs" in body:
                count = body["prompt_logprobs"]
                choice["prompt_logprobs"] = [
                    None,
                    *(self.row(number, count) for number in prompt[1:]),
                ]
            if "allowed_token_ids" in body:
                choice["logprobs"] = {
                    "top_logprobs": [self.grades(prompt, body.get("logprob_token_ids", []))]
                }
                choice["token_ids"] = body["allowed_token_ids"][:1]
            elif "prompt_logprobs" not in body:
                choice |= self.written_at_once(body | {"prompt": prompt})
            choices.append(choice)
            cached = self.cache(prompt)
        written = sum(len(choice.get("token_ids") or ("",)) for choice in choices)
        usage = self.usage(prompts(body), cached if "prompt_logprobs" not in body else 0, written)
        return {"choices": choices, "usage": usage}

    def written_at_once(self, body: dict[str, Any]) -> dict[str, Any]:
        """Join the chunks of the answer to one prompt."""
        pieces = list(self.pieces(body))
        ids = [number for piece in pieces for number in piece["token_ids"] or ()]
        return pieces[-1] | {
            "text": "".join(piece["text"] for piece in pieces),
            "token_ids": ids or None,
        }

    def grades(self, prompt: list[int], wanted: list[int]) -> dict[str, float]:
        judged = self.judged(prompt, wanted).items()
        known = {f"token_id:{self.id(choice.encode())}": value for choice, value in judged}
        return {
            key: known.get(key, -9999.0) for key in [f"token_id:{number}" for number in wanted]
        } or known

    def judged(self, prompt: list[int], wanted: list[int]) -> dict[str, float]:
        """
        The log-probabilities of a judge's answers to *prompt*, which has to be one of the *wanted*
        ids.
        """
        text = self.decode(prompt)
        return next(
            (grades for key, grades in self.grades_by_text.items() if key in text), self.digits
        )

    def score(self, body: dict[str, Any]) -> dict[str, Any]:
        """Score the uncached tokens, as vLLM does if it has to read its cache for scoring."""
        prompt = body["token_ids"]
        params = body["sampling_params"]
        assert (params["detokenize"], params["skip_reading_prefix_cache"]) == (False, False)
        cached = self.cache(prompt)
        rows = [self.row(number, params["prompt_logprobs"]) for number in prompt[cached + 1 :]]
        for row in rows:
            for known in row.values():
                known["decoded_token"] = None
        left_out = [GARBAGE] * cached if self.garbage else []
        return {
            "prompt_logprobs": [None, *left_out, *rows],
            "usage": self.usage([prompt], cached, 1),
        }

    def usage(self, prompts: list[list[int]], cached: int, written: int) -> dict[str, Any]:
        self.generated += written
        details = (
            {"prompt_tokens_details": {"cached_tokens": cached}} if self.block or self.unit else {}
        )
        return {"prompt_tokens": sum(map(len, prompts)), "completion_tokens": written, **details}

    def cache(self, prompt: list[int]) -> int:
        """
        Return how many of the first tokens of *prompt* were cached, in whole blocks, and never its
        last token.
        """
        unit = self.unit or self.block
        most = len(prompt) - 1
        found = 0
        for other in reversed(self._read) if unit else ():
            same = min(shared_length(prompt, other), most)
            if self.unit and same < (same := (len(other) - 1) // unit * unit):
                same = 0
            found = max(found, same // unit * unit)
            if found + unit > most:
                break
        self._read.append(prompt)
        return found

    def row(self, number: int, count: int) -> dict[str, Any]:
        """
        What is known of token *number* and of the *count* likeliest of its place; it comes first,
        as in vLLM.
        """
        value = logprob(number - self.spelling)
        text = self.decode([number])
        likely = text not in self.unlikely
        row = {
            str(number): {
                "logprob": value,
                "rank": 1 if likely else len(self.rivals) + 1,
                "decoded_token": text,
            }
        }
        for place, rival in enumerate(self.rivals[: max(0, count - likely)], 1 + likely):
            worth = value - 0.5 * (place - 1 if likely else place - len(self.rivals) - 1)
            known = {"logprob": worth, "rank": place, "decoded_token": rival}
            row.setdefault(str(self.id(rival.encode())), known)
        return row

    # How it is reached

    def application(self) -> web.Application:
        """Return the routes of this server."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/detokenize", self.detokenize)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.show)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post(GENERATE, self.complete)
        for path in (RENDER, DERENDER):
            app.router.add_post(path, self.parse_tools)
        return app

    @asynccontextmanager
    async def listening(self, host: str = "127.0.0.1", port: int = 0) -> AsyncGenerator[str]:
        """Listen at *port* (0: at a free one); yield the URL."""
        runner = web.AppRunner(
            self.application(), handler_cancellation=True, shutdown_timeout=0.01, access_log=None
        )
        await runner.setup()
        site = web.TCPSite(runner, host, port)
        await site.start()
        bound_host, bound_port = runner.addresses[0][:2]
        try:
            yield f"http://{bound_host}:{bound_port}"
        finally:
            await runner.cleanup()

    @asynccontextmanager
    async def serve(self, role: Role = "small", **settings: Any) -> AsyncGenerator[Endpoint]:
        """
        Listen at a free port; yield the settings of an endpoint there.

        A machine that is busy for seconds is no server that is down.
        """
        settings.setdefault("deadlines", Deadlines(connect=60))
        async with self.listening() as url:
            yield Endpoint(role=role, url=url, **settings)


def garbage(*, stream: bool) -> web.Response:
    """Answer with a page of a proxy, or with an event that breaks off."""
    if stream:
        return web.Response(body=b'data: {"choices": [{"text\n\n', content_type="text/event-stream")
    return web.Response(body=b"<html>", content_type="text/html")


def spoilt(choice: dict[str, Any], what: str) -> dict[str, Any]:
    """Return *choice*, or a piece of one, with *what* is wrong of it as in `Spoil`."""
    match what:
        case "ids":
            return choice | {"token_ids": [number + 1 for number in choice.get("token_ids") or ()]}
        case "empty":
            return choice | {"text": "", "token_ids": [], "logprobs": None}
        case "bare":
            return {key: value for key, value in choice.items() if not key.endswith("logprobs")}
        case "null":
            nulled: dict[str, Any] = without_numbers(choice)
            return nulled
        case _:
            return choice


def without_numbers(value: Any) -> Any:
    """Return a copy of *value* with null for every log-probability, wherever it stands."""
    if isinstance(value, float):
        return None
    if hasattr(value, "items"):
        return {
            key: None if key == "logprob" else without_numbers(each) for key, each in value.items()
        }
    return [without_numbers(each) for each in value] if hasattr(value, "append") else value


def prompts(body: dict[str, Any]) -> list[list[int]]:
    """One prompt, or several."""
    prompt = body["prompt"]
    return prompt if isinstance(prompt[0], list) else [prompt]


def event(reply: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(reply) + b"\n\n"


def characters(text: bytes) -> list[bytes]:
    return [character.encode() for character in text.decode()]


def logprob(number: int) -> float:
    return -(number % 7) / 8


# The program

SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
WORDS = tuple(f" {first}{second}" for first in SYLLABLES for second in SYLLABLES)
STEP_END = "." + DELIMITER
YES_NO = ("Yes", "No")
PIECES = (
    *(bytes([byte]) for byte in range(256)),
    *(piece.encode() for piece in (*SPECIAL, STEP_END, *WORDS, *YES_NO)),
)
"""
The text of every token id: the bytes, so that any text can be encoded, and then longer pieces.
"""
IDS = {piece: number for number, piece in enumerate(PIECES)}
ENDED, THINKING, THOUGHT = (IDS[special.encode()] for special in SPECIAL[1:])
FIRST_WORD = IDS[WORDS[0].encode()]
_PIECE = re.compile("|".join(map(re.escape, (*SPECIAL, STEP_END))) + r"| ?\w+|.", re.DOTALL)
RIGHT = {"9": -0.1, "8": -2.5, "1": -6.0}
WRONG = {"1": -0.1, "2": -2.5, "9": -6.0}
YES = {"Yes": -0.1, "No": -2.5}
NO = {"Yes": -2.5, "No": -0.1}
OUT_OF_MEMORY = Refuse(
    500, "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
)


def compact(reply: object) -> str:
    """Return JSON without white space, as vLLM does."""
    return json.dumps(reply, separators=(",", ":"))


def _encode(text: str) -> list[int]:
    ids: list[int] = []
    for match in _PIECE.finditer(text):
        piece = match[0].encode()
        ids += [IDS[piece]] if piece in IDS else piece
    return ids


SHOWS_TOOLS = _encode(f"{IM_START}system\n{stand_in_tools.TOOLS}")
"""The first tokens of a conversation with tools."""


@dataclass
class StandIn(FakeVllm):
    """
    Thinks in *steps* steps of *step_tokens* tokens each, and then answers 42; the same text for
    every problem.

    If JSON is requested, the answer is a value that fits the schema, with 42 for every number. If
    the conversation has tools and does not end with the result of one, the answer is a call of the
    first, with such a value. What follows a prompt depends on nothing else but the number of tokens
    since the thinking began, so that stand-ins agree. A question about a step gets the grade 9, or
    a yes, for the share *accept* of all prompts, and else 1, or no.
    """

    digits: dict[str, float] = field(default_factory=lambda: dict(RIGHT))
    rivals: tuple[str, ...] = WORDS[:20]
    block: int = 16
    names: tuple[str, ...] = ("stand-in",)
    room: int = 32_768
    steps: int = 40
    step_tokens: int = 30
    accept: float = 1.0
    running: int = 0

    def __post_init__(self) -> None:
        self._answer = [*self.encode("The answer is \\boxed{42}."), ENDED]

    def id(self, piece: bytes) -> int:
        return IDS[piece]

    def encode(self, text: str) -> list[int]:
        return _encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join([PIECES[number] for number in ids]).decode(errors="replace")

    def token(self, place: int) -> int:
        """The token at *place* of the thinking."""
        step, word = divmod(place, self.step_tokens)
        if step >= self.steps or (step == self.steps - 1 and word == self.step_tokens - 1):
            return THOUGHT
        if word == self.step_tokens - 1:
            return IDS[STEP_END.encode()]
        return FIRST_WORD + (step * 7919 + word * 104_729 + step * word * 31) % len(WORDS)

    def following(self, body: dict[str, Any]) -> Iterator[bytes]:
        prompt: list[int] = body["prompt"]
        outputs: dict[str, Any] = body.get("structured_outputs") or {}
        wanted: str | None = outputs.get("structural_tag")
        answer = (
            self.formatted(outputs)
            if outputs and not wanted
            else self.calling(prompt, wanted) or self._answer
        )
        since = prompt[::-1].index(THINKING) if THINKING in prompt else len(prompt)
        thinking = prompt[len(prompt) - since :]
        if THOUGHT in thinking:
            yield from [
                PIECES[number] for number in answer[len(thinking) - 1 - thinking.index(THOUGHT) :]
            ]
            yield PIECES[ENDED]
        place = since - (thinking[:1] == [10])  # without the end of the line that opens the block
        while (token := self.token(place)) != THOUGHT:
            yield PIECES[token]
            place += 1
        yield from [PIECES[number] for number in (THOUGHT, *answer)]

    def formatted(self, outputs: dict[str, Any]) -> list[int]:
        """
        The tokens of the answer in the format that vLLM's field ``structured_outputs`` requests.
        """
        value = filled(outputs["json"]) if "json" in outputs else {"answer": 42}
        return [*self.encode(stand_in_tools.json_text(value)), ENDED]

    def calling(self, prompt: Sequence[int], wanted: str | None) -> list[int]:
        """
        The tokens of an answer to *prompt* that calls the tool *wanted*, or the first; none for a
        usual answer.
        """
        if list(prompt[: len(SHOWS_TOOLS)]) != SHOWS_TOOLS:
            return []
        first, *turns = self.decode(prompt).split(IM_START)[1:]
        last = [turn for turn in turns if not turn.startswith("assistant\n")][-1]
        if wanted is None and last.startswith("tool\n"):
            return []
        tools = stand_in_tools.listed(
            first.removeprefix("system\n").removesuffix("\n").removesuffix(IM_END)
        )
        functions = {tool["function"]["name"]: tool["function"] for tool in tools}
        name = wanted or next(iter(functions))
        arguments = filled({"type": "object", **functions[name].get("parameters", {})})
        written = stand_in_tools.written(name, stand_in_tools.json_text(arguments))
        return [*self.encode(written), ENDED]

    def judged(self, prompt: list[int], wanted: list[int]) -> dict[str, float]:
        accepted = (
            crc32(repr(prompt).encode()) % 1000 < self.accept * 1000 if self.accept < 1 else True
        )
        if any(PIECES[number].decode(errors="replace") in YES_NO for number in wanted):
            return YES if accepted else NO
        return self.digits if accepted else WRONG

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.running += 1
        try:
            return await super().complete(request)
        finally:
            self.requests.clear()
            self.running -= 1

    async def chat(self, request: web.Request) -> web.Response:
        """Answer a chat completion, a stream in one event."""
        body = orjson.loads(await request.read())
        prompt = self.encode(self.render(body["messages"], True))
        await self.wait(request, [prompt])
        whole = self.written_at_once(
            body | {"prompt": prompt, "logprobs": None, "return_token_ids": True}
        )
        message = whole["text"]
        finish = whole["finish_reason"]
        count = len(whole["token_ids"])
        message = message.removesuffix(whole["stop_reason"] or "").removesuffix(IM_END)
        await asyncio.sleep(self.latency.token * count)
        usage = self.usage([prompt], self.cache(prompt), count) | {
            "total_tokens": len(prompt) + count
        }
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": message},
            "finish_reason": finish,
        }
        reply = {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body["model"],
        }
        if body.get("stream"):
            events = (
                {"choices": [{"index": 0, "delta": choice["message"], "finish_reason": finish}]},
                {"usage": usage},
            )
            chunks = [
                orjson.dumps({"choices": [], **reply, "object": "chat.completion.chunk", **each})
                for each in events
            ]
            stream = b"".join(b"data: %b\n\n" % chunk for chunk in (*chunks, b"[DONE]"))
            return web.Response(body=stream, content_type="text/event-stream")
        return web.json_response({**reply, "choices": [choice], "usage": usage})

    async def show(self, request: web.Request) -> web.Response:
        """Show the gauges of a server, and the seconds of CPU time of this process."""
        label = f'{{model_name="{self.names[0]}"}}'
        cache = f'block_size="{self.block}",enable_prefix_caching="{bool(self.block)}"'
        lines = (
            f"vllm:num_requests_running{label} {self.running}",
            f"vllm:num_requests_waiting{label} 0",
            f"vllm:generation_tokens_total{label} {self.generated}",
            f"vllm:cache_config_info{{{cache}}} 1.0",
            f"process_cpu_seconds_total {time.process_time()}",
        )
        return web.Response(text="\n".join(lines) + "\n")

    async def befall(self, request: web.Request) -> web.Response:
        """Queue the faults of a JSON list for the coming completions."""
        try:
            faults = [parse_fault(text) for text in orjson.loads(await request.read())]
        except ConfigurationError as exc:
            return web.json_response({"error": {"message": str(exc), "code": 400}}, status=400)
        self.faults.extend(faults)
        return web.json_response({"queued": len(self.faults)})

    def application(self) -> web.Application:
        app = super().application()
        app.router.add_get("/version", _version)
        app.router.add_get("/health", _health)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/faults", self.befall)
        return app


async def _version(request: web.Request) -> web.Response:
    return web.json_response({"version": "0.0.0+stand.in"})


async def _health(request: web.Request) -> web.Response:
    return web.Response()


def filled(schema: dict[str, Any]) -> Any:
    """
    Return a value that fits a JSON *schema* of plain types: 42 for a number, every property of an
    object.
    """
    match schema.get("type"):
        case "object":
            return {name: filled(each) for name, each in schema.get("properties", {}).items()}
        case "array":
            return [filled(schema.get("items", {}))]
        case "string":
            return "42"
        case "boolean":
            return True
        case _:
            return 42


def parse_fault(text: str) -> Fault | None:
    """Read a fault as ``/faults`` takes it. Raise `ConfigurationError` for any other text."""
    kind, _, number = text.partition(":")
    try:
        match kind:
            case "none":
                return None
            case "memory":
                return OUT_OF_MEMORY
            case "reset":
                return Break(int(number))
            case "stall":
                return Stall(int(number))
            case "slow":
                return Slow(float(number))
            case _ if kind in SPOILS:
                return Spoil(kind)
            case _:
                if not 400 <= int(kind) <= 599:
                    raise ValueError(kind)
                after = (("Retry-After", str(int(number))),) if number else ()
                return Refuse(int(kind), f"the stand-in was asked for HTTP {kind}", after)
    except ValueError:
        kinds = (
            f"none, memory, {', '.join(SPOILS)}, reset:TOKENS, stall:TOKENS, slow:FACTOR, or an"
            " HTTP status of 400 to 599, which may have seconds to Retry-After, as in 503:2"
        )
        raise ConfigurationError(f"no such fault: {text!r}; there are {kinds}") from None


COMMAND = (sys.executable, "-m", "tests.stand_in")
"""The program, for an `environment`."""


def environment() -> dict[str, str]:
    """Return this process's environment with the root of the repository on ``PYTHONPATH``."""
    root = str(Path(__file__).parents[2])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", "")))),
    }


@contextmanager
def stand_in_process(*flags: str) -> Generator[str]:
    """Run a stand-in with *flags* in a process of its own; yield its URL."""
    command = (*COMMAND, "--port", "0", *flags)
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if not (line := process.stdout.readline()):
                raise RuntimeError(f"the stand-in ended with exit code {process.wait()}")
            yield line.split()[-1]
        finally:
            process.terminate()
