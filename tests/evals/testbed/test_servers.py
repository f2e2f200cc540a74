"""The servers of the miniature models; a container's process becomes one of them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from lab.worlds import TOOLS
from stepspec.evals.testbed import serve_one
from stepspec.evals.testbed.servers import (
    PAIR,
    SHORT,
    PassPace,
    World,
    endpoint,
    miniature_servers,
    paced_drafter,
    read_pace,
    speculations,
)
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.servers.launcher import Served, ServerCommand

ROLES = ("large", "small", "small-other")
OPEN = "--enable-scale-out"


def flag(server: ServerCommand, name: str) -> str:
    return server.args[server.args.index(f"--{name}") + 1]


def of(folder: Path, world: World = SHORT) -> World:
    return replace(world, folders=(folder,))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for role in ROLES:
        (tmp_path / role).mkdir()
        (tmp_path / role / "config.json").write_text("{}")
    return tmp_path


def test_a_command_line_names_model_address_and_flags(models: Path) -> None:
    (server,) = miniature_servers("off", ["small"], world=replace(of(models), context=1024))
    command = list(server.command(8001))
    for flag, value in (
        ("model", str(models / "small")),
        ("port", "8001"),
        ("max-model-len", "1024"),
    ):
        assert command[command.index(f"--{flag}") + 1] == value
    assert "--enforce-eager" in command
    assert OPEN not in command
    assert "True" not in command


def test_no_prompt_is_read_in_parts(models: Path) -> None:
    """A part of a prompt whose request samples by a seed is the end of vLLM 0.32 on a CPU."""
    for world in (of(models), of(models, TOOLS), replace(of(models), sequences=64)):
        for server in miniature_servers("off", world=world):
            most, sequences, context = (
                int(flag(server, f"max-{name}"))
                for name in ("num-batched-tokens", "num-seqs", "model-len")
            )
            assert most >= sequences * context


def test_the_large_server_and_its_endpoint_support_suffix_scoring(
    models: Path, tmp_path: Path
) -> None:
    opened = {
        server.name
        for server in miniature_servers("off", ROLES, world=of(models))
        if OPEN in server.args
    }
    served = [
        Served(role, "http://127.0.0.1:1/v1", f"testbed-{role}", 1, tmp_path) for role in ROLES
    ]
    scoring = {one.name for one in served if endpoint(one, "small").suffix_scoring}
    assert opened == scoring == {"large"}
    assert [
        server.env.get("MALLOC_PERTURB_")
        for server in miniature_servers("off", ROLES, world=of(models))
    ] == [
        "255",
        None,
        None,
    ]
    assert (endpoint(served[0], "large").role, endpoint(served[0], "large").model) == (
        "large",
        "testbed-large",
    )


def test_a_paced_server_gets_its_pace_and_loads_the_plugin(models: Path) -> None:
    (server,) = miniature_servers("paced", ["small-other"], world=of(models))
    overrides = json.loads(server.args[server.args.index("--hf-overrides") + 1])
    assert overrides["architectures"] == ["PacedQwen3ForCausalLM"]
    assert overrides["paced_seconds_per_pass"] == 0.006
    assert server.env["VLLM_PLUGINS"] == "stepspec_paced"
    folder, *_ = server.env["PYTHONPATH"].split(os.pathsep)
    (point,) = [
        each for found in metadata.distributions(path=[folder]) for each in found.entry_points
    ]
    assert (point.name, point.value) == ("stepspec_paced", "stepspec_paced:register")

    for server in miniature_servers("off", ROLES, world=of(models)):
        assert "--hf-overrides" not in server.args
        assert server.env["VLLM_PLUGINS"] == ""
        assert "PYTHONPATH" not in server.env


def test_another_world_has_models_of_its_own_and_room_for_their_chains(models: Path) -> None:
    short, tools = (
        miniature_servers("off", world=world) for world in (of(models), of(models, TOOLS))
    )
    assert short == miniature_servers("off", world=of(models))
    for server in tools:
        assert flag(server, "max-model-len") == "4096"
        assert int(flag(server, "kv-cache-memory-bytes")) > int(
            flag(short[0], "kv-cache-memory-bytes")
        )
    assert {flag(server, "max-model-len") for server in short} == {"2048"}


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{tmp_path / 'large'}: install stepspec again"):
        miniature_servers(world=of(tmp_path))


def test_the_small_model_drafts_for_the_large_one_and_ngram_serves_both(models: Path) -> None:
    def configured(method: str, drafter: Path | None = None) -> dict[str, dict[str, object]]:
        servers = miniature_servers(
            "off", world=of(models), speculation=speculations(method), drafter=drafter
        )
        flag = "--speculative-config"
        return {
            one.name: json.loads(one.args[one.args.index(flag) + 1])
            for one in servers
            if flag in one.args
        }

    assert configured("none") == {}
    assert {role: one["method"] for role, one in configured("ngram").items()} == {
        "large": "ngram",
        "small": "ngram",
    }
    assert configured("draft_model") == {
        "large": {
            "method": "draft_model",
            "num_speculative_tokens": 4,
            "model": str(models / "small"),
        }
    }
    assert configured("draft_model", Path("/elsewhere"))["large"]["model"] == "/elsewhere"
    with pytest.raises(
        ConfigurationError, match="no speculation method 'eagle3'; it has: none, ngram, draft_model"
    ):
        speculations("eagle3")


def test_a_profile_has_the_pace_of_every_role_or_is_refused() -> None:
    assert read_pace("paced", "large") == PassPace(
        seconds_per_pass=0.030, seconds_per_token=0.000060
    )
    assert (
        read_pace("paced", "small")
        == read_pace("paced", "small-other")
        == PassPace(0.006, 0.000020)
    )
    assert read_pace("off", "smol") is None
    with pytest.raises(
        ConfigurationError, match="no pacing profile 'fast'; there are: off, paced, slow"
    ):
        read_pace("fast", "large")
    with pytest.raises(
        ConfigurationError,
        match="'slow' has no pace for 'smol'; it has: large, small, small-other",
    ):
        read_pace("slow", "smol")


def test_a_drafter_is_paced_by_a_configuration_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64})
    )
    (tmp_path / "model.safetensors").write_text("weights")
    with paced_drafter(tmp_path, PassPace(0.5, 0.25)) as folder:
        assert json.loads((folder / "config.json").read_text()) == {
            "architectures": ["PacedQwen3ForCausalLM"],
            "hidden_size": 64,
            "paced_seconds_per_pass": 0.5,
            "paced_seconds_per_token": 0.25,
        }
        assert (folder / "model.safetensors").read_text() == "weights"
    assert not folder.exists()
    assert (tmp_path / "model.safetensors").exists()
    with paced_drafter(tmp_path, None) as folder:
        assert folder == tmp_path


class Became(Exception):
    """What the process became."""

    def __init__(
        self, program: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.program = program
        self.command = tuple(command)
        self.environment = environment


def become(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> Became:
    def execvpe(program: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        raise Became(program, command, environment)

    monkeypatch.setattr(os, "execvpe", execvpe)
    monkeypatch.setattr(sys, "argv", ["serve_one", *arguments])
    monkeypatch.setenv("HTTP_PROXY", "http://proxy")
    with pytest.raises(Became) as found:
        serve_one.main()
    return found.value


def test_it_becomes_the_server_of_its_role_at_its_address_with_its_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for role in PAIR:
        found = become(role, monkeypatch=monkeypatch)
        (server,) = miniature_servers("paced", (role,))
        assert found.program == sys.executable
        assert found.command == tuple(
            "0.0.0.0" if word == "127.0.0.1" else word for word in server.command(8000)
        )
        assert server.env.items() <= found.environment.items()
        assert found.environment["HTTP_PROXY"] == "http://proxy"
    options = ("large", "--host", "127.0.0.1", "--port", "81", "--profile", "off")
    (server,) = miniature_servers("off", ("large",))
    assert become(*options, monkeypatch=monkeypatch).command == server.command(81)


def test_unknown_models_and_profiles_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["serve_one", "huge"])
    with pytest.raises(SystemExit):
        serve_one.main()
    assert "invalid choice: 'huge'" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["serve_one", "large", "--profile", "fast"])
    with pytest.raises(ConfigurationError, match="no pacing profile 'fast'"):
        serve_one.main()
