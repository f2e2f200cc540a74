from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepspec.evals.testbed.servers import endpoint, miniature_servers, speculating
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.launcher import Served

ROLES = ("large", "small", "small-other")
OPEN = "--enable-scale-out"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for role in ROLES:
        (tmp_path / role).mkdir()
        (tmp_path / role / "config.json").write_text("{}")
    return tmp_path


def test_the_pair_is_large_and_small(models: Path) -> None:
    servers = miniature_servers(models=models)
    assert [(server.name, server.served_name) for server in servers] == [
        ("large", "testbed-large"),
        ("small", "testbed-small"),
    ]


def test_a_command_line_names_model_address_and_flags(models: Path) -> None:
    (server,) = miniature_servers("off", ["small"], models=models, context=1024)
    command = list(server.command(8001))
    for flag, value in (("model", str(models / "small")), ("port", "8001"), ("max-model-len", "1024")):
        assert command[command.index(f"--{flag}") + 1] == value
    assert "--enforce-eager" in command
    assert OPEN not in command
    assert "True" not in command


def test_no_prompt_is_read_in_parts(models: Path) -> None:
    """A part of a prompt whose request samples by a seed is the end of vLLM 0.32 on a CPU."""
    for server in miniature_servers("off", ROLES, models=models):
        limits = [
            int(server.args[server.args.index(f"--max-{name}") + 1])
            for name in ("num-batched-tokens", "num-seqs", "model-len")
        ]
        assert limits[0] >= limits[1] * limits[2]


def test_json_has_no_white_space_that_could_go_on_for_ever(models: Path) -> None:
    for server in miniature_servers("off", ROLES, models=models):
        told = json.loads(server.args[server.args.index("--structured-outputs-config") + 1])
        assert told == {"backend": "xgrammar", "disable_any_whitespace": True}


def test_the_large_server_scores_suffixes_and_its_endpoint_knows(models: Path, tmp_path: Path) -> None:
    opened = {server.name for server in miniature_servers("off", ROLES, models=models) if OPEN in server.args}
    served = [Served(role, "http://127.0.0.1:1/v1", f"testbed-{role}", 1, tmp_path) for role in ROLES]
    told = {one.name for one in served if endpoint(one, "small").suffix_scoring}
    assert opened == told == {"large"}
    assert [server.env.get("MALLOC_PERTURB_") for server in miniature_servers("off", ROLES, models=models)] == [
        "255",
        None,
        None,
    ]
    assert (endpoint(served[0], "large").role, endpoint(served[0], "large").model) == ("large", "testbed-large")


def test_a_paced_server_is_told_its_pace_and_loads_the_plugin(models: Path) -> None:
    (server,) = miniature_servers("paced", ["small-other"], models=models)
    overrides = json.loads(server.args[server.args.index("--hf-overrides") + 1])
    assert overrides["architectures"] == ["PacedQwen3ForCausalLM"]
    assert overrides["paced_seconds_per_pass"] == 0.006
    assert server.env["VLLM_PLUGINS"] == "stepspec_paced"


def test_without_a_pace_it_is_vllms_own_architecture(models: Path) -> None:
    for server in miniature_servers("off", ROLES, models=models):
        assert "--hf-overrides" not in server.args
        assert server.env["VLLM_PLUGINS"] == ""


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=str(tmp_path / "large")):
        miniature_servers(models=tmp_path)


def test_the_small_model_drafts_for_the_large_one_and_ngram_serves_both(models: Path) -> None:
    def told(method: str, drafter: Path | None = None) -> dict[str, dict[str, object]]:
        servers = miniature_servers("off", models=models, speculation=speculating(method), drafter=drafter)
        flag = "--speculative-config"
        return {one.name: json.loads(one.args[one.args.index(flag) + 1]) for one in servers if flag in one.args}

    assert told("none") == {}
    assert {role: one["method"] for role, one in told("ngram").items()} == {"large": "ngram", "small": "ngram"}
    assert told("draft_model") == {
        "large": {"method": "draft_model", "num_speculative_tokens": 4, "model": str(models / "small")}
    }
    assert told("draft_model", Path("/elsewhere"))["large"]["model"] == "/elsewhere"


def test_a_method_without_a_drafter_for_the_pair_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot speculate by 'eagle3'; it can by: none, ngram, draft_model"):
        speculating("eagle3")
