"""
vLLM servers that are forked from a process which has imported vLLM: a start takes a quarter of the
CPU time.

Most of a start is imports, in each of a server's two processes. `forking` starts the fork server,
or joins the one that another worker of this test run has started, and returns the program for
`ServerCommand.program`: it takes the arguments of vLLM's own program, has the fork server make that
server, and ends when the server ends. Tests of how servers start and are stopped use vLLM's own
program.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

GRACE = 4.0  # seconds that a server has to end before it is killed
MAXIMUM = 2**20  # bytes of a request
STANDARD = (0, 1, 2)  # descriptors
KILL = b"kill"  # the engine, so that the rest of the server has to notice
ENTRY = "vllm.entrypoints.launchers.api_server.entry"
PROGRAM = "FORKED_PROGRAM"  # a variable: another module than ENTRY whose `main` is run
IMPORTED = (  # what the two processes of a server import as they start
    ENTRY,
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.launchers.app",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
)


@contextmanager
def forking(shared: Path, environment: Mapping[str, str]) -> Generator[tuple[str, ...]]:
    """
    Yield the program that has servers forked; *shared* is a folder that all workers of this test
    run share.
    """
    path = shared / "forks.address"
    with (shared / "forks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            lease = _connect(path.read_text())
        except OSError:  # there is none yet, or none any more
            path.write_text(_start(environment, shared / "forks.log"))
            lease = _connect(path.read_text())
        lease.send(b"null")
    with lease:
        yield sys.executable, "-I", "-S", __file__, path.read_text()


def _start(environment: Mapping[str, str], log: Path) -> str:
    """Start a fork server, and return its address."""
    address = f"stepspec-forks-{uuid.uuid4()}"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening,
        log.open("wb") as output,
    ):
        listening.bind(f"\0{address}")
        listening.listen()
        sources = listening.fileno(), output.fileno(), output.fileno()
        streams = [
            (os.POSIX_SPAWN_DUP2, source, number)
            for source, number in zip(sources, STANDARD, strict=True)
        ]
        os.posix_spawn(
            sys.executable,
            (sys.executable, __file__),
            {**os.environ, **environment},
            file_actions=streams,
            setsid=True,
            setsigdef=(signal.SIGPIPE,),
        )
    return address


def _connect(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(f"\0{address}")
    except OSError:
        connection.close()
        raise
    return connection


def request(address: str, arguments: list[str]) -> int:
    """
    Have a server made that takes over this process's output, and return its exit code once it has
    ended.

    SIGTERM and SIGINT stop the server, SIGUSR1 kills its engine.
    """
    with _connect(address) as connection:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: connection.shutdown(socket.SHUT_WR))
        signal.signal(signal.SIGUSR1, lambda number, frame: connection.send(KILL))
        message = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode()
        socket.send_fds(connection, [message], STANDARD)
        return int(connection.recv(MAXIMUM) or 1)


def serve(listening: socket.socket) -> None:
    """Fork a server for every request, until the last of those that need this process is gone."""
    # nobody waits for the processes that watch over servers
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    leases: set[socket.socket] = set()
    while True:
        ready, _, _ = select.select([listening, *leases], [], [])
        if listening in ready:
            connection, _ = listening.accept()
            message, descriptors, _, _ = socket.recv_fds(connection, MAXIMUM, len(STANDARD))
            asked = json.loads(message or b"null")
            if asked is None:
                leases.add(connection)
                continue
            if os.fork() == 0:
                listening.close()
                watch(connection, descriptors, *asked)
            connection.close()
            for descriptor in descriptors:
                os.close(descriptor)
        for lease in leases & set(ready):
            lease.close()
            leases.remove(lease)
        if not leases:
            return


def watch(connection: socket.socket, descriptors: list[int], *asked: Any) -> None:
    """
    Run a server in a child process; end its process group once the client is gone, and report the
    exit code.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        connection.close()
        run(descriptors, *asked)
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([connection.fileno(), ended], [], [])
    killed = connection.fileno() in ready and connection.recv(MAXIMUM) == KILL
    with suppress(ProcessLookupError):
        if killed:
            for engine in below(child):
                os.kill(engine, signal.SIGKILL)
        else:
            os.killpg(child, signal.SIGTERM)
        select.select([ended], [], [], GRACE)
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with suppress(OSError):
        connection.send(str(os.waitstatus_to_exitcode(status) % 256).encode())
    os._exit(0)


def below(leader: int) -> list[int]:
    """Return the processes of a group, without its leader."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            group = int((entry / "stat").read_text().rpartition(")")[2].split()[2])
            if group == leader != int(entry.name):
                found.append(int(entry.name))
    return found


def share_groups() -> None:
    """
    Let vLLM's dozen process groups be one where all of them have one process.

    Gloo has a thread for each group, which wakes a hundred times a second: with twenty servers,
    mostly idle, that takes a tenth of the CPU time of a test run.
    """
    distributed: Any = import_module("torch.distributed")
    new_group = distributed.new_group
    groups = dict[str, Any]()

    def shared(
        ranks: list[int] | None = None, *args: Any, backend: str | None = None, **options: Any
    ) -> Any:
        if ranks != [0] or args:
            return new_group(ranks, *args, backend=backend, **options)
        key = repr((backend, options))
        if key not in groups:
            groups[key] = new_group(ranks, backend=backend, **options)
        return groups[key]

    distributed.new_group = shared


def run(
    descriptors: list[int], arguments: list[str], environment: Mapping[str, str], folder: str
) -> None:
    """Be vLLM's own program in this process, or the one that the environment names."""
    os.setsid()
    for own, descriptor in zip(STANDARD, descriptors, strict=True):
        os.dup2(descriptor, own)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv[1:] = arguments
    contexts: Any = import_module("multiprocessing.context")
    # on a CPU, vLLM insists on "spawn"
    contexts._concrete_contexts["spawn"] = contexts._concrete_contexts["fork"]
    share_groups()
    code = 1
    try:
        import_module(environment.get(PROGRAM, ENTRY)).main()
        code = 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(request(sys.argv[1], sys.argv[2:]))
    for module in IMPORTED:
        import_module(module)
    gc.freeze()
    serve(socket.socket(fileno=0))
