"""
Several processes that serve one port: the parent starts them, grants their requests slots, replaces those that die.

The parent serves no request. A worker is a program of its own; what connects both is in `worker`.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..concurrency import at_once, background, to_the_end
from ..errors import ConfigurationError, StepspecError
from . import metrics
from .admission import Admission, Drain
from .errors import ApiError
from .observers import RequestLog
from .settings import ServiceSettings
from .worker import END_SECONDS, Channel, Start, first_message

STEADY_SECONDS = 60.0  # of serving, after which the death of a worker counts as the first
MOST_DEATHS = 5  # of one worker in a row, none of whose lives was steady
ACCEPT_DELAY = 0.1  # seconds until the next attempt, after one that failed: too many open files, for example
FIRST_DELAY = 0.5  # seconds before a worker is replaced, doubled for each death in a row
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Program:
    """
    How a worker is started: a *command* that gets the file descriptor of its channel as a further argument.

    The pickled *settings* are sent to it over the channel, because they have keys.
    """

    command: Sequence[str]
    settings: bytes


class HeldSlots:
    """The slots that one worker holds or waits for."""

    def __init__(self, admission: Admission, channel: Channel) -> None:
        self._admission, self._channel = admission, channel
        self._tasks: dict[int, asyncio.Task[None]] = {}

    @property
    def count(self) -> int:
        return len(self._tasks)

    def enter(self, number: int, priority: int) -> None:
        self._tasks[number] = asyncio.create_task(self._hold(number, priority))

    def leave(self, number: int) -> None:
        if task := self._tasks.pop(number, None):
            task.cancel()

    async def release(self) -> None:
        """Give all slots back."""
        tasks = [*self._tasks.values()]
        for number in [*self._tasks]:
            self.leave(number)
        if tasks:
            await asyncio.wait(tasks)

    async def _hold(self, number: int, priority: int) -> None:
        try:
            async with self._admission.enter(priority):
                self._channel.send("granted", number)
                await asyncio.Event().wait()  # until the worker leaves
        except ApiError as exc:
            self._tasks.pop(number, None)
            self._channel.send("refused", number, exc.status, exc.message, exc.code)


@dataclass(slots=True)
class Life:
    """
    What one process of a worker came to: *ready* is the second at which it served, None if never.

    *cause* says how it ended, and *failure* is the error that it reported itself.
    """

    ready: float | None = None
    failure: StepspecError | None = None
    cause: str = ""

    @property
    def steady(self) -> bool:
        return self.ready is not None and asyncio.get_running_loop().time() - self.ready >= STEADY_SECONDS


class Worker:
    """A worker as the parent sees it: its *channel*, the socket for *connections*, and the slots of its requests."""

    def __init__(self, admission: Admission, channel: Channel, connections: socket.socket, life: Life) -> None:
        self.channel, self.slots = channel, HeldSlots(admission, channel)
        self.life = life
        self._connections, self._turn = connections, 0

    @property
    def ready(self) -> bool:
        return self.life.ready is not None

    @property
    def load(self) -> tuple[int, int]:
        """The worker with the least one gets the next connection: fewer requests, or else longest without one."""
        return self.slots.count, self._turn

    def give(self, connection: socket.socket, turn: int) -> bool:
        """Give it a *connection*; return whether it can have one now."""
        try:
            socket.send_fds(self._connections, [b"c"], [connection.fileno()])
        except OSError:  # It has just ended, or takes none.
            return False
        self._turn = turn
        return True


class ServiceAdmission(Admission):
    """The admission of the whole service: what is decided about it is sent to all workers."""

    def __init__(self, settings: ServiceSettings) -> None:
        super().__init__(settings)
        self.workers: dict[int, Worker] = {}

    def close(self) -> None:
        super().close()
        self.tell("close")

    def abort(self) -> None:
        super().abort()
        self.tell("abort")

    def tell(self, message: str) -> None:
        for worker in self.workers.values():
            worker.channel.send(message)


class Workers:
    """The workers of one service, which listen at *port* and keep their metrics in *folder*."""

    def __init__(
        self, program: Program, settings: ServiceSettings, port: socket.socket, folder: Path, log: RequestLog
    ) -> None:
        self._program, self._settings, self._port, self._folder, self._log = program, settings, port, folder, log
        self._admission = ServiceAdmission(settings)
        self._drain = Drain(self._admission, settings, log.info, self._end)
        self._ended = asyncio.Event()
        self._someone = asyncio.Event()
        self._serving = False
        self._failure: StepspecError | None = None

    async def run(self, announce: Callable[[], None]) -> None:
        """
        Run all workers until a signal ends them; call *announce* as soon as all serve.

        Raise a `StepspecError` if one does not start, or dies again and again; the others finish their requests first.
        """
        self._announce = announce
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._drain.signal)
        try:
            async with background(self._accept()) as (self._accepting,):
                await at_once(self._keep(number) for number in range(1, self._settings.workers + 1))
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
        if self._failure:
            raise self._failure

    def _end(self) -> None:
        """Have all workers end; nobody listens at the port any more."""
        self._ended.set()
        self._accepting.cancel()
        self._admission.tell("exit")

    async def _accept(self) -> None:
        """Accept connections while a worker can take them; give each to the one with the fewest requests."""
        loop = asyncio.get_running_loop()
        with self._port:
            self._port.setblocking(False)
            for turn in itertools.count(1):
                await self._someone.wait()
                try:
                    connection, _ = await loop.sock_accept(self._port)
                except OSError as exc:
                    self._log.log.warning("no_connection", cause=str(exc))
                    await asyncio.sleep(ACCEPT_DELAY)
                    continue
                with connection:
                    ready = sorted(
                        (each for each in self._admission.workers.values() if each.ready),
                        key=lambda worker: worker.load,
                    )
                    any(worker.give(connection, turn) for worker in ready)

    async def _keep(self, number: int) -> None:
        """Run worker *number*, and another in its place when it dies."""
        deaths = 0
        while not self._admission.closed:
            life = await self._live(number)
            metrics.forget(self._folder, number)
            if self._admission.closed:
                break
            deaths = 1 if life.steady else deaths + 1
            if deaths == MOST_DEATHS or not self._serving:
                self._give_up(number, life)
                break
            delay = FIRST_DELAY * 2 ** (deaths - 1)
            self._log.log.warning("worker_died", died=number, cause=life.cause, replaced_after=delay)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._ended.wait()

    def _give_up(self, number: int, life: Life) -> None:
        what = f"died {MOST_DEATHS} times in a row" if self._serving else "did not start"
        text = f"worker {number} of the service {what}: {life.cause}; its output above has the reason"
        self._failure = self._failure or life.failure or StepspecError(text)
        self._drain.signal()

    async def _live(self, number: int) -> Life:
        """Run one process of worker *number* to its end; its slots are free when it is gone."""
        life, (ours, theirs) = Life(), socket.socketpair()
        giving, taking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs, giving, taking:
            start = Start(number, self._folder, taking.fileno(), tuple(sys.path), self._program.settings)
            try:
                process = await self._spawn(theirs, taking)
            except OSError as exc:
                life.cause = f"the process cannot be started: {exc}"
                return life
            theirs.close()  # The worker alone has it, so that its end is seen.
            taking.close()
            giving.setblocking(False)
            async with Channel.over(ours) as channel:
                channel.write(first_message(start))
                worker = self._admission.workers[number] = Worker(self._admission, channel, giving, life)
                if self._admission.closed:  # since the process was started
                    channel.send("exit")
                try:
                    async with background(self._listen(number, worker)) as (listening,):
                        await self._over(listening)
                    del self._admission.workers[number]
                    self._note_ready()
                    life.cause = life.cause or await _ended(process)
                finally:
                    self._admission.workers.pop(number, None)
                    await to_the_end(_killed(process))
                    await to_the_end(worker.slots.release())
        return life

    def _spawn(self, *ends: socket.socket) -> Coroutine[Any, Any, Process]:
        files = [end.fileno() for end in ends]
        return asyncio.create_subprocess_exec(
            *(*self._program.command, str(files[0])),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=files,
            start_new_session=True,  # A terminal's Ctrl-C is for the parent.
        )

    async def _listen(self, number: int, worker: Worker) -> None:
        while message := await worker.channel.receive():
            match message:
                case ["enter", int(request), int(priority)]:
                    worker.slots.enter(request, priority)
                case ["leave", int(request)]:
                    worker.slots.leave(request)
                case ["ready"]:
                    worker.life.ready = asyncio.get_running_loop().time()
                    self._note_ready()
                case ["failed", str(kind), str(text)]:
                    worker.life.failure = ConfigurationError(text) if kind == "configuration" else StepspecError(text)
                    worker.life.cause = text
                case _:
                    raise ValueError(f"a message that no worker sends: {message}")

    def _note_ready(self) -> None:
        ready = sum(worker.ready for worker in self._admission.workers.values())
        if ready:
            self._someone.set()
        else:
            self._someone.clear()
        if not self._serving and ready == self._settings.workers:
            self._serving = True
            self._announce()

    async def _over(self, listening: asyncio.Task[None]) -> None:
        """Wait until the worker has closed its channel, but not for long once it has to end."""
        ended = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait((listening, ended), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((listening,), timeout=END_SECONDS)
        finally:
            ended.cancel()
        if listening.done():
            listening.result()


async def _ended(process: Process) -> str:
    """Wait for the end of a process that has closed its channel; return how it ended."""
    with suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    code = process.returncode
    if code is None:
        return f"it did not end within {END_SECONDS:g} s"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


async def _killed(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


async def run_workers(
    program: Program,
    settings: ServiceSettings,
    port: socket.socket,
    log: RequestLog,
    announce: Callable[[], None],
) -> None:
    """Serve *port* with `workers` processes of *program* until a signal ends them. Raise as `Workers.run` does."""
    try:
        temporary = TemporaryDirectory(prefix="stepspec-metrics-", ignore_cleanup_errors=True)
    except OSError as exc:
        message = f"several workers need a folder for their metrics: {exc}; set TMPDIR to one that can be written"
        raise ConfigurationError(message) from exc
    with temporary as folder:
        await Workers(program, settings, port, Path(folder), log).run(announce)
