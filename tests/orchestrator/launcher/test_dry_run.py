"""The printed commands of a pair, pasted into a shell, start what `stepspec up` starts itself."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepspec.orchestrator.launcher import Server, up
from stepspec.orchestrator.launcher.launch import ENTRY
from stepspec.orchestrator.launcher.up import shell_lines

from .running import members, scripted

PATIENCE = 60.0
OF_THE_SHELL = {"_", "PWD", "OLDPWD", "SHLVL", "DUMPS", "LEAVE"}
FAKE = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
words = sys.argv[1:]
def after(flag):
    return words[words.index(flag) + 1]
path = os.path.join(os.environ["DUMPS"], after("--served-model-name").replace("/", "_"))
with open(path + ".part", "w") as part:
    json.dump({"words": words, "environment": dict(os.environ)}, part)
os.rename(path + ".part", path)
class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"data": [{"id": after("--served-model-name")}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, format, *arguments):
        pass
print("the fake serves", file=sys.stderr, flush=True)
if "LEAVE" not in os.environ:
    ThreadingHTTPServer((after("--host"), int(after("--port"))), Answers).serve_forever()
"""
NASTY = "a b'c\"d $HOME `date` \\ ünï :key: # ; & | > * ~ !\tx"
PAIR = f"""
card = 80
[large]
model = "org/big model's"
name = "org/big"
gpus = [0]
memory = 0.5
port = 18765
suffix_scoring = true
flags = {{ max-num-seqs = 3, enforce-eager = true, hf-overrides = {{ "rope it" = "a'b" }} }}
environment = {{ NASTY = {json.dumps(NASTY)}, EMPTY = "" }}
[small]
policy = "bild"
[small.large]
model = "org/mid"
gpus = [1]
[small.small]
model = "org/tiny"
gpus = []
suffix_scoring = true
speculation = {{ method = "ngram", more = {{ prompt_lookup_note = "x y" }} }}
"""


@dataclass(frozen=True)
class Machine:
    """A folder with a fake vLLM that writes down how it is started, and the interpreter whose vLLM it is."""

    folder: Path
    python: str
    environment: Mapping[str, str]

    def stepspec(self, *words: str, dumps: str) -> subprocess.Popen[str]:
        """Start a command of stepspec; servers write to the folder *dumps*."""
        command = (self.python, "-m", "stepspec", *words)
        environment = {**self.environment, "DUMPS": str(self.dumps(dumps))}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=pipe, stderr=pipe, text=True)

    def dumps(self, name: str) -> Path:
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name

    def started(self, name: str) -> dict[str, Any]:
        """Read how the servers were started, by served name, without what differs between any two shells."""
        found = {file.name: json.loads(file.read_text()) for file in self.dumps(name).iterdir()}
        for one in found.values():
            one["environment"] = {key: value for key, value in one["environment"].items() if key not in OF_THE_SHELL}
        return found


@pytest.fixture(params=["a command", "a module"])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    """Offer vLLM as the command ``vllm`` beside the interpreter, or as a module of it."""
    fake, python = tmp_path / "fake", sys.executable
    module = fake.joinpath(*ENTRY.split(".")).with_suffix(".py")
    module.parent.mkdir(parents=True)
    for folder in (module.parent, *module.parents):
        if fake in folder.parents:
            (folder / "__init__.py").touch()
    module.write_text(FAKE)
    if request.param == "a command":
        (fake / "vllm-9.9.dist-info").mkdir()
        (fake / "vllm-9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9\n")
        python = str(environment_like_this(tmp_path / "a venv"))
        command = Path(python).with_name("vllm")
        command.write_text(f"#!/usr/bin/env python3\n{FAKE}")
        command.chmod(0o755)
    (tmp_path / "pair.toml").write_text(PAIR)
    paths = os.pathsep.join([str(fake), *sys.path[1:]])
    environment = {**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "3,5"}
    return Machine(tmp_path, python, environment)


def environment_like_this(folder: Path) -> Path:
    """Make a virtual environment without packages, whose path has a space; return its interpreter."""
    (folder / "bin").mkdir(parents=True)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", folder / "pyvenv.cfg")
    (folder / "bin" / "python").symlink_to(sys.executable)
    return folder / "bin" / "python"


def test_the_printed_commands_start_what_up_starts(machine: Machine) -> None:
    up = machine.stepspec("up", "pair.toml", "--json", dumps="by up")
    try:
        assert up.stdout is not None
        printed = up.stdout.readline()
    finally:
        up.send_signal(signal.SIGTERM)
        _, errors = up.communicate(timeout=PATIENCE)
    assert printed, errors
    assert up.returncode == 0
    dry = machine.stepspec("up", "pair.toml", "--dry-run", dumps="by hand")
    lines, errors = dry.communicate(timeout=PATIENCE)
    assert dry.returncode == 0, errors
    environment = {**machine.environment, "DUMPS": str(machine.dumps("by hand")), "LEAVE": "yes"}
    pasted = subprocess.run(["/bin/sh"], input=lines, cwd=machine.folder, env=environment, text=True, check=True)
    assert pasted.returncode == 0
    by_up, by_hand = machine.started("by up"), machine.started("by hand")
    assert set(by_up) == set(by_hand) == {"org_big", "org_mid", "org_tiny"}
    assert by_hand["org_big"]["environment"]["NASTY"] == NASTY
    assert by_hand["org_big"]["environment"]["CUDA_VISIBLE_DEVICES"] == "3"
    assert by_hand["org_mid"]["environment"]["CUDA_VISIBLE_DEVICES"] == "5"
    for name, server in by_hand.items():
        assert server["environment"] == by_up[name]["environment"]
        assert without_free_port(server["words"]) == without_free_port(by_up[name]["words"])
    ports = [port_of(server["words"]) for server in by_hand.values()]
    assert "18765" in ports
    assert len({*ports}) == 3
    assert all(int(port) > 0 for port in ports)
    lines_with_commands = [line for line in lines.splitlines() if not line.startswith("#")]
    assert len(lines_with_commands) == 3
    assert all((" serve " in line) == ("a venv" in line) for line in lines_with_commands)


def port_of(words: list[str]) -> str:
    return words[words.index("--port") + 1]


def without_free_port(words: list[str]) -> list[str]:
    port = port_of(words)
    return words if port == "18765" else [word for word in words if word != port]


@pytest.mark.parametrize("machine", ["a module"], indirect=True)
def test_a_killed_server_ends_up_with_its_signal_and_its_log(machine: Machine) -> None:
    up = machine.stepspec("up", "pair.toml", "--json", dumps="by up")
    assert up.stdout is not None
    printed = json.loads(up.stdout.readline())
    pids = [printed["large"]["pid"], printed["small"]["large"]["pid"], printed["small"]["small"]["pid"]]
    os.kill(pids[1], signal.SIGKILL)
    _, errors = up.communicate(timeout=PATIENCE)
    assert up.returncode == 1
    assert "error: the small.large server ended while it was in use, with signal SIGKILL:" in errors
    assert "    the fake serves" in errors
    assert not any(members(pid) for pid in pids)
    (log,) = re.findall(r"its log: (.*)", errors)
    assert "the fake serves" in Path(log).read_text()
    shutil.rmtree(Path(log).parent)


def test_servers_without_a_port_get_free_ones_of_their_own() -> None:
    servers: list[Server] = [scripted(name="a"), scripted(name="b", port=8001), scripted(name="c")]
    lines = [line for line in shell_lines([servers[:2], servers[2:]]) if not line.startswith("#")]
    ports = [port_of(shlex.split(line)) for line in lines]
    assert ports[1] == "8001"
    assert len({*ports}) == 3
    assert all(8001 <= int(port) < 8100 for port in ports)


def test_a_port_in_use_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(up, "FIRST_PORT", taken.getsockname()[1])
        (line,) = shell_lines([[scripted()]])
        assert int(port_of(shlex.split(line))) > taken.getsockname()[1]


def test_the_small_model_has_the_first_port_whichever_starts_first() -> None:
    large, small, other = (scripted(name=name) for name in ("large", "small", "small-other"))
    first, _, second, third, then = shell_lines([[large], [small, other]])
    ports = {name: int(port_of(shlex.split(line))) for name, line in zip("lso", (first, second, third), strict=True)}
    assert ports["s"] < ports["l"] < ports["o"]
    urls = {name: f"http://127.0.0.1:{port}/v1" for name, port in ports.items()}
    assert then == f'# then: stepspec solve "..." --small {urls["s"]} --large {urls["l"]}'


def test_a_pair_within_has_the_lower_ports() -> None:
    waves = [[scripted(name="large")], [scripted(name="small.large"), scripted(name="small.small")]]
    large, _, middle, small = shell_lines(waves)
    assert sorted((small, middle, large), key=lambda line: port_of(shlex.split(line))) == [small, middle, large]
