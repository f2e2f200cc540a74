"""The application of Ray Serve. tests/integration/test_ray_serve.py tests it on a cluster."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from ray.serve import Application
from ray.serve.schema import ServeDeploySchema
from starlette.responses import Response
from starlette.testclient import TestClient

from stepspec.orchestrator.errors import ConfigurationError, install_command
from stepspec.service.ray import ScrapedMetrics, build, guarded
from stepspec.service.settings import ServiceSettings

from ..docker.files import DOCKER, read

URLS = {"small": "http://a:1/v1,http://b:1/v1", "large": "http://c:1"}
DEPLOYED = DOCKER / "ray/stepspec.yaml"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def deployment(app: Application) -> Any:
    return app._bound_deployment  # pyright: ignore[reportPrivateUsage]


def test_variables_the_file_and_arguments_are_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("stepspec.toml").write_text(
        "policy = 'bild'\n[service]\nmax_running = 10\nmax_waiting = 5\nkeys = ['file']\n"
    )
    monkeypatch.setenv("STEPSPEC_SERVICE__RAY__MAX_REPLICAS", "6")
    monkeypatch.setenv("STEPSPEC_SERVICE__MAX_WAITING", "20")
    arguments = {"service": {"drain_seconds": 7, "ray": {"min_replicas": "3", "cpus": 2}}}
    replica = deployment(build({**URLS, **arguments}))
    scaling = replica._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (
        3,
        6,
        5,
    )
    assert replica.ray_actor_options["num_cpus"] == 2
    assert replica.max_ongoing_requests > 10 + 20  # What is too much is for the service to refuse.
    assert replica._deployment_config.graceful_shutdown_timeout_s > 7
    (settings,) = replica.init_args
    assert settings.policy == "bild"
    assert [key.get_secret_value() for key in settings.service.keys] == ["file"]
    assert "file" not in repr(settings)


def test_without_arguments_variables_name_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="no small model"):
        build({})
    for role, url in URLS.items():
        monkeypatch.setenv(f"STEPSPEC_{role.upper()}", url)
    assert deployment(build({})).name == "replica"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"polcy": "bild"}, r"unknown setting 'polcy' \(did you mean 'policy'"),
        ({"service.ray.max_replicas": 2}, r"unknown setting 'service\.ray\.max_replicas'"),
        ({"service": {"prot": 2}}, r"unknown setting 'service\.prot' \(did you mean 'port'"),
        ({"service": {"ray": {"min_replicas": 9}}}, "min_replicas is 9, more than max_replicas, 4"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        build({**URLS, **arguments})


def test_the_file_that_is_shipped_is_one() -> None:
    schema = ServeDeploySchema.model_validate(read(DEPLOYED))
    (application,) = schema.applications
    module, _, name = application.import_path.partition(":")
    arguments = read(DEPLOYED)["applications"][0]["args"]
    built = getattr(importlib.import_module(module), name)(arguments)
    assert deployment(built)._deployment_config.autoscaling_config.min_replicas == 2
    assert not schema.http_options.model_dump()["host"].startswith("0.")


def test_without_ray_the_error_names_the_package_to_install() -> None:
    code = "import sys; sys.modules['ray'] = None; import stepspec.service.ray"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode
    assert f"the service on Ray needs ray: {install_command('serve', 'ray')}" in done.stderr


@pytest.mark.parametrize(
    ("address", "path", "settings", "status"),
    [
        ("127.0.0.1", "/v1/models", {}, 200),
        ("10.0.0.5", "/v1/models", {}, 403),
        ("10.0.0.5", "/health", {}, 200),
        ("10.0.0.5", "/v1/models", {"insecure": True}, 200),
        ("10.0.0.5", "/v1/models", {"keys": ["secret"]}, 200),  # The service asks for the key.
    ],
)
def test_without_a_key_only_local_clients_reach_the_service(
    address: str, path: str, settings: dict[str, Any], status: int
) -> None:
    app = guarded(Response(headers={"X-Request-Id": "1"}), ServiceSettings(**settings))
    reply = TestClient(app, base_url=f"http://{address}").get(path)
    assert reply.status_code == status
    assert "X-Request-Id" not in reply.headers  # Ray's proxy adds it.


def counted(count: int) -> bytes:
    registry = CollectorRegistry()
    Counter(
        "requests",
        "Requests.",
        ["status"],
        registry=registry,
    ).labels("200").inc(count)
    Gauge("running", "At work.", registry=registry).set(count / 2)
    Histogram("seconds", "How long.", buckets=(1, 2), registry=registry).observe(count)
    Info("about", "The version.", registry=registry).info({"version": '0"1'})
    return generate_latest(registry)


def samples(text: bytes, **labels: str) -> dict[tuple[object, ...], float]:
    families = text_string_to_metric_families(text.decode())
    return {
        (sample.name, *sorted({**sample.labels, **labels}.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_every_sample_gets_the_label_of_its_replica_and_each_metric_is_described_once() -> None:
    first = counted(1)
    second = counted(3)
    merged = generate_latest(ScrapedMetrics({"a": first, "b": second}))
    assert samples(merged) == samples(first, replica="a") | samples(second, replica="b")
    assert samples(merged)["requests_total", ("replica", "b"), ("status", "200")] == 3
    lines = merged.decode().splitlines()
    described = [line for line in lines if line.startswith("#")]
    assert len(described) == len(set(described))
    assert "# TYPE requests_total counter" in described
