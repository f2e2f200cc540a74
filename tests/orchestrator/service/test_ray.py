"""The application of Ray Serve. tests/integration/test_ray_serve.py tests it on a cluster."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray.serve import Application
from ray.serve.schema import ServeDeploySchema

from stepspec import service_factory
from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.installation import install_command
from stepspec.orchestrator.service import ray as service_on_ray
from stepspec.orchestrator.service.ray import build

from ...docker.files import DOCKER, read

URLS = {"small": "http://a:1/v1,http://b:1/v1", "large": "http://c:1"}
DEPLOYED = DOCKER / "ray/stepspec.yaml"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def deployments(app: Application) -> tuple[Any, Any]:
    """Return the fronts and the replicas that are before them."""
    front: Any = app._bound_deployment  # pyright: ignore[reportPrivateUsage]
    return front, front.init_args[0]._bound_deployment


def test_variables_the_file_and_arguments_are_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("stepspec.toml").write_text("policy = 'bild'\n[service]\nmax_running = 10\nmax_waiting = 5\nkeys = ['file']\n")
    monkeypatch.setenv("STEPSPEC_SERVICE__RAY__MAX_REPLICAS", "6")
    monkeypatch.setenv("STEPSPEC_SERVICE__MAX_WAITING", "20")
    front, replica = deployments(
        build({**URLS, "service.ray.min_replicas": "3", "service.ray.cpus": 2, "service": {"drain_seconds": 7}})
    )
    scaling = replica._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (3, 6, 5)
    assert replica.ray_actor_options["num_cpus"] == 2
    assert replica.max_ongoing_requests > 10 + 20  # What is too much is for the service to refuse.
    assert replica._deployment_config.graceful_shutdown_timeout_s > 7
    assert front._deployment_config.graceful_shutdown_timeout_s > replica._deployment_config.graceful_shutdown_timeout_s
    assert front.max_ongoing_requests >= 6 * replica.max_ongoing_requests
    (settings,) = replica.init_args
    assert settings.policy == "bild"
    assert [key.get_secret_value() for key in settings.service.keys] == ["file"]
    assert "file" not in repr(settings)


def test_the_application_is_built_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="no small model"):
        _ = service_on_ray.app
    for role, url in URLS.items():
        monkeypatch.setenv(f"STEPSPEC_{role.upper()}", url)
    front, replica = deployments(service_on_ray.app)
    assert (front.name, replica.name, front.num_replicas) == ("front", "replica", 2)
    with pytest.raises(AttributeError, match="no attribute 'apq'"):
        _ = service_on_ray.apq


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"polcy": "bild"}, r"unknown setting 'polcy' \(did you mean 'policy'"),
        ({"service.ray.max_replica": 2}, r"unknown setting 'service\.ray\.max_replica' \(did you mean 'max_replicas'"),
        ({"service": {"prot": 2}}, r"unknown setting 'service\.prot' \(did you mean 'port'"),
        ({"service.ray.min_replicas": 9}, "min_replicas is 9, more than max_replicas, 4"),
        (
            {"service": {"max_running": 8, "ray": {"target": 9}}},
            r"ray\.target is 9, and a replica never has more than 8",
        ),
        ({"service.ray.cpus": 0}, r"service\.ray\.cpus"),
        ({"service": 1, "service.port": 2}, "'service' is set twice"),
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
    _, replica = deployments(built)
    assert replica._deployment_config.autoscaling_config.min_replicas == 2
    assert not schema.http_options.model_dump()["host"].startswith("0.")


def test_settings_are_sent_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = service_factory.read(
        {**URLS, "service": {"keys": ["one"]}, "small": {"url": "http://a", "api_key": "k"}}
    )
    monkeypatch.setenv("STEPSPEC_POLICY", "bild")
    travelled = pickle.loads(pickle.dumps(settings))
    assert travelled == settings
    assert travelled.small.api_key.get_secret_value() == "k"


@pytest.mark.parametrize("small", [URLS["small"], {"small": "http://t", "large": URLS["small"]}])
def test_replicas_begin_with_different_servers_of_a_model(small: Any) -> None:
    settings = service_factory.read({**URLS, "small": small})
    turned: list[Any] = [settings.turned(rank) for rank in range(3)]
    urls = [("http://a:1", "http://b:1"), ("http://b:1", "http://a:1"), ("http://a:1", "http://b:1")]
    assert [(each.small if isinstance(small, str) else each.small.large).urls for each in turned] == urls
    assert {each.large.urls for each in turned} == {("http://c:1",)}


def test_an_endpoint_may_begin_with_any_of_its_servers() -> None:
    three = Endpoint(role="small", url="http://a,http://b,http://c", model="m")
    assert [three.turned(places).url for places in (-1, 0, 4)] == ["http://c", "http://a", "http://b"]
    assert three.turned(5).urls == ("http://c", "http://a", "http://b")
    assert three.turned(5).model == "m"
    assert three.turned(3) == three


def test_without_ray_the_error_names_the_package_to_install() -> None:
    code = "import sys; sys.modules['ray'] = None; import stepspec.orchestrator.service.ray"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode
    assert f"the service on Ray needs ray: {install_command('serve', 'ray')}" in done.stderr
