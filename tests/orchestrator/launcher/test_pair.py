"""A pair's file: its valid content, and the resulting servers."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.launcher.commands import servers, shell_line, waves
from stepspec.orchestrator.launcher.pair import Pair, load
from stepspec.orchestrator.launcher.process import child

SMALL = {"model": "tiny"}


def pair(large: dict[str, Any] | None = None, small: dict[str, Any] | None = None, **more: Any) -> Pair:
    return Pair.model_validate({"large": {"model": "big", **(large or {})}, "small": small or SMALL, **more})


def flag(args: tuple[str, ...], name: str) -> str:
    return args[args.index(f"--{name}") + 1]


def speculative(speculation: Any, role: int = 0, **small: Any) -> dict[str, Any]:
    made = servers(pair({"speculation": speculation}, {**SMALL, **small}))[role]
    config: dict[str, Any] = json.loads(flag(made.args, "speculative-config"))
    return config


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
        "flags": {"enforce-eager": True, "async-scheduling": False, "seed": 7, "hf-overrides": {"rope_theta": 1}},
        "environment": {"VLLM_LOGGING_LEVEL": "WARNING"},
    }
    made = servers(pair(large))[0]
    assert made.args == (
        *("--revision", "abc", "--dtype", "bfloat16", "--max-model-len", "4096", "--tensor-parallel-size", "2"),
        *("--gpu-memory-utilization", "0.6", "--no-enable-prefix-caching", "--enable-prompt-tokens-details"),
        *("--generation-config", "vllm", "--scheduling-policy", "priority", "--enable-scale-out"),
        *("--enforce-eager", "--seed", "7"),
        *("--hf-overrides", '{"rope_theta": 1}'),
    )
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # the driver's, which is what is checked against
    assert made.env == {**order, "CUDA_VISIBLE_DEVICES": "2,3", "VLLM_LOGGING_LEVEL": "WARNING"}
    assert (made.name, made.model, made.served_name, made.host, made.port) == (
        *("large", "big", "teacher", "127.0.0.2", 8001),
    )
    assert shell_line(made).startswith(
        "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=2,3 VLLM_LOGGING_LEVEL=WARNING "
    )
    assert "--hf-overrides '{\"rope_theta\": 1}'" in shell_line(made)


def test_cards_are_those_that_are_allotted_to_us_in_their_order() -> None:
    two = pair({"gpus": [1, 0]}, {"model": "tiny", "gpus": [2]})
    for made in (
        servers(two, ("4", "GPU-8932", "MIG-1f")),
        [one for wave in waves(two, ("4", "GPU-8932", "MIG-1f")) for one in wave],
    ):
        assert [one.env["CUDA_VISIBLE_DEVICES"] for one in made] == ["GPU-8932,4", "MIG-1f"]
    assert [one.env["CUDA_VISIBLE_DEVICES"] for one in servers(two)] == ["1,0", "2"]


def test_a_plain_server_speculates_with_nothing_and_has_one_card() -> None:
    large, small = servers(pair())
    assert (large.served_name, small.served_name) == ("big", "tiny")
    assert "--speculative-config" not in large.args + small.args
    assert "--tensor-parallel-size" not in large.args
    assert "--enable-prefix-caching" in small.args


def test_a_model_is_served_under_its_own_name_unless_another_is_set() -> None:
    names = [("org/big", "org/big"), ("/models/big", "big"), ("./big", "big")]
    for model, name in names:
        assert servers(pair({"model": model}))[0].served_name == name
    assert servers(pair({"model": "org/big", "name": "teacher"}))[0].served_name == "teacher"


async def test_no_key_stands_in_the_command_lines_of_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSPEC_LARGE__API_KEY", "secret")
    keyed = {"large": {"url": "http://m:1", "api_key": "secret"}, "small": SMALL}
    made = pair({"environment": {"HF_TOKEN": "secret"}, "flags": {"hf-token": True}}, keyed)
    for server in servers(made):
        assert "secret" not in " ".join(server.command(8001))
        sleeping = (sys.executable, "-c", "import time; time.sleep(600)", *server.command(8001))
        env = {**os.environ, **server.env}
        async with child(sleeping, env=env, log=tmp_path / "log", grace=1.0) as running:
            for line in command_lines(running.pid):
                assert server.served_name.encode() in line
                assert b"secret" not in line


def command_lines(pid: int) -> list[bytes]:
    """Return the command lines of a server and of its guard, as every user of the machine sees them."""
    guard = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    while not all(lines := [Path(f"/proc/{each}/cmdline").read_bytes() for each in (pid, guard)]):
        time.sleep(0.01)  # It is empty while the program is loaded.
    return lines


def test_requests_are_scheduled_by_priority_unless_the_flags_override_it() -> None:
    assert flag(servers(pair())[1].args, "scheduling-policy") == "priority"
    assert flag(servers(pair({"flags": {"scheduling-policy": "fcfs"}}))[0].args, "scheduling-policy") == "fcfs"


def test_a_cpu_has_no_share_of_a_card_and_sends_zeros_for_unwritten_positions() -> None:
    large = servers(pair({"gpus": [], "suffix_scoring": True}))[0]
    assert "--gpu-memory-utilization" not in large.args
    assert large.env == {"MALLOC_PERTURB_": "255"}


@pytest.mark.parametrize(
    ("speculation", "expected"),
    [
        ("ngram", {"num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}),
        ({"method": "ngram", "tokens": 8, "more": {"prompt_lookup_min": 3}}, {
            "num_speculative_tokens": 8, "prompt_lookup_min": 3, "prompt_lookup_max": 4,
        }),
        ("suffix", {}),
        ({"method": "suffix", "tokens": 32}, {"num_speculative_tokens": 32}),
        ("draft_model", {"num_speculative_tokens": 4, "model": "tiny"}),
        ({"method": "draft_model", "model": "other", "more": {"revision": "r", "use_heterogeneous_vocab": True}}, {
            "num_speculative_tokens": 4, "model": "other", "revision": "r", "use_heterogeneous_vocab": True,
        }),
        ({"method": "eagle3", "model": "head"}, {"num_speculative_tokens": 3, "model": "head"}),
        ("mtp", {"num_speculative_tokens": 1}),
        ({"method": "dflash", "model": "block", "tokens": 15}, {"num_speculative_tokens": 15, "model": "block"}),
    ],
)  # fmt: skip
def test_speculation_becomes_the_speculative_config_of_vllm(speculation: Any, expected: dict[str, Any]) -> None:
    method = speculation if isinstance(speculation, str) else speculation["method"]
    assert speculative(speculation) == {"method": method, **expected}


def test_the_small_model_drafts_at_its_own_revision() -> None:
    assert speculative("draft_model", revision="v2")["revision"] == "v2"
    own = {"method": "draft_model", "model": "other"}
    assert "revision" not in speculative(own, revision="v2")


@pytest.mark.parametrize(
    ("speculation", "complaint"),
    [
        ("speculative", "'none', 'ngram'"),
        ("eagle3", "eagle3 needs a drafter trained for this model: name it"),
        ({"tokens": 3}, "the method is none"),
        ({"method": "ngram", "depth": 3}, "unknown setting 'large.speculation.depth'"),
    ],
)
def test_a_speculation_that_cannot_be_meant_is_refused(speculation: Any, complaint: str, tmp_path: Path) -> None:
    refused({"large": {"model": "big", "speculation": speculation}, "small": SMALL}, complaint, tmp_path)


@pytest.mark.parametrize(
    ("large", "complaint"),
    [
        ({}, "large.model"),
        ({"model": "big", "memory": 1.1}, "large.memory"),
        ({"model": "big", "gpus": [0, 0]}, "a card is repeated"),
        ({"model": "big", "gpu": 1}, "unknown setting 'large.gpu'"),
        ({"model": "big", "flags": {"max-model-len": 3}}, "'max-model-len' has its own setting, context"),
        ({"model": "big", "flags": {"max_num_seqs": 3}}, "write 'max_num_seqs' as 'max-num-seqs'"),
        ({"model": "big", "flags": {"api-key": "secret"}}, "'api-key' would be seen in the list of processes: start"),
        ({"model": "big", "flags": {"hf-token": "secret"}}, "'hf-token' would be seen in the list of processes: set"),
        ({"model": "big", "flags": {"--seed": 3}}, "write '--seed' as 'seed'"),
        ({"model": "big", "environment": {"CUDA_VISIBLE_DEVICES": "1"}}, "has its own setting, gpus"),
        ({"url": "ftp://there"}, "not the URL of a server"),
        ({"url": "http://there:1", "gpus": [0]}, "unknown setting 'large.gpus'"),
        ("big", "large.url: 'big' is not the URL of a server"),
        ({"small": {"model": "a"}, "large": {"model": "b"}}, "large: only the small model may be a pair itself"),
    ],
)
def test_a_role_that_cannot_be_meant_is_refused(large: Any, complaint: str, tmp_path: Path) -> None:
    refused({"large": large, "small": SMALL}, complaint, tmp_path)


def test_an_unknown_role_is_refused_with_the_possible_ones(tmp_path: Path) -> None:
    either = "write a table with a `model` to start, or the URL of a server that runs: 3 is neither"
    refused({"large": 3, "small": SMALL}, f"large: {either}", tmp_path)
    refused({"large": "http://a:1", "small": {"large": "http://b:1", "small": 3}}, f"small.small: {either}", tmp_path)


def refused(table: dict[str, Any], complaint: str, folder: Path) -> None:
    file = folder / "pair.toml"
    inline = "\n".join(f"{key} = {toml(value)}" for key, value in table.items())
    file.write_text(inline)
    with pytest.raises(ConfigurationError) as failure:
        load(file)
    assert complaint in str(failure.value)
    assert str(file) in str(failure.value)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items()) + "}"  # pyright: ignore
    return json.dumps(value)


def test_a_missing_or_invalid_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml: No such file"):
        load(tmp_path / "nowhere.toml")
    (tmp_path / "pair.toml").write_text("large = [")
    with pytest.raises(ConfigurationError, match=r"pair\.toml is not TOML"):
        load(tmp_path / "pair.toml")
    (tmp_path / "pair.toml").write_bytes(b'large = "\xff"')
    with pytest.raises(ConfigurationError, match=r"pair\.toml is not TOML"):
        load(tmp_path / "pair.toml")


def test_folders_are_relative_to_the_file_and_other_names_are_hub_ids(tmp_path: Path) -> None:
    file = tmp_path / "pair.toml"
    speculation = 'speculation = { method = "mtp", model = "./head" }'
    file.write_text(f'[large]\nmodel = "./big"\n{speculation}\n[small]\nmodel = "org/tiny"\n')
    read = load(file)
    assert [one.model for one in read.started.values()] == [str(tmp_path / "big"), "org/tiny"]
    assert read.drafter("large") == (str(tmp_path / "head"), None)


def test_a_role_with_a_url_is_connected_and_not_started() -> None:
    mixed = pair(small={"url": "http://there:8001/v1", "model": "tiny"})
    assert [server.name for server in servers(mixed)] == ["large"]
    assert mixed.connected == {"small": Endpoint(role="small", url="http://there:8001", model="tiny")}
    both = Pair.model_validate({"large": {"url": "http://a:1"}, "small": {"url": "http://b:1,http://c:1"}})
    assert servers(both) == ()
    assert waves(both) == ()
    assert both.small == Endpoint(role="small", url="http://b:1", replicas=("http://c:1",))
