"""
The whole campaign, on the machine: everything starts as soon as its parcels are there; results lie
under ROOT/results.

1. Two servers of real shapes, whose models write a fixed chain; timings of methods at set accept
  rates; the doctor.
2. Meanwhile the weights of the real pair are converted. Then its two servers: the judge, timings,
   and every method answers the problems, each in a process of its own, all at the same time, until
   some time before ROOT/deadline; then the estimate and what it is about, and more timings, one by
   one.

Every step has a time limit, a failed step is logged and the next begins, and nothing is lost:
results are written line by line. `collect.sh` brings them back at any time.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tarfile
import threading
import time
import tomllib
import traceback
import urllib.request
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .targets import ALONE, KIT, ROOT, TARGETS, Phase, Server, turns

TARGET = TARGETS[os.environ.get("KIT_TARGET", "gpu")]
IN, SITE, LOGS, RESULTS = (ROOT / name for name in ("in", "site", "logs", "results"))
DEADLINE, ANSWERS_UNTIL, RATES = (ROOT / name for name in ("deadline", "answers-until", "accept"))
USUALLY_JUDGED: Mapping[str, Any] = {
    "options": {"threshold": 0.5, "words": 1.87},
    "prior": {"accept_rate": 0.28},
}
NEWLINE = b"\n"
LONGEST = 760.0  # seconds of a campaign if nobody said how long the machine is there
BEGAN = time.time()
ENV = {
    **os.environ,
    **TARGET.env,
    "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": os.pathsep.join([str(SITE), str(ROOT), os.environ.get("PYTHONPATH", "")]),
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "NO_COLOR": "1",
    "COLUMNS": "200",
    "SCRIPT_ACCEPT_FILE": str(RATES),
}


def say(text: str) -> None:
    print(f"== {time.time() - BEGAN:5.0f} s: {text}", flush=True)


def left() -> float:
    """Seconds until the deadline, which may be set anew at any time."""
    try:
        return float(DEADLINE.read_text()) - time.time()
    except (OSError, ValueError):
        return BEGAN + LONGEST - time.time()


def wait_for(condition: Callable[[], bool], seconds: float, every: float = 0.2) -> bool:
    end = time.time() + min(seconds, max(0.0, left()))
    while not condition():
        if time.time() > end:
            return False
        time.sleep(every)
    return True


def received(*names: str) -> bool:
    if not TARGET.arrives:
        return True
    return all((IN / f"{name}.ready").exists() for name in names)


def install() -> None:
    """Unpack the wheels and the product, and vLLM when all of it is there."""
    SITE.mkdir(parents=True, exist_ok=True)
    if TARGET.arrives:
        wait_for(lambda: received("wheels.tar", "product.tar.xz"), 300)
        with tarfile.open(IN / "wheels.tar") as wheels:
            wheels.extractall(ROOT / "wheels", filter="data")
        for wheel in (ROOT / "wheels").rglob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(SITE)
        with tarfile.open(IN / "product.tar.xz") as product:
            product.extractall(ROOT, filter="data")
        shutil.copytree(ROOT / "product", SITE, dirs_exist_ok=True)
        say("wheels and product installed")
        wait_for(lambda: received("vllm.tar.xz"), 300)
        with tarfile.open(IN / "vllm.tar.xz") as vllm:
            vllm.extractall(SITE, filter="tar")
        say("vLLM installed")
    script = [
        TARGET.python,
        "-m",
        "kit.make_models",
        str(ROOT / "models"),
        str(ROOT / "tokenizer"),
        *TARGET.shapes,
    ]
    subprocess.run(script, env=ENV, check=True)


def healthy(server: Server) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health", timeout=1) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


class Servers:
    """Two servers that are started, waited for and stopped together."""

    def __init__(self, kind: str, servers: Sequence[Server]) -> None:
        self.kind = kind
        self.servers = servers
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for server in servers:
            self._start(server, server.entry, server.flags)

    def _start(self, server: Server, entry: Sequence[str], flags: Sequence[str]) -> None:
        log = (LOGS / f"{self.kind}-{server.name}.log").open("ab")
        names = [
            "--served-model-name",
            server.name,
            "--port",
            str(server.port),
            "--host",
            "127.0.0.1",
        ]
        command = [TARGET.python, *entry, "--model", str(ROOT / server.model), *names, *flags]
        log.write(f"{' '.join(command)}\n".encode())
        log.flush()
        self.processes[server.name] = subprocess.Popen(
            command, env=ENV, stdout=log, stderr=log, start_new_session=True
        )

    def wait(self) -> bool:
        """Wait until both answer; a server that died starts once more with its fallback."""
        again = {server.name: server.fallback for server in self.servers}
        end = time.time() + TARGET.start

        def up() -> bool:
            for server in self.servers:
                if self.processes[server.name].poll() is not None:
                    if not (entry := again.pop(server.name, ())):
                        raise RuntimeError(f"{self.kind} {server.name} died: {self._tail(server)}")
                    say(f"{self.kind} {server.name} died and starts again as {' '.join(entry)}")
                    flags = list(server.flags)
                    if "--api-server-count" in flags:
                        del flags[(place := flags.index("--api-server-count")) : place + 2]
                    self._start(server, entry, flags)
            return all(map(healthy, self.servers))

        if not wait_for(up, end - time.time(), 0.5):
            say(f"{self.kind} servers are not up")
            return False
        say(f"{self.kind} servers are up")
        return True

    def _tail(self, server: Server) -> str:
        return (LOGS / f"{self.kind}-{server.name}.log").read_text(errors="replace")[-1500:]

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(6)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        say(f"{self.kind} servers stopped")


def settings(kind: str, servers: Sequence[Server]) -> Mapping[str, str]:
    """The environment of a client of these servers."""
    lines = [
        f'{s.name}.url = "http://127.0.0.1:{s.port}/v1"\n{s.name}.model = "{s.name}"'
        for s in servers
    ]
    path = ROOT / f"{kind}.toml"
    path.write_text("\n".join(lines) + "\n")
    large = next(server for server in servers if server.name == "large")
    return {**ENV, "STEPSPEC_CONFIG": str(path), "LARGE_URL": f"http://127.0.0.1:{large.port}/v1"}


def run(name: str, arguments: Sequence[str], env: Mapping[str, str], seconds: float) -> None:
    """
    Run a Python program of the kit or the product, for at most that long; its output goes to the
    results.
    """
    say(f"{name} begins, {seconds:.0f} s at most")
    with (RESULTS / f"{name}.txt").open("wb") as out:
        try:
            command = [TARGET.python, *arguments]
            code = subprocess.run(
                command, env=env, stdout=out, stderr=out, timeout=max(1.0, seconds), check=False
            ).returncode
            say(f"{name} ended with {code}")
        except subprocess.TimeoutExpired:
            say(f"{name} ran out of time")


def timings(
    name: str,
    cases: Sequence[Mapping[str, Any]],
    env: Mapping[str, str],
    seconds: float,
    problems: str,
) -> None:
    path = ROOT / f"{name}.json"
    path.write_text(json.dumps(cases))
    arguments = ["-m", "kit.timings", str(path), str(ROOT / problems), str(RESULTS / name)]
    run(name, arguments, env, seconds)


def answers(env: Mapping[str, str], methods: Sequence[Mapping[str, Any]]) -> None:
    """Let every method answer the problems, all at the same time, each in a process of its own."""
    seconds = left() - TARGET.answers_end
    until = time.time() + seconds
    ANSWERS_UNTIL.write_text(str(until))
    running: list[subprocess.Popen[bytes]] = []
    for method in methods:
        name = method["name"]
        tag = f"-{method['temperature']}" if method["temperature"] else ""
        folder = RESULTS / f"answers{tag}"
        folder.mkdir(exist_ok=True)
        like = {"like": str(folder / f"{method['like']}.jsonl")} if "like" in method else {}
        whole = {"concurrency": TARGET.concurrency, **method, "until": str(ANSWERS_UNTIL), **like}
        (folder / f"{name}.json").write_text(json.dumps(whole))
        arguments = [
            str(folder / f"{name}.json"),
            str(ROOT / "problems.jsonl"),
            str(folder / f"{name}.jsonl"),
        ]
        log = (LOGS / f"answers{tag}-{name}.log").open("wb")
        command = [TARGET.python, "-m", "kit.answers", *arguments]
        running.append(
            subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        )
    say(f"{len(running)} methods answer, {seconds:.0f} s at most")
    shown = 0.0
    while any(process.poll() is None for process in running) and time.time() < until + 4:
        time.sleep(0.5)
        if time.time() - shown > 15:
            shown = time.time()
            say(answered())
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    say(f"answered: {answered()}")


def answered() -> str:
    paths = sorted(RESULTS.glob("answers*/*.jsonl"))
    return ", ".join(
        f"{path.parent.name[8:]} {path.stem} {path.read_bytes().count(NEWLINE)}" for path in paths
    )


def judge(env: Mapping[str, str]) -> Mapping[str, Any]:
    """
    Judge the pair; return the options of `reading` that its settings hold, and the prior of `auto`.
    """
    path = RESULTS / "judge.toml"
    words = ["-m", "stepspec", "tune", "--json", "--users", "1", "--output", str(path)]
    words += ["--minutes", str(TARGET.judge_minutes)]
    words += ["-p", "reading", "-p", "reading:tokens=all,threshold=1"]
    run("judge-real", words, env, 75 * TARGET.judge_minutes + 15)
    written = tomllib.loads(path.read_text()) if path.exists() else {}
    if written.get("policy") != "reading":
        say("the judge chose no settings of reading: those of the first campaign stand in for them")
        return USUALLY_JUDGED
    return {"options": written.get("options", {}), "prior": written.get("prior")}


def measured_estimate(env: Mapping[str, str], temperature: float) -> None:
    """Estimate the gain of methods, then measure it on other problems."""
    minutes = min(TARGET.estimate_minutes, (left() - 70) / 60)
    if not TARGET.estimate or minutes < TARGET.estimate_minutes / 3:
        return
    lines = (ROOT / "chains.jsonl").read_text().splitlines()[-40:]
    rows = [
        {"problem": json.loads(line)["prompt"], "id": number} for number, line in enumerate(lines)
    ]
    (ROOT / "estimate.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    methods = [
        m["policy"] + ":" + ",".join(f"{k}={v}" for k, v in m["options"].items())
        for m in TARGET.estimate
    ]
    words = [
        "-m",
        "stepspec",
        "tune",
        "--json",
        "--users",
        "1",
        "--minutes",
        f"{minutes:.2f}",
        "-n",
        "40",
    ]
    words += ["--problems", str(ROOT / "estimate.jsonl"), "--temperature", str(temperature)]
    words += [word for each in methods for word in ("-p", each.rstrip(":"))]
    name = f"estimate-{temperature}"
    run(name, words, env, minutes * 60 + 25)
    case = turns(
        f"ratio-{temperature}",
        (ALONE, *TARGET.estimate),
        1,
        TARGET.ratio_problems,
        60,
        temperature=temperature,
    )
    timings("timings-ratio", [case], env, left() - 6, "chains.jsonl")


def convert() -> None:
    """Convert the weights of the pair as soon as each of the two files is there."""
    digests = json.loads((KIT / "digests.json").read_text())
    for name in ("small", "large"):
        if not wait_for(lambda name=name: received(f"{name}.gguf"), 900, 0.5):  # type: ignore[misc]
            return
        arguments = [str(IN / f"{name}.gguf"), str(ROOT / "pair" / name), digests[f"{name}.gguf"]]
        with (LOGS / f"convert-{name}.log").open("wb") as log:
            command = ["nice", TARGET.python, "-m", "kit.convert", *arguments]
            code = subprocess.run(command, env=ENV, stdout=log, stderr=log, check=False)
        if code.returncode:
            say(f"conversion of {name} failed: {(LOGS / f'convert-{name}.log').read_text()[-600:]}")
            return
        (ROOT / "pair" / name / "converted").touch()
        say(f"{name} converted")


def converted() -> bool:
    return not TARGET.arrives or all(
        (ROOT / "pair" / name / "converted").exists() for name in ("large", "small")
    )


def doctor(kind: str, env: Mapping[str, str]) -> None:
    if TARGET.doctor:
        run(f"doctor-{kind}", ["-m", "stepspec", "doctor"], env, 30)


def measure_real(env: Mapping[str, str]) -> None:
    """Measure everything with the servers of the real pair."""
    judged = judge(env)
    methods = with_judged(TARGET.methods, judged)
    if TARGET.first:
        first = with_judged(TARGET.first, judged)
        timings("timings-first", first, env, min(TARGET.first_timings, left() - 6), "chains.jsonl")
    answers(env, methods)
    if left() > TARGET.answers_end + 45 and not any(method["temperature"] for method in methods):
        answers(env, [{**method, "temperature": 0.6} for method in methods])
    try:
        for temperature in (0, 0.6):
            measured_estimate(env, temperature)
    except Exception:
        say(traceback.format_exc())
    timings("timings-real", with_judged(TARGET.last, judged), env, left() - 6, "chains.jsonl")


def with_judged(
    tables: Sequence[Mapping[str, Any]], judged: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """
    Give the methods of *tables* that the judge is to set, also those that take turns, what it
    wrote.
    """
    return [
        {
            **table,
            **(judged if table.get("judged") else {}),
            **({"turns": with_judged(table["turns"], judged)} if "turns" in table else {}),
        }
        for table in tables
    ]


def control_mps(*arguments: str, text: bytes = b"") -> None:
    """
    Let CUDA's processes run on the card at the same time, not in turns, or say what the daemon
    knows.
    """
    try:
        done = subprocess.run(
            ["nvidia-cuda-mps-control", *arguments], input=text, capture_output=True, timeout=10
        )
        say(f"MPS {arguments or text!r}: {done.returncode} {(done.stdout + done.stderr)[-200:]!r}")
    except (OSError, subprocess.TimeoutExpired) as exc:
        say(f"no MPS: {exc}")


def time_script(phase: Phase) -> Servers:
    """Start the scripted servers and time the methods; the servers still run."""
    if phase.mps:
        control_mps("-d")
    more = {"large": phase.large}
    servers = [
        replace(each, flags=[*each.flags, *more.get(each.name, ())]) for each in TARGET.scripted
    ]
    scripted = Servers("scripted", servers)
    try:
        if scripted.wait():
            if phase.mps:
                control_mps(text=b"get_server_list\n")
            env = settings("scripted", servers)
            after = 60 if TARGET.real else 8
            timings(
                phase.name, TARGET.cases, env, min(TARGET.timings, left() - after), "chains.jsonl"
            )
    except Exception:
        say(traceback.format_exc())
    return scripted


def main() -> None:
    for folder in (IN, LOGS, RESULTS):
        folder.mkdir(parents=True, exist_ok=True)
    install()
    if TARGET.arrives and TARGET.real:
        threading.Thread(target=convert, daemon=True).start()
    for phase in TARGET.phases[:-1]:
        time_script(phase).stop()
    scripted = time_script(TARGET.phases[-1])
    if not TARGET.real:
        scripted.stop()
        return
    if not wait_for(converted, 600):
        say("the pair's weights did not arrive")
        return
    real = Servers("real", TARGET.real)
    doctor("scripted", settings("scripted", TARGET.scripted))
    scripted.stop()
    env = settings("real", TARGET.real)
    if real.wait():
        measure_real(env)
    real.stop()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        say(traceback.format_exc())
    finally:
        (ROOT / "done").touch()
        say("done")
