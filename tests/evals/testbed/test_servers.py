"""The servers of the miniature models; a container's process becomes one of them."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

import pytest

from lab.worlds import SMALL_OTHER, TOOLS, TOOLS_FLAGS
from stepspec.evals.testbed import Profile, SpeculationMethod, serve_one
from stepspec.evals.testbed.servers import (
    FLAGS,
    LARGE,
    PAIR,
    PROFILES,
    SMALL,
    SPECULATIONS,
    endpoint,
    miniature_servers,
    paced_configuration,
    paced_drafter,
)
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.servers.launcher import Served, ServerCommand

MODELS = (LARGE, SMALL, SMALL_OTHER)
OPEN = "--enable-scale-out"


def flag(server: ServerCommand, name: str) -> str:
    return server.args[server.args.index(f"--{name}") + 1]


def test_a_command_line_names_model_address_and_flags() -> None:
    (server,) = miniature_servers("off", [SMALL], flags={**FLAGS, "max-model-len": 1024})
    assert (server.name, server.served_name) == ("small", "testbed-small")
    command = list(server.command(8001))
    for flag, value in (
        ("model", str(SMALL)),
        ("port", "8001"),
        ("max-model-len", "1024"),
    ):
        assert command[command.index(f"--{flag}") + 1] == value
    assert "--enforce-eager" in command
    assert OPEN not in command
    assert "True" not in command


@pytest.mark.parametrize("flags", [FLAGS, TOOLS_FLAGS])
def test_no_prompt_is_read_in_parts(flags: Mapping[str, Any]) -> None:
    """A part of a prompt whose request samples by a seed is the end of vLLM 0.32 on a CPU."""
    for server in miniature_servers("off", flags=flags):
        most, sequences, context = (
            int(flag(server, f"max-{name}"))
            for name in ("num-batched-tokens", "num-seqs", "model-len")
        )
        assert most >= sequences * context


def test_the_large_server_and_its_endpoint_support_suffix_scoring(tmp_path: Path) -> None:
    servers = miniature_servers("off", MODELS)
    opened = {server.name for server in servers if OPEN in server.args}
    served = [
        Served(model.name, "http://127.0.0.1:1/v1", f"testbed-{model.name}", 1, tmp_path)
        for model in MODELS
    ]
    scoring = {one.name for one in served if endpoint(one, "small").suffix_scoring}
    assert opened == scoring == {"large"}
    assert [server.env.get("MALLOC_PERTURB_") for server in servers] == ["255", None, None]
    assert (endpoint(served[0], "large").role, endpoint(served[0], "large").model) == (
        "large",
        "testbed-large",
    )


def test_a_paced_server_gets_its_pace_and_loads_the_plugin() -> None:
    (server,) = miniature_servers("paced", [SMALL_OTHER])
    overrides = json.loads(server.args[server.args.index("--hf-overrides") + 1])
    assert overrides["architectures"] == ["PacedQwen3ForCausalLM"]
    assert overrides["paced_seconds_per_pass"] == 0.006
    assert server.env["VLLM_PLUGINS"] == "stepspec_paced"
    folder, *_ = server.env["PYTHONPATH"].split(os.pathsep)
    (point,) = [
        each for found in metadata.distributions(path=[folder]) for each in found.entry_points
    ]
    assert (point.name, point.value) == ("stepspec_paced", "stepspec_paced:register")

    for server in miniature_servers("off", MODELS):
        assert "--hf-overrides" not in server.args
        assert server.env["VLLM_PLUGINS"] == ""
        assert "PYTHONPATH" not in server.env


def test_the_models_for_tools_have_room_for_their_chains() -> None:
    short = miniature_servers("off")
    for server in miniature_servers("off", TOOLS, flags=TOOLS_FLAGS):
        assert flag(server, "max-model-len") == "4096"
        assert int(flag(server, "kv-cache-memory-bytes")) > int(
            flag(short[0], "kv-cache-memory-bytes")
        )
    assert {flag(server, "max-model-len") for server in short} == {"2048"}


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{tmp_path / 'large'}: install stepspec again"):
        miniature_servers(models=[tmp_path / "large"])


def test_the_small_model_drafts_for_the_large_one_and_ngram_serves_both() -> None:
    def configured(
        method: SpeculationMethod, drafter: Path = SMALL
    ) -> dict[str, dict[str, object]]:
        servers = miniature_servers("off", speculation=SPECULATIONS[method], drafter=drafter)
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
            "model": str(SMALL),
        }
    }
    assert configured("draft_model", Path("/elsewhere"))["large"]["model"] == "/elsewhere"
    assert set(get_args(SpeculationMethod)) == set(SPECULATIONS)


def test_a_profile_has_the_pace_of_every_role() -> None:
    def pace(profile: Profile, role: str) -> tuple[float, float]:
        found = paced_configuration(profile, role)
        assert found["architectures"] == ["PacedQwen3ForCausalLM"]
        return found["paced_seconds_per_pass"], found["paced_seconds_per_token"]

    assert pace("paced", "large") == (0.030, 0.000060)
    assert pace("paced", "small") == pace("paced", "small-other") == (0.006, 0.000020)
    assert pace("slow", "large") == (0.090, 0.000180)
    assert paced_configuration("off", "large") == {}
    assert set(get_args(Profile)) == set(tomllib.loads(PROFILES.read_text()))


def test_a_drafter_is_paced_by_a_configuration_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64})
    )
    (tmp_path / "model.safetensors").write_text("weights")
    pace = paced_configuration("paced", "small")
    with paced_drafter(tmp_path, pace) as folder:
        assert json.loads((folder / "config.json").read_text()) == {
            "architectures": ["PacedQwen3ForCausalLM"],
            "hidden_size": 64,
            "paced_seconds_per_pass": 0.006,
            "paced_seconds_per_token": 0.000020,
        }
        assert (folder / "model.safetensors").read_text() == "weights"
    assert not folder.exists()
    assert (tmp_path / "model.safetensors").exists()
    with paced_drafter(tmp_path, {}) as folder:
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


def test_it_becomes_the_server_of_its_role_with_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    for model in PAIR:
        found = become(model.name, monkeypatch=monkeypatch)
        (server,) = miniature_servers("paced", [model])
        assert found.program == sys.executable
        assert found.command == tuple(
            "0.0.0.0" if word == "127.0.0.1" else word for word in server.command(8000)
        )
        assert server.env.items() <= found.environment.items()
        assert found.environment["HTTP_PROXY"] == "http://proxy"
    unpaced = become("large", "--profile", "off", monkeypatch=monkeypatch)
    assert "--hf-overrides" not in unpaced.command


@pytest.mark.parametrize("arguments", [["huge"], ["large", "--profile", "fast"]])
def test_unknown_models_and_profiles_are_refused(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["serve_one", *arguments])
    with pytest.raises(SystemExit):
        serve_one.main()
    assert f"invalid choice: '{arguments[-1]}'" in capsys.readouterr().err
