"""
Send a mix of requests to a real ``stepspec serve``, many at once, and account for every one of them.

The kinds of `request_kinds` go in a random order to the service over the miniature pair: methods and pass-through,
streams, clients that leave, bad input. Four things are checked. No request is lost: each has one outcome, and the
service's own counters agree. No answer is wrong: it is compared with that to the same request made alone. No request is
left open at the models' servers or the service. The memory of the service stays flat.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import platform
import random
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, cast

import aiohttp
import orjson
import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from stepspec.orchestrator.answer import extract, is_json
from stepspec.orchestrator.endpoints.metrics import read_queue
from stepspec.orchestrator.errors import ConfigurationError

from ..command_line import progress_bars, script
from ..sample import Task
from ..testbed.problems import Difficulty
from ..testbed.servers import running
from ..testbed.service_program import Program, serve
from ..testbed.solving_pair import fresh_tasks
from ..testbed.stand_in import stand_in_process
from .request_kinds import KINDS, Kind, Names, ReplyError, Said, read

EXAMPLES = """
Examples:

  python -m stepspec.evals.experiments.mixed_requests --requests 1000 --concurrent 32

  python -m stepspec.evals.experiments.mixed_requests --stand-in --requests 5000        # no model: the service alone
"""
KEY = "mixed"
SEED = 2028
PROBLEMS = 10  # each kind with answers is made alone once for each of them
DIFFICULTY = Difficulty(steps=(2, 3))
PATIENCE = 120.0  # seconds for one reply
SETTLING = 15.0  # seconds in which open requests have to be gone
QUARTERS = (0.2, 0.4, 0.6, 0.8, 1.0)  # of the requests, after which all is quiet and the memory is read
LEFT = 499  # the status by which the service counts a client that has left

FREE_KIB, KIB_PER_REQUEST = 8192, 8
"""Memory that may be added after the first fifth: so much in all, for caches and fragments, or so much a request."""

Fate = Literal["answered", "refused", "left", "failed"]
FATES: tuple[Fate, ...] = ("answered", "refused", "left", "failed")
CALL = re.compile(r"\n(\w+)\((.*)\)", re.DOTALL)  # as `request_kinds` writes a call
Verdict = Literal["identical", "right", "wrong"]


@dataclass(frozen=True, slots=True)
class Sent:
    """A request: its kind, the number of its task, and how long the client stays (`Kind.patience`)."""

    number: int
    kind: Kind
    task: int
    patience: float | None = None

    @property
    def id(self) -> str:
        return f"mixed-{self.number}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request; *note* says what is wrong with one that failed."""

    sent: Sent
    fate: Fate
    status: int = 0
    said: Said | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """The resident memory of the service in KiB, when nothing runs, after so many *requests*."""

    requests: int
    kib: int


@dataclass(frozen=True, slots=True)
class Report:
    """
    The *outcomes* of all requests with the *verdicts* on those that were answered, by their number.

    *counted* are the service's own counts by status; *still_open* the requests at the end, by where.
    """

    asked: int
    outcomes: Sequence[Outcome]
    verdicts: Mapping[int, Verdict]
    counted: Mapping[int, int]
    still_open: Mapping[str, int]
    memory: Sequence[Memory]
    seconds: float

    def failures(self) -> list[str]:
        """Return what is not as it should be, a sentence each."""
        return [*self._lost(), *self._wrong(), *self._open(), *self._grown()]

    def _lost(self) -> Iterator[str]:
        numbers = Counter(outcome.sent.number for outcome in self.outcomes)
        if missing := set(range(self.asked)) - numbers.keys():
            yield f"{len(missing)} requests have no outcome, such as {min(missing)}"
        if twice := [number for number, times in numbers.items() if times > 1]:
            yield f"{len(twice)} requests have more than one outcome, such as {min(twice)}"
        for outcome in self.outcomes:
            if outcome.fate == "failed":
                yield f"{outcome.sent.id} ({outcome.sent.kind.name}) failed: {outcome.note}"
        if (total := sum(self.counted.values())) != self.asked:
            yield f"the service has counted {total} requests, not {self.asked}"
        seen = Counter(outcome.status for outcome in self.outcomes if outcome.fate in ("answered", "refused"))
        left = sum(outcome.fate == "left" for outcome in self.outcomes)
        for status in sorted((seen.keys() | self.counted.keys()) - {LEFT, 200}):
            if self.counted.get(status, 0) != seen[status]:
                yield f"the service has counted {self.counted.get(status, 0)} replies {status}, clients {seen[status]}"
        if self.counted.get(LEFT, 0) > left:
            yield f"the service has counted {self.counted[LEFT]} clients that left, and {left} have"

    def _wrong(self) -> Iterator[str]:
        said = {outcome.sent.number: outcome for outcome in self.outcomes}
        for number, verdict in self.verdicts.items():
            if verdict == "wrong" and (outcome := said.get(number)) is not None and outcome.said is not None:
                yield f"{outcome.sent.id} ({outcome.sent.kind.name}) was answered wrongly: {outcome.said.text[-80:]!r}"

    def _open(self) -> Iterator[str]:
        for place, count in self.still_open.items():
            if count:
                yield f"{count} requests are still open at {place}"

    def _grown(self) -> Iterator[str]:
        if self.grown > self.bound:
            yield f"the memory of the service has grown by {self.grown} KiB since the first fifth, above {self.bound}"

    @property
    def grown(self) -> int:
        """KiB that the memory at the end is above that after the first fifth."""
        return self.memory[-1].kib - self.memory[0].kib if self.memory else 0

    @property
    def bound(self) -> int:
        requests = self.memory[-1].requests - self.memory[0].requests if self.memory else 0
        return max(FREE_KIB, KIB_PER_REQUEST * requests)


def mixed(kinds: Sequence[Kind], requests: int, tasks: int, chance: random.Random) -> list[Sent]:
    """Return so many *requests*: each kind has its share, and at least one; in a random order."""
    parts = sum(kind.share for kind in kinds)
    drawn = [kind for kind in kinds for _ in range(max(1, kind.share * requests // parts))][:requests]
    drawn += chance.choices(kinds, [kind.share for kind in kinds], k=requests - len(drawn))
    chance.shuffle(drawn)
    return [Sent(number, kind, chance.randrange(tasks), kind.patience(chance)) for number, kind in enumerate(drawn)]


class Client:
    """Sends requests to the service at *base*, for *tasks*; the models are served under *names*."""

    def __init__(self, http: aiohttp.ClientSession, base: str, names: Names, tasks: Sequence[Task]) -> None:
        self._http, self._base, self._names, self._tasks = http, base, names, tasks

    async def send(self, sent: Sent, *, stream: bool | None = None) -> Outcome:
        """Send a request, and return what became of it."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._send(sent, sent.kind.stream if stream is None else stream)
        except TimeoutError:
            return Outcome(sent, "failed", note=f"no reply within {PATIENCE:g} s")
        except (aiohttp.ClientError, ReplyError, ValueError) as exc:
            return Outcome(sent, "failed", note=f"{type(exc).__name__}: {exc}")

    async def _send(self, sent: Sent, stream: bool) -> Outcome:
        waiting = sent.patience if not stream else None
        try:
            async with asyncio.timeout(waiting):
                body = sent.kind.body(self._names, self._tasks[sent.task], stream=stream)
                async with self._post(sent, body) as reply:
                    return await self._outcome(sent, reply, stream)
        except TimeoutError:
            if waiting is None:
                raise
            return Outcome(sent, "left")

    def _post(self, sent: Sent, body: bytes) -> Any:
        headers = {
            "Authorization": f"Bearer {KEY}",
            "X-Api-Key": KEY,
            "Content-Type": "application/json",
            "X-Request-Id": sent.id,
        }
        return self._http.post(self._base + sent.kind.path, data=body, headers=headers)

    async def _outcome(self, sent: Sent, reply: aiohttp.ClientResponse, stream: bool) -> Outcome:
        kind = sent.kind
        if reply.headers.get("X-Request-Id") != sent.id:
            raise ReplyError(f"the reply to the request {reply.headers.get('X-Request-Id')!r}")
        if reply.status != kind.status:
            raise ReplyError(f"HTTP {reply.status} instead of {kind.status}: {(await reply.text())[:300]}")
        if reply.status != 200:
            return Outcome(sent, "refused", reply.status, note=refusal(kind, orjson.loads(await reply.read())))
        if not stream:
            return Outcome(sent, "answered", 200, read(kind.path, orjson.loads(await reply.read())))
        events: list[Mapping[str, Any]] = []
        async for line in reply.content:
            if line.startswith(b"data: {"):
                events.append(orjson.loads(line[6:]))
                if sent.patience is not None and len(events) >= sent.patience:
                    reply.close()
                    return Outcome(sent, "left")
        return Outcome(sent, "answered", 200, read(kind.path, events))


def refusal(kind: Kind, reply: Any) -> str:
    """Return the message of a refusal. Raise `ReplyError` if there is none, or if it does not name the parameter."""
    error = _table(_table(reply).get("error"))
    if not error.get("message"):
        raise ReplyError(f"a refusal without a message: {reply}")
    if kind.param is not None and error.get("param") != kind.param:
        raise ReplyError(f"a refusal that names {error.get('param')!r} instead of {kind.param!r}")
    return str(error["message"])


def _table(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def judge(said: Said, alone: Said, task: Task) -> Verdict:
    """
    Compare an answer with that to the same request made alone; the pair may round otherwise in another batch.

    A call is right if it calls the same tool with arguments in JSON: the pair was not trained to call any.
    """
    if said == alone:
        return "identical"
    if called := CALL.fullmatch(said.text):
        other = CALL.fullmatch(alone.text)
        return "right" if other and other[1] == called[1] and is_json(called[2]) else "wrong"
    return "right" if extract(said.text) in (extract(alone.text), task.answer) and said.text else "wrong"


async def at_once(work: Iterable[Sent], send: Callable[[Sent], Any], concurrent: int) -> list[Outcome]:
    """Send all of *work*, so many at once; return the outcomes as they come."""
    waiting, outcomes = iter(work), list[Outcome]()

    async def client() -> None:
        for sent in waiting:
            outcomes.append(await send(sent))

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrent):
            group.create_task(client())
    return outcomes


async def references(client: Client, kinds: Sequence[Kind], tasks: int) -> dict[tuple[str, int], Said]:
    """Return the answer to each request that has one, when no other request runs."""
    alone: dict[tuple[str, int], Said] = {}
    for kind in kinds:
        for task in range(tasks) if kind.status == 200 and kind.leaves is None else ():
            outcome = await client.send(Sent(0, kind, task), stream=False if not kind.real else None)
            if outcome.said is None:
                raise ReplyError(f"{kind.name}, made alone, is {outcome.fate}: {outcome.note}")
            alone[kind.name, task] = outcome.said
    return alone


async def measure(
    program: Program,
    servers: Mapping[str, str],
    kinds: Sequence[Kind],
    *,
    requests: int,
    concurrent: int,
    problems: int = PROBLEMS,
    advance: Callable[[int], object] = lambda done: None,
) -> Report:
    """
    Send *requests* requests of these *kinds* to *program*, so many *concurrent* ones, after each one was made alone.

    *servers* are the base URLs of the models' servers by role; *advance* receives the number of further requests
    that are done.
    """
    tasks = fresh_tasks(problems, SEED, DIFFICULTY)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        listed = (await _json(http, f"{program.base}/v1/models"))["data"]
        names = Names(*(model["id"] for model in listed if model["owned_by"] == "vllm"))
        description = await _json(http, f"{program.base}/openapi.json")
        client = Client(http, program.base, names, tasks)
        kinds = [kind for kind in kinds if kind.served(description)]
        alone = await references(client, kinds, problems)
        await settled(http, program.base, servers)  # The last one is counted when all of its reply is sent.
        before = await _counted(http, program.base)
        work = mixed(kinds, requests, problems, random.Random(SEED))
        outcomes, memory, still_open = list[Outcome](), list[Memory](), dict[str, int]()
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def send(sent: Sent) -> Outcome:
            outcome = await client.send(sent)
            advance(1)
            return outcome

        ends = [round(requests * share) for share in QUARTERS]
        for start, end in pairwise([0, *ends]):
            outcomes += await at_once(work[start:end], send, concurrent)
            still_open = await settled(http, program.base, servers)
            memory.append(Memory(end, resident(program.child.pid)))
        seconds = loop.time() - began
        counted = Counter(await _counted(http, program.base))
        counted.subtract(before)
    verdicts: dict[int, Verdict] = {
        outcome.sent.number: judge(
            outcome.said, alone[outcome.sent.kind.name, outcome.sent.task], tasks[outcome.sent.task]
        )
        for outcome in outcomes
        if outcome.said is not None and outcome.sent.kind.leaves is None
    }
    counts = {status: count for status, count in counted.items() if count}
    return Report(requests, outcomes, verdicts, counts, still_open, memory, seconds)


async def _json(http: aiohttp.ClientSession, url: str) -> Any:
    async with http.get(url, headers={"Authorization": f"Bearer {KEY}"}, raise_for_status=True) as reply:
        return orjson.loads(await reply.read())


async def _text(http: aiohttp.ClientSession, url: str) -> str:
    async with http.get(url, raise_for_status=True) as reply:
        return await reply.text()


async def _counted(http: aiohttp.ClientSession, base: str) -> dict[int, int]:
    """Return the requests to models that the service has counted, by status."""
    counts = Counter[int]()
    for family in text_string_to_metric_families(await _text(http, f"{base}/metrics")):
        for sample in family.samples:
            if sample.name == "stepspec_requests_total" and sample.labels["endpoint"] != "other":
                counts[int(sample.labels["status"])] += int(sample.value)
    return dict(counts)


async def settled(http: aiohttp.ClientSession, base: str, servers: Mapping[str, str]) -> dict[str, int]:
    """Return the open requests by where they are, once there are none, or after `SETTLING` seconds."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + SETTLING
    while True:
        still_open = {role: await queued(http, url) for role, url in servers.items()}
        still_open["the service"] = await _active(http, base)
        if not any(still_open.values()) or loop.time() > ends:
            return still_open
        await asyncio.sleep(0.1)


async def queued(http: aiohttp.ClientSession, url: str) -> int:
    """Return how many requests the server at *url* works on or keeps waiting, by its own count."""
    queue = read_queue((await _text(http, url.removesuffix("/v1") + "/metrics")).encode())
    return queue.running + queue.waiting if queue is not None else 0


async def _active(http: aiohttp.ClientSession, base: str) -> int:
    names = ("stepspec_requests_running", "stepspec_requests_waiting")
    families = text_string_to_metric_families(await _text(http, f"{base}/metrics"))
    return sum(int(sample.value) for family in families for sample in family.samples if sample.name in names)


def resident(group: int) -> int:
    """Return the resident memory of all processes of a process group, in KiB."""
    page = os.sysconf("SC_PAGE_SIZE") // 1024
    pages = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int((process / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                pages += int((process / "statm").read_text().split()[1])
        except OSError:
            continue  # It has ended.
    return pages * page


@asynccontextmanager
async def servers_of_the_pair(console: Console) -> AsyncGenerator[Mapping[str, str]]:
    """Run the miniature pair, as fast as the CPU goes; yield the base URLs by role."""
    async with running("off", console=console) as served:
        yield {role: server.base_url for role, server in served.items()}


@asynccontextmanager
async def stand_ins() -> AsyncGenerator[Mapping[str, str]]:
    """Run a stand-in for each model; yield their base URLs by role."""
    with ExitStack() as stack:
        flags = ("--steps", "4", "--step-tokens", "12", "--token-ms", "2", "--scale-out")
        yield {role: stack.enter_context(stand_in_process(*flags)) + "/v1" for role in ("small", "large")}


@asynccontextmanager
async def service(servers: Mapping[str, str]) -> AsyncGenerator[Program]:
    """Run ``stepspec serve`` over *servers*."""
    settings = {"STEPSPEC_SERVICE__KEYS": KEY, "STEPSPEC_SAMPLING__TEMPERATURE": "0"}
    with TemporaryDirectory(prefix="stepspec-mixed-") as folder:
        log = Path(folder) / "service.log"
        async with serve(servers["small"], servers["large"], log, settings=settings) as program:
            yield program


def table(report: Report) -> Table:
    """Return what became of the requests of each kind."""
    made = Table(title=f"{report.asked} requests in {report.seconds:.0f} s")
    for heading in ("kind", "sent", *FATES, "identical", "right", "wrong"):
        made.add_column(heading, justify="left" if heading == "kind" else "right")
    kinds = [kind.name for kind in KINDS if any(outcome.sent.kind is kind for outcome in report.outcomes)]
    for name in [*kinds, "all"]:
        own = [outcome for outcome in report.outcomes if name in (outcome.sent.kind.name, "all")]
        fates = Counter(outcome.fate for outcome in own)
        verdicts = Counter(report.verdicts.get(outcome.sent.number) for outcome in own)
        counts = [len(own), *(fates[fate] for fate in FATES)]
        counts += [verdicts["identical"], verdicts["right"], verdicts["wrong"]]
        made.add_row(name, *(str(count) if count else "-" for count in counts), end_section=name == kinds[-1])
    return made


def main(
    requests: Annotated[int, typer.Option(min=50, help="Number of requests.")] = 1000,
    concurrent: Annotated[int, typer.Option(min=1, help="Number of requests at once.")] = 32,
    stand_in: Annotated[bool, typer.Option("--stand-in", help="Stand-ins in place of the miniature pair.")] = False,
    small: Annotated[str, typer.Option(metavar="URL", help="A small model's server that runs already.")] = "",
    large: Annotated[str, typer.Option(metavar="URL", help="A large model's server that runs already.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Send mixed requests to a real service; exit with 1 if one is lost or answered wrongly, or if memory grows."""
    console, errors = Console(width=120), Console(stderr=True)
    if bool(small) != bool(large):
        raise ConfigurationError("--small and --large belong together: give both, or neither")
    given = {"small": small, "large": large} if small else None
    report = asyncio.run(_run(requests, concurrent, stand_in, given, errors))
    failures = report.failures()
    if json:
        print(orjson.dumps(_as_json(report, failures)).decode())
    else:
        _print(console, report, failures, concurrent)
    if failures:
        raise typer.Exit(1)


async def _run(
    requests: int, concurrent: int, stand_in: bool, given: Mapping[str, str] | None, console: Console
) -> Report:
    kinds = [kind for kind in KINDS if not (stand_in and kind.real)]
    starting = nullcontext(given) if given else stand_ins() if stand_in else servers_of_the_pair(console)
    async with starting as servers, service(servers) as program:
        with progress_bars(console) as progress:
            bar = progress.add_task("requests", total=requests)
            return await measure(
                program,
                servers,
                kinds,
                requests=requests,
                concurrent=concurrent,
                problems=1 if stand_in else PROBLEMS,  # a stand-in answers all problems alike
                advance=lambda done: progress.advance(bar, done),
            )


def _as_json(report: Report, failures: Sequence[str]) -> dict[str, Any]:
    return {
        "date": str(datetime.date.today()),
        "machine": platform.machine(),
        "requests": report.asked,
        "seconds": report.seconds,
        "fates": Counter(outcome.fate for outcome in report.outcomes),
        "verdicts": Counter(report.verdicts.values()),
        "counted": {str(status): count for status, count in report.counted.items()},
        "open": report.still_open,
        "memory": [asdict(each) for each in report.memory],
        "failures": failures,
    }


def _print(console: Console, report: Report, failures: Sequence[str], concurrent: int) -> None:
    console.print(table(report))
    lost = report.asked - len({outcome.sent.number for outcome in report.outcomes})
    counts = ", ".join(f"{count} x {status}" for status, count in sorted(report.counted.items()))
    console.print(f"lost: {lost}; the service has counted {counts}")
    console.print("open at the end: " + ", ".join(f"{place} {count}" for place, count in report.still_open.items()))
    resident = ", ".join(f"{each.kib / 1024:.1f} after {each.requests}" for each in report.memory)
    console.print(
        f"memory of the service in MiB, nothing running: {resident}; grown by {report.grown} KiB after the first "
        f"fifth (bound {report.bound} KiB)"
    )
    for failure in failures[:20]:
        console.print(failure, style="bold red", highlight=False, markup=False)
    command = f"python -m stepspec.evals.experiments.mixed_requests --requests {report.asked} --concurrent {concurrent}"
    console.print(f"{datetime.date.today()}, {platform.machine()}: {command}", style="dim")


if __name__ == "__main__":
    script(main, EXAMPLES)
