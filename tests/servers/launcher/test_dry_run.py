"""The printed commands of a pair, pasted into a shell, start what `stepspec up` starts itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .running import SCRIPT, members

PATIENCE = 60.0
OF_THE_SHELL = {"_", "PWD", "OLDPWD", "SHLVL", "DUMPS", "LEAVE"}
NASTY = "a b'c\"d $HOME `date` \\ ünï :key: # ; & | > * ~ !\tx"
PAIR = f"""
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
model = "org/tiny"
gpus = [1]
suffix_scoring = true
speculation = {{ method = "ngram", prompt_lookup_note = "x y" }}
"""


@dataclass(frozen=True)
class Machine:
    """
    A folder with a fake vLLM that writes down how it is started, and the interpreter whose vLLM it
    is.
    """

    folder: Path
    python: Path
    environment: Mapping[str, str]

    def stepspec(self, *words: str, dumps: str) -> subprocess.Popen[str]:
        """Start a command of stepspec; servers write to the folder *dumps*."""
        command = (str(self.python), "-m", "stepspec", *words)
        environment = {**self.environment, "DUMPS": str(self.dumps(dumps))}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=pipe, stderr=pipe, text=True
        )

    def dumps(self, name: str) -> Path:
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name

    def started(self, name: str) -> dict[str, Any]:
        """
        Read how the servers were started, by served name, without what differs between any two
        shells.
        """
        found = {file.name: json.loads(file.read_text()) for file in self.dumps(name).iterdir()}
        for one in found.values():
            one["environment"] = {
                key: value for key, value in one["environment"].items() if key not in OF_THE_SHELL
            }
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """
    Make an environment with the command ``vllm`` and its distribution, whose path has a space.
    """
    binaries = tmp_path / "a venv" / "bin"
    packages = tmp_path / "packages"
    for folder in (binaries, packages / "vllm", packages / "vllm-9.9.dist-info"):
        folder.mkdir(parents=True)
    (packages / "vllm" / "__init__.py").touch()
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", binaries.parent / "pyvenv.cfg")
    (binaries / "python").symlink_to(sys.executable)
    (packages / "vllm-9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: vllm\nVersion: 9.9\n"
    )
    (binaries / "vllm").write_text(f"#!/usr/bin/env python3\n{SCRIPT.read_text()}")
    (binaries / "vllm").chmod(0o755)
    (tmp_path / "pair.toml").write_text(PAIR)
    paths = os.pathsep.join([str(packages), *sys.path[1:]])
    environment = {**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "3,5"}
    return Machine(tmp_path, binaries / "python", environment)


def test_the_printed_commands_start_what_up_starts_until_a_server_is_killed(
    machine: Machine,
) -> None:
    up = machine.stepspec("up", "pair.toml", "--json", dumps="by up")
    assert up.stdout is not None
    printed = json.loads(up.stdout.readline())
    pids = [printed["large"]["pid"], printed["small"]["pid"]]
    os.kill(pids[1], signal.SIGKILL)
    _, errors = up.communicate(timeout=PATIENCE)
    assert up.returncode == 1
    assert "error: the small server ended while it was in use, with signal SIGKILL:" in errors
    assert "    the fake serves" in errors
    assert not any(members(pid) for pid in pids)
    (log,) = re.findall(r"its log: (.*)", errors)
    assert "the fake serves" in Path(log).read_text()
    shutil.rmtree(Path(log).parent)
    dry = machine.stepspec("up", "pair.toml", "--dry-run", dumps="by hand")
    lines, errors = dry.communicate(timeout=PATIENCE)
    assert dry.returncode == 0, errors
    environment = {**machine.environment, "DUMPS": str(machine.dumps("by hand")), "LEAVE": "yes"}
    subprocess.run(
        ["/bin/sh"], input=lines, cwd=machine.folder, env=environment, text=True, check=True
    )
    by_up = machine.started("by up")
    by_hand = machine.started("by hand")
    assert set(by_up) == set(by_hand) == {"org_big", "org_tiny"}
    assert by_hand["org_big"]["environment"]["NASTY"] == NASTY
    assert by_hand["org_big"]["environment"]["CUDA_VISIBLE_DEVICES"] == "3"
    assert by_hand["org_tiny"]["environment"]["CUDA_VISIBLE_DEVICES"] == "5"
    for name, server in by_hand.items():
        assert server["environment"] == by_up[name]["environment"]
        assert without_free_port(server["words"]) == without_free_port(by_up[name]["words"])
    ports = [port_of(server["words"]) for server in by_hand.values()]
    assert "18765" in ports
    assert len({*ports}) == 2
    assert all(int(port) > 0 for port in ports)
    assert sum(" serve " in line for line in lines.splitlines() if not line.startswith("#")) == 2


def port_of(words: list[str]) -> str:
    return words[words.index("--port") + 1]


def without_free_port(words: list[str]) -> list[str]:
    port = port_of(words)
    return words if port == "18765" else [word for word in words if word != port]
