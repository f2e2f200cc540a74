"""
The chart renders in its main ways, to objects that Kubernetes takes and settings that stepspec
takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from stepspec import Endpoint
from stepspec.orchestrator.endpoints import CriticEndpoint
from stepspec.settings import Settings, load

from .charts import BAD, GOOD
from .files import CHART, Tree, read, run, tool

# of operators: no schema of Kubernetes' own
OPERATED = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}
VERSIONS = ("1.27", "1.37")


def only(objects: list[Tree], kind: str, name: str = "") -> Tree:
    (found,) = [
        each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(name)
    ]
    return found


def pods(objects: list[Tree]) -> Iterator[Tree]:
    for each in objects:
        if each["kind"] in ("Deployment", "StatefulSet"):
            yield each["spec"]["template"]["spec"]
        elif each["kind"] == "Pod":
            yield each["spec"]


def service(objects: list[Tree]) -> Tree:
    containers: list[Tree] = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return containers[0]


def settings(objects: list[Tree], folder: Path, bare: pytest.MonkeyPatch) -> Settings:
    """Load the settings as the service in its pod would."""
    container = service(objects)
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "config"]
    for key, text in only(objects, "ConfigMap", service_name(objects))["data"].items():
        (folder / key).write_text(text)
    for variable in container["env"]:
        value = variable.get("value", "of a secret").replace(mount["mountPath"], str(folder))
        bare.setenv(variable["name"], value)
    bare.setenv("STEPSPEC_SERVICE__HOST", "::")  # as the image does
    overrides: dict[str, Any] = (
        {"service": {"insecure": True}} if "--insecure" in container["args"] else {}
    )
    return load(**overrides)


def service_name(objects: list[Tree]) -> str:
    name: str = only(objects, "Deployment")["metadata"]["name"]
    return name


@pytest.mark.parametrize("name", GOOD)
def test_it_renders_and_has_no_lint(name: str, outcomes: Mapping[str, Tree]) -> None:
    assert "error" not in outcomes[name]
    assert outcomes[name]["lint"] == []


@pytest.mark.parametrize("name", BAD)
def test_meaningless_values_are_refused_with_the_cure(
    name: str, outcomes: Mapping[str, Tree]
) -> None:
    assert BAD[name][1] in outcomes[name]["error"]


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_object(
    version: str, rendered: Mapping[str, list[Tree]], tmp_path: Path
) -> None:
    written = tmp_path / "objects.yaml"
    distinct = {
        yaml.safe_dump(each)
        for made in rendered.values()
        for each in made
        if each["kind"] not in OPERATED
    }
    written.write_text("---\n".join(sorted(distinct)))
    done = run(tool("kubernetes-validate"), "--strict", "--quiet", "-k", version, str(written))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", GOOD)
def test_the_service_takes_its_settings(
    name: str, rendered: Mapping[str, list[Tree]], tmp_path: Path, bare: pytest.MonkeyPatch
) -> None:
    container = service(rendered[name])
    found = settings(rendered[name], tmp_path, bare)
    assert isinstance(found.small, Endpoint)
    assert found.large is not None
    assert bool(found.service.keys) == ("--insecure" not in container["args"])
    assert container["args"][0] == "serve"
    pod = only(rendered[name], "Deployment")["spec"]["template"]["spec"]
    # preStop, and the goodbye
    assert pod["terminationGracePeriodSeconds"] > found.service.drain_seconds + 10


def test_settings_are_those_of_the_values(
    rendered: Mapping[str, list[Tree]], tmp_path: Path, bare: pytest.MonkeyPatch
) -> None:
    found = settings(rendered["urls"], tmp_path, bare)
    assert isinstance(found.small, Endpoint)
    assert found.large is not None
    assert isinstance(found.critic, CriticEndpoint)
    assert found.small.urls == ("http://a:8000", "http://b:8000")
    assert found.small.api_key is not None
    assert (found.large.url, found.large.model) == ("https://gateway.example.com/large", "huge")
    assert found.critic.url == "http://judge:8000"
    assert [each["kind"] for each in rendered["urls"] if each["kind"] == "StatefulSet"] == []
    (wait,) = only(rendered["urls"], "Deployment")["spec"]["template"]["spec"]["initContainers"]
    # the service starts without the small model
    assert wait["command"][3:] == ["https://gateway.example.com/large/health"]


def test_addresses_of_ipv6_stay_what_they_are(
    rendered: Mapping[str, list[Tree]], tmp_path: Path, bare: pytest.MonkeyPatch
) -> None:
    found = settings(rendered["IPv6"], tmp_path, bare)
    assert isinstance(found.small, Endpoint)
    assert found.large is not None
    assert isinstance(found.critic, CriticEndpoint)
    assert found.small.urls == ("http://[fd00::1]:8000", "http://[fd00::2]:8000")
    assert (found.large.url, found.critic.url) == ("https://[2001:db8::1]", "http://[fd00::3]")
    (wait,) = only(rendered["IPv6"], "Deployment")["spec"]["template"]["spec"]["initContainers"]
    assert wait["command"][3:] == ["https://[2001:db8::1]/health"]


def test_texts_that_look_like_something_else_stay_texts(
    rendered: Mapping[str, list[Tree]], tmp_path: Path, bare: pytest.MonkeyPatch
) -> None:
    objects = rendered["words"]
    found = settings(objects, tmp_path, bare)
    assert (found.policy, found.system) == ("bild", "  a: b\n\tc")
    assert isinstance(found.small, Endpoint)
    assert found.small.model == "null"
    pod = only(objects, "Deployment")["spec"]["template"]["spec"]
    assert (pod["priorityClassName"], pod["serviceAccountName"]) == ("1", "12")
    assert pod["initContainers"][0]["envFrom"] == [{"secretRef": {"name": "007"}}]
    keys = {each["name"]: each for each in service(objects)["env"]}["STEPSPEC_SERVICE__KEYS"]
    assert keys["valueFrom"]["secretKeyRef"] == {"name": "08", "key": "on"}
    for role, model in (("-small", "123"), ("-large", "*/x: y")):
        servers = only(objects, "StatefulSet", role)["spec"]
        container = servers["template"]["spec"]["containers"][0]
        assert container["args"][0] == model
        assert container["envFrom"] == [{"secretRef": {"name": "1e3"}}]
        assert {"name": "ca", "mountPath": "/ca"} in container["volumeMounts"]
        assert servers["template"]["spec"]["runtimeClassName"] == "true"
        assert servers["template"]["spec"]["terminationGracePeriodSeconds"] == 10**6


def test_a_config_of_ones_own_is_read(
    rendered: Mapping[str, list[Tree]], tmp_path: Path, bare: pytest.MonkeyPatch
) -> None:
    found = settings(rendered["open"], tmp_path, bare)
    assert (found.policy, found.budget.tokens, found.service.drain_seconds) == ("bild", 4096, 5)


def test_every_replica_has_an_address_of_its_own(
    rendered: Mapping[str, list[Tree]], tmp_path: Path, bare: pytest.MonkeyPatch
) -> None:
    objects = rendered["replicas"]
    found = settings(objects, tmp_path, bare)
    servers = only(objects, "StatefulSet", "-small")
    headless = only(objects, "Service", "-small")
    name = servers["metadata"]["name"]
    space = "prod"
    assert servers["spec"]["replicas"] == 3
    assert servers["spec"]["serviceName"] == headless["metadata"]["name"]
    assert headless["spec"]["clusterIP"] == "None"
    assert isinstance(found.small, Endpoint)
    assert found.small.urls == tuple(f"http://{name}-{i}.{name}.{space}.svc:8000" for i in range(3))


def test_gpus_are_requested_and_distributed(rendered: Mapping[str, list[Tree]]) -> None:
    (large,) = only(rendered["replicas"], "StatefulSet", "-large")["spec"]["template"]["spec"][
        "containers"
    ]
    assert large["resources"]["limits"] == {"nvidia.com/gpu": 4, "memory": "64Gi"}
    assert large["resources"]["requests"]["memory"] == "24Gi"
    assert "--tensor-parallel-size=4" in large["args"]
    (small,) = only(rendered["replicas"], "StatefulSet", "-small")["spec"]["template"]["spec"][
        "containers"
    ]
    assert small["resources"]["limits"] == {"nvidia.com/gpu": 1}


def test_the_memory_limit_holds_the_chains_that_its_comment_names(
    rendered: Mapping[str, list[Tree]],
) -> None:
    tokens = 128 * 16_384
    needed = 150 * 2**20 + tokens * 705
    limit = service(rendered["pair"])["resources"]["limits"]["memory"]
    assert needed <= int(limit.removesuffix("Gi")) * 2**30


@pytest.mark.parametrize(
    ("addresses", "host"), [("fe80 02 40 20 80 eth0\n", "::"), ("", "0.0.0.0"), (None, "0.0.0.0")]
)
def test_a_deployed_server_listens_by_ipv6_too_where_that_exists(
    addresses: str | None, host: str, rendered: Mapping[str, list[Tree]], tmp_path: Path
) -> None:
    """Run the command of the pod, with another file of addresses and another vLLM."""
    (container,) = only(rendered["pair"], "StatefulSet", "-large")["spec"]["template"]["spec"][
        "containers"
    ]
    shell, flag, script, *names = container["command"]
    listed = tmp_path / "if_inet6"
    if addresses is not None:
        listed.write_text(addresses)
    assert "/proc/net/if_inet6" in script
    vllm = tmp_path / "vllm"
    vllm.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    vllm.chmod(0o755)
    done = run(
        shell,
        flag,
        script.replace("/proc/net/if_inet6", str(listed)),
        *names,
        *container["args"],
        "a b",
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    assert done.stdout.splitlines() == ["serve", *container["args"], "a b", f"--host={host}"]


def test_the_waiting_container_has_the_proxies_of_the_service(
    rendered: Mapping[str, list[Tree]],
) -> None:
    pod = only(rendered["proxy"], "Deployment")["spec"]["template"]["spec"]
    (wait,) = pod["initContainers"]
    assert [variable["name"] for variable in wait["env"]] == ["HTTP_PROXY", "NO_PROXY"]
    assert all(variable in pod["containers"][0]["env"] for variable in wait["env"])


@pytest.mark.parametrize("name", GOOD)
def test_no_pod_gets_the_variables_of_services_or_more_rights_than_it_needs(
    name: str, rendered: Mapping[str, list[Tree]]
) -> None:
    for pod in pods(rendered[name]):
        # STEPSPEC_PORT and its like would be unknown settings
        assert pod["enableServiceLinks"] is False
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
    pod = only(rendered[name], "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", GOOD)
def test_every_pod_selector_matches_a_pod(name: str, rendered: Mapping[str, list[Tree]]) -> None:
    labels = [
        each["spec"]["template"]["metadata"]["labels"].items()
        for each in rendered[name]
        if each["kind"] in ("Deployment", "StatefulSet")
    ]
    for each in rendered[name]:
        if each["kind"] in ("Service", "PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor"):
            selector: Tree = each["spec"].get("podSelector") or each["spec"]["selector"]
            chosen: Tree = selector.get("matchLabels", selector)
            assert any(chosen.items() <= one for one in labels), each


def test_scaling_is_left_to_whoever_scales(rendered: Mapping[str, list[Tree]]) -> None:
    assert only(rendered["pair"], "Deployment")["spec"]["replicas"] == 2
    for name, kind in (("hpa", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")):
        assert "replicas" not in only(rendered[name], "Deployment")["spec"]
        target = only(rendered[name], kind)["spec"]["scaleTargetRef"]
        assert target["name"] == service_name(rendered[name])


def test_models_are_reached_by_the_service_alone(rendered: Mapping[str, list[Tree]]) -> None:
    (rule,) = only(rendered["pair"], "NetworkPolicy", "-models")["spec"]["ingress"]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "service"
    (rule,) = only(rendered["monitored"], "NetworkPolicy", "-models")["spec"]["ingress"]
    assert len(rule["from"]) == 2


def test_the_service_reaches_only_its_dependencies(rendered: Mapping[str, list[Tree]]) -> None:
    def egress(name: str) -> list[Tree]:
        policy: Tree = only(rendered[name], "NetworkPolicy", service_name(rendered[name]))["spec"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        found: list[Tree] = policy["egress"]
        return found

    # Somewhere outside the chart, which only its user can narrow down.
    assert egress("urls") == [{}]
    assert [rule["ports"][0]["port"] for rule in egress("pair")] == [53, 8000]
    assert len(egress("half")) == 3


def test_the_notes_say_where_the_models_are(outcomes: Mapping[str, Tree]) -> None:
    notes = outcomes["urls"]["files"]["stepspec/templates/NOTES.txt"]
    assert "https://gateway.example.com/large/v1" in notes
    assert "insecure is set" not in notes
    assert "insecure is set" in outcomes["open"]["files"]["stepspec/templates/NOTES.txt"]


def test_the_schema_knows_every_value() -> None:
    values = read(CHART / "values.yaml")
    schema = read(CHART / "values.schema.json")
    assert set(schema["properties"]) == set(values) | {"global"}
    assert (
        set(schema["$defs"]["model"]["properties"]) == set(values["small"]) == set(values["large"])
    )


def test_every_container_of_the_service_has_the_volumes_and_the_variables(
    rendered: Mapping[str, list[Tree]],
) -> None:
    pod = only(rendered["private CA"], "Deployment")["spec"]["template"]["spec"]
    assert {"name": "ca", "configMap": {"name": "ca"}} in pod["volumes"]
    for container in (*pod["initContainers"], *pod["containers"]):
        assert "/ca" in [mount["mountPath"] for mount in container["volumeMounts"]]
        assert {"name": "SSL_CERT_FILE", "value": "/ca/ca.crt"} in container["env"]
