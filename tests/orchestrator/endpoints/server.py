"""A scripted replacement of vLLM: it writes one text, greedily, and fails on demand. Real sockets, no clock."""

from __future__ import annotations

import asyncio
import codecs
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import orjson
from aiohttp import web

from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints import Endpoint

IM_START, IM_END, THINK, THINK_END = "<|im_start|>", "<|im_end|>", "<think>", "</think>"
SPECIAL = (IM_START, IM_END, THINK, THINK_END)
ROOM = 4096
GENERATE = "/inference/v1/generate"
GARBAGE = {"-3": {"logprob": 3e38, "rank": -7, "decoded_token": None}, "9": {"logprob": -1.0, "rank": 0}}


@dataclass(frozen=True)
class Refuse:
    """Answer with *status* instead."""

    status: int
    message: str = "no"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Break:
    """Cut the connection after so many tokens."""

    after: int


@dataclass(frozen=True)
class Stall:
    """Send nothing any more after so many tokens, until the client goes away."""

    after: int


@dataclass
class FakeVllm:
    """
    Writes *script* after whatever part of it the prompt ends in; ``bytes`` are tokens that end within a character.

    *faults* befall the coming completions one by one. With a *gate*, every token waits for a permit. *spelling* shifts
    all ids, which makes another vocabulary. *lacks* are request fields that are ignored.

    Every token is the likeliest of its place, followed by the *rivals*, except that the *unlikely* ones follow those.
    *digits* are the log-probabilities of a judge's answers; *grades_by_text* holds others for prompts that contain the
    key. With a *block*, the server caches prompts in blocks of that many tokens and reports it; with a *unit*, as of a
    hybrid model, only up to the end of an earlier prompt, rounded down to the unit. *scale_out* opens vLLM's own route
    to it, whose rows of a cached prefix are *garbage* (V1 runner) or left out (V2). *metrics* is the text of /metrics.
    """

    script: Sequence[str | bytes] = ()
    faults: deque[Refuse | Break | Stall | None] = field(default_factory=deque[Refuse | Break | Stall | None])
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
    metrics: bytes = b""
    lacks: frozenset[str] = frozenset()
    key: str = ""
    names: tuple[str, ...] = ("fake",)
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    sent: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)  # a client went away before the end
    _ids: dict[bytes, int] = field(default_factory=dict[bytes, int])
    _read: list[list[int]] = field(default_factory=list[list[int]])

    # What it knows of tokens

    def id(self, piece: bytes) -> int:
        return self._ids.setdefault(piece, len(self._ids)) + self.spelling

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            piece = next((special for special in SPECIAL if text.startswith(special)), text[0])
            ids.append(self.id(piece.encode()))
            text = text[len(piece) :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        pieces = {number: piece for piece, number in self._ids.items()}
        return b"".join(pieces[number - self.spelling] for number in ids).decode(errors="replace")

    def render(self, messages: list[dict[str, str]], generate: bool) -> str:
        turns = "".join(f"{IM_START}{turn['role']}\n{turn['content']}{IM_END}\n" for turn in messages)
        return turns + (f"{IM_START}assistant\n{THINK}\n" if generate else "")

    def continuation(self, prompt: str) -> list[bytes]:
        """Go on with the script where *prompt* leaves it, byte by byte to the next token."""
        text = prompt.rpartition(f"{THINK}\n")[2].encode()
        pieces = [piece if isinstance(piece, bytes) else piece.encode() for piece in self.script]
        rest, at = b"".join(pieces)[len(text) :], 0
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
        text = self.render(messages, body["add_generation_prompt"]) if messages else body["prompt"]
        return web.json_response({"tokens": self.encode(text), "max_model_len": ROOM})

    async def detokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"prompt": self.decode((await request.json())["tokens"])})

    async def show(self, request: web.Request) -> web.Response:
        return web.Response(body=self.metrics, status=200 if self.metrics else 404)

    async def models(self, request: web.Request) -> web.Response:
        if not self.opens(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.json_response({"data": [{"id": name, "max_model_len": ROOM} for name in self.names]})

    def opens(self, request: web.Request) -> bool:
        return not self.key or request.headers.get("Authorization") == f"Bearer {self.key}"

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = {key: value for key, value in (await request.json()).items() if key not in self.lacks}
        self.requests.append((request.path, body))
        fault = self.faults.popleft() if self.faults else None
        if not self.opens(request):
            fault = Refuse(401, "Unauthorized")
        elif body["model"] not in self.names:
            fault = Refuse(404, f"The model `{body['model']}` does not exist.")
        elif request.path == GENERATE and not self.scale_out:
            fault = Refuse(403, "Scale-out endpoints are disabled.")
        if isinstance(fault, Refuse):
            error = {"error": {"message": fault.message, "code": fault.status}}
            return web.json_response(error, status=fault.status, headers=dict(fault.headers))
        try:
            if body.get("stream"):
                return await self.stream(request, body, fault)
            if fault:
                await self.fail(request, fault)
            return web.json_response(self.score(body) if request.path == GENERATE else self.answer(body))
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise

    async def stream(
        self, request: web.Request, body: dict[str, Any], fault: Break | Stall | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        count = 0
        for choice in self.interleaved(body):
            for _ in choice["token_ids"] or ():
                if fault and count == fault.after:
                    await self.fail(request, fault)
                if self.gate:
                    await self.gate.acquire()
                count += 1
            await response.write(event({"choices": [choice]}))
            self.sent = count
        usage = {"prompt_tokens": sum(map(len, prompts(body))), "completion_tokens": count}
        await response.write(event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response

    async def fail(self, request: web.Request, fault: Break | Stall) -> None:
        if isinstance(fault, Stall):
            await asyncio.Event().wait()
        assert request.transport is not None
        request.transport.abort()
        raise ConnectionResetError

    def interleaved(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The pieces of all answers in turn, each with the place of its prompt."""
        each = [self.choices(body | {"prompt": prompt}) for prompt in prompts(body)]
        return [piece | {"index": place} for turn in zip_longest(*each) for place, piece in enumerate(turn) if piece]

    def choices(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Divide the answer into chunks as vLLM does: text up to the stop string, ids of whole tokens."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text, tokens = "", list[tuple[str, str, int]]()
        finish, reason = "length", None
        for piece in [*self.continuation(self.decode(body["prompt"])), IM_END.encode()][: body["max_tokens"]]:
            new = decoder.decode(piece)
            text += new
            ends = [at + len(stop) for stop in body["stop"] if (at := text.find(stop)) >= 0]
            shown = new if not ends else new[: len(new) - (len(text) - min(ends))]
            tokens.append((shown, new, self.id(piece)))
            if ends or piece == IM_END.encode():
                finish = "stop"
                reason = next((stop for stop in body["stop"] if stop in text), None)
                break
        chunks = [tokens[at : at + self.chunk] for at in range(0, len(tokens), self.chunk)]
        made = [self.choice(chunk, body) for chunk in chunks]
        made[-1] |= {"finish_reason": finish, "stop_reason": reason}
        return made

    def choice(self, tokens: list[tuple[str, str, int]], body: dict[str, Any]) -> dict[str, Any]:
        count = body.get("logprobs") or 0
        rows = [self.row(number, count) for _, _, number in tokens]
        known = {
            "tokens": [full for _, full, _ in tokens],
            "token_logprobs": [logprob(number - self.spelling) for _, _, number in tokens],
            "top_logprobs": [{each["decoded_token"]: each["logprob"] for each in row.values()} for row in rows],
        }
        return {
            "text": "".join(shown for shown, _, _ in tokens),
            "token_ids": [number for _, _, number in tokens] if body.get("return_token_ids") else None,
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
                choice["prompt_logprobs"] = [None, *(self.row(number, count) for number in prompt[1:])]
            if "allowed_token_ids" in body:
                choice["logprobs"] = {"top_logprobs": [self.grades(prompt, body.get("logprob_token_ids", []))]}
            choices.append(choice)
            cached = self.cache(prompt)
        return {"choices": choices, "usage": self.usage(prompts(body), cached if "prompt_logprobs" not in body else 0)}

    def grades(self, prompt: list[int], wanted: list[int]) -> dict[str, float]:
        text = self.decode(prompt)
        digits = next((grades for key, grades in self.grades_by_text.items() if key in text), self.digits)
        known = {f"token_id:{self.id(digit.encode())}": value for digit, value in digits.items()}
        return {key: known.get(key, -9999.0) for key in [f"token_id:{number}" for number in wanted]} or known

    def score(self, body: dict[str, Any]) -> dict[str, Any]:
        """Score the uncached tokens, as vLLM does if it has to read its cache for scoring."""
        prompt, params = body["token_ids"], body["sampling_params"]
        assert (params["detokenize"], params["skip_reading_prefix_cache"]) == (False, False)
        cached = self.cache(prompt)
        rows = [self.row(number, params["prompt_logprobs"]) for number in prompt[cached + 1 :]]
        for row in rows:
            for known in row.values():
                known["decoded_token"] = None
        left_out = [GARBAGE] * cached if self.garbage else []
        return {"prompt_logprobs": [None, *left_out, *rows], "usage": self.usage([prompt], cached)}

    def usage(self, prompts: list[list[int]], cached: int) -> dict[str, Any]:
        details = {"prompt_tokens_details": {"cached_tokens": cached}} if self.block or self.unit else {}
        return {"prompt_tokens": sum(map(len, prompts)), "completion_tokens": len(prompts), **details}

    def cache(self, prompt: list[int]) -> int:
        """Return how much of *prompt* was cached, in whole blocks; now it is."""
        if self.unit:
            ends = [other[: (len(other) - 1) // self.unit * self.unit] for other in self._read]
            self._read.append(prompt)
            return max((len(end) for end in ends if prompt[:-1][: len(end)] == end), default=0)
        shared = max([common(prompt[:-1], other) for other in self._read], default=0)
        self._read.append(prompt)
        return shared // self.block * self.block if self.block else 0

    def row(self, number: int, count: int) -> dict[str, Any]:
        """What is known of token *number* and of the *count* likeliest of its place; it comes first, as in vLLM."""
        value, text = logprob(number - self.spelling), self.decode([number])
        rank = len(self.rivals) + 1 if text in self.unlikely else 1
        above = [value + 0.5 * (len(self.rivals) - at) for at in range(len(self.rivals))]
        below = [value - 0.5 * (at + 1) for at in range(len(self.rivals))]
        others = zip(self.rivals, above if rank > 1 else below, strict=True)
        row = {str(number): {"logprob": value, "rank": rank, "decoded_token": text}}
        for place, (rival, worth) in enumerate(others, 1 if rank > 1 else 2):
            if place <= count:
                known = {"logprob": worth, "rank": place, "decoded_token": rival}
                row[str(self.id(rival.encode()))] = known
        return row

    # How a test meets it

    @asynccontextmanager
    async def serve(self, role: Role = "small", **settings: Any) -> AsyncGenerator[Endpoint]:
        """Listen on a free port; yield the settings of an endpoint there."""
        app = web.Application()
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/detokenize", self.detokenize)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.show)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post(GENERATE, self.complete)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        try:
            yield Endpoint(role=role, url=f"http://{host}:{port}", **settings)
        finally:
            await runner.cleanup()


def prompts(body: dict[str, Any]) -> list[list[int]]:
    """One prompt, or several."""
    prompt = body["prompt"]
    return prompt if isinstance(prompt[0], list) else [prompt]


def event(reply: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(reply) + b"\n\n"


def common(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def characters(text: bytes) -> list[bytes]:
    return [character.encode() for character in text.decode()]


def logprob(number: int) -> float:
    return -(number % 7) / 8
