"""The compose files are valid, and whatever they name exists."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from stepspec import Endpoint
from stepspec.evals.testbed.servers import PAIR, paced_configuration
from stepspec.orchestrator.endpoints import CriticEndpoint
from stepspec.settings import load

from .files import (
    COMPOSED,
    DOCKER,
    ENVIRONMENT,
    ROOT,
    Tree,
    block,
    composed,
    outside,
    read,
    run,
    tool,
    variables,
)

ALL = (*COMPOSED, "compose.parts.yaml")


def client() -> bool:
    try:
        return run("docker", "compose", "version").returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def services(name: str) -> dict[str, Tree]:
    found: dict[str, Tree] = composed(name)["services"]
    return found


@pytest.mark.parametrize("name", ALL)
def test_the_specification_of_compose_files_is_kept(name: str) -> None:
    done = run(
        tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(DOCKER / name)
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not client(), reason="there is no docker compose here")
@pytest.mark.parametrize("name", COMPOSED)
def test_docker_compose_reads_it_and_requires_the_secrets(name: str) -> None:
    command = (
        "docker",
        "compose",
        "--env-file",
        "/dev/null",
        "--file",
        str(DOCKER / name),
        "config",
        "--quiet",
    )
    done = run(*command, env={**outside(), **ENVIRONMENT})
    assert done.returncode == 0, done.stderr
    assert "copy .env.example to .env" in run(*command, env=outside()).stderr


@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.parametrize("missing", ENVIRONMENT)
def test_nothing_secret_has_a_default(name: str, missing: str) -> None:
    with pytest.raises(KeyError, match=r"copy \.env\.example to \.env"):
        composed(name, {key: value for key, value in ENVIRONMENT.items() if key != missing})


def test_the_example_lists_every_variable() -> None:
    lines = (DOCKER / ".env.example").read_text().splitlines()
    listed = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    images = {"SERVICE_IMAGE", "TESTBED_IMAGE"}  # for those who publish their own
    assert set(listed) | images == set[str]().union(*(variables(DOCKER / name) for name in ALL))
    for name in COMPOSED:
        # It repeats the defaults.
        assert composed(name, {**listed, **ENVIRONMENT}) == composed(name)


@pytest.mark.parametrize("name", COMPOSED)
def test_the_service_takes_its_settings(name: str, bare: pytest.MonkeyPatch) -> None:
    for variable, value in services(name)["stepspec"]["environment"].items():
        bare.setenv(variable, str(value))
    bare.setenv("STEPSPEC_SERVICE__HOST", "0.0.0.0")  # as the image does
    found = load()
    assert isinstance(found.small, Endpoint)
    assert found.large is not None
    assert [key.get_secret_value() for key in found.service.keys] == ["one", "two"]
    for role, endpoint in (("small", found.small), ("large", found.large)):
        assert endpoint.url == f"http://{role}:8000"
        assert role in services(name)
    grace = services(name)["stepspec"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > found.service.drain_seconds + 5


@pytest.mark.parametrize("name", ALL)
def test_mounted_files_exist(name: str) -> None:
    for service, one in read(DOCKER / name)["services"].items():
        for volume in one.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (DOCKER / source).exists(), (service, volume)


@pytest.mark.parametrize("name", COMPOSED)
def test_volumes_are_declared_and_images_are_pinned(name: str) -> None:
    declared = set(composed(name)["volumes"])
    for service, one in services(name).items():
        sources = {volume.split(":")[0] for volume in one.get("volumes", ())}
        assert {source for source in sources if "/" not in source} <= declared, service
        _, _, tag = one["image"].rpartition(":")
        if "build" in one:
            assert tag == "dev", (service, one["image"])
        else:
            assert tag[:1].isdigit() or tag[:2] in ("v0", "v3"), (service, one["image"])
            assert tag.count(".") == 2, (service, one["image"])


@pytest.mark.parametrize("name", COMPOSED)
def test_each_service_waits_until_its_dependencies_are_healthy(name: str) -> None:
    found = services(name)
    checked = {service for service, one in found.items() if "healthcheck" in one}
    for service, needed in {"stepspec": {"large", "small"}, "grafana": {"prometheus"}}.items():
        depends: dict[str, Any] = found[service]["depends_on"]
        assert set(depends) == needed <= checked
        assert all(one == {"condition": "service_healthy"} for one in depends.values())


def test_two_models_on_one_card_fit_and_start_one_after_the_other() -> None:
    found = services("compose.yaml")
    shares = [
        float(argument.partition("=")[2])
        for role in ("large", "small")
        for argument in found[role]["command"]
        if argument.startswith("--gpu-memory-utilization=")
    ]
    assert len(shares) == 2
    assert sum(shares) <= 0.9
    assert found["small"]["depends_on"] == {"large": {"condition": "service_healthy"}}


def test_the_miniature_models_are_there() -> None:
    for role in ("large", "small"):
        one = services("compose.cpu.yaml")[role]
        argument, flag, profile = one["command"]
        assert argument == role
        assert argument in [model.name for model in PAIR]
        assert flag == "--profile"
        assert paced_configuration(profile, role)
        assert one["build"]["target"] == "testbed"


@pytest.mark.parametrize("name", COMPOSED)
def test_only_the_service_listens_on_other_addresses_and_only_if_configured(name: str) -> None:
    for service, one in services(name).items():
        for port in one.get("ports", ()):
            assert port.startswith("127.0.0.1:"), (service, port)
    wide = composed(name, {**ENVIRONMENT, "ADDRESS": "0.0.0.0"})["services"]
    assert {
        service
        for service, one in wide.items()
        if any("0.0.0.0" in port for port in one.get("ports", ()))
    } == {"stepspec"}


def test_the_settings_in_the_documents_can_be_read(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "stepspec.toml"
    config.write_text(block(ROOT / "docs/deploy.md", "toml"))
    bare.setenv("STEPSPEC_CONFIG", str(config))
    found = load()
    assert isinstance(found.small, Endpoint)
    assert len(found.small.urls) == 2
    assert isinstance(found.critic, CriticEndpoint)
    assert found.critic.layout == "chat"


def test_secrets_are_left_out_of_git() -> None:
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()
