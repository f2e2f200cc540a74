"""Dashboard and alerts use only metrics of the service and of vLLM, in valid PromQL."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from .files import COMPOSED, DOCKER, Tree, composed, read, run
from .metrics import Known, of_the_service, of_vllm

DASHBOARD = DOCKER / "grafana/dashboards/stepspec.json"
ALERTS = DOCKER / "alerts/stepspec.yaml"
VARIABLES = {"$__rate_interval": "5m", "$model": ".*"}


def panels() -> list[Tree]:
    found: list[Tree] = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def questions() -> dict[str, str]:
    """Return every PromQL expression that is shipped, by where it stands."""
    expressions = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in panels()
        for target in panel["targets"]
    }
    alerts = {
        rule["alert"]: rule["expr"] for group in read(ALERTS)["groups"] for rule in group["rules"]
    }
    assert not set(expressions) & set(alerts)
    return expressions | alerts


def parsed(expression: str) -> promql_parser.Expr:
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return promql_parser.parse(expression)


def selectors(expression: promql_parser.Expr) -> list[promql_parser.VectorSelector]:
    found: list[promql_parser.VectorSelector] = []

    def visit(node: Any) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        elif isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)
        return True

    promql_parser.walk(expression, visit)
    return found


def grouped(
    expression: promql_parser.Expr,
) -> Iterator[tuple[set[str], list[promql_parser.VectorSelector]]]:
    """Return the labels of every ``by``, with what is grouped."""
    found: list[promql_parser.AggregateExpr] = []

    def visit(node: Any) -> bool:
        if isinstance(node, promql_parser.AggregateExpr):
            found.append(node)
        return True

    promql_parser.walk(expression, visit)
    for node in found:
        if node.modifier is not None:
            yield set(node.modifier.labels), selectors(node.expr)


@pytest.fixture(scope="module")
def known() -> Known:
    return {**of_the_service(), **of_vllm()}


@pytest.mark.parametrize("place", questions())
def test_every_expression_selects_existing_metrics(place: str, known: Known) -> None:
    expression = parsed(questions()[place])
    selected = selectors(expression)
    assert selected
    for selector in selected:
        assert selector.name is not None
        assert selector.name in known
        named = {matcher.name for matcher in selector.matchers.matchers}
        assert named <= known[selector.name], selector.name
    for labels, within in grouped(expression):
        for selector in within:
            assert selector.name is not None
            assert labels <= known[selector.name], selector.name


def test_every_metric_of_the_service_is_shown() -> None:
    shown = {
        str(selector.name)
        for expression in questions().values()
        for selector in selectors(parsed(expression))
    }
    assert {family(name) for name in of_the_service()} == {
        family(name) for name in shown if "vllm:" not in name
    }


def family(name: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", name)


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_panel_titles_are_unique_and_legends_have_their_labels(panel: Tree) -> None:
    assert panel["description"]
    for target in panel["targets"]:
        by = set[str]().union(*(labels for labels, _ in grouped(parsed(target["expr"]))))
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= by


def test_the_dashboard_is_complete() -> None:
    board = json.loads(DASHBOARD.read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = [panel["gridPos"] for panel in board["panels"]]
    taken = [
        (x, y)
        for p in places
        for x in range(p["x"], p["x"] + p["w"])
        for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    variables = {one["name"] for one in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([board["panels"], board["templating"]])))
    assert (
        {name for name in used if not name.startswith("__")} == variables == {"datasource", "model"}
    )


def test_alerts_say_what_to_do() -> None:
    for group in read(ALERTS)["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("critical", "warning", "info")
            assert rule["annotations"].keys() == {"summary", "description"}
            by = set[str]().union(*(labels for labels, _ in grouped(parsed(rule["expr"]))))
            assert set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))) <= by


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool here")
def test_promtool_takes_configuration_and_rules(tmp_path: Path) -> None:
    shutil.copy(DOCKER / "prometheus/prometheus.yaml", tmp_path)
    shutil.copytree(DOCKER / "alerts", tmp_path / "alerts")
    done = run("promtool", "check", "config", str(tmp_path / "prometheus.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", COMPOSED)
def test_prometheus_scrapes_running_services_and_reads_mounted_files(name: str) -> None:
    services: Mapping[str, Tree] = composed(name)["services"]
    config = read(DOCKER / "prometheus/prometheus.yaml")
    ports = {"stepspec": "8765", "large": "8000", "small": "8000"}
    targets = {
        target
        for job in config["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
        if not target.startswith("localhost")
    }
    assert targets == {f"{service}:{port}" for service, port in ports.items()}
    assert set(ports) <= set(services)
    mounted = {volume.split(":")[1] for volume in services["prometheus"]["volumes"]}
    assert "--config.file=/etc/prometheus/prometheus.yaml" in services["prometheus"]["command"]
    assert {"/etc/prometheus/prometheus.yaml", "/etc/prometheus/alerts"} <= mounted
    assert config["rule_files"] == ["alerts/*.yaml"]


@pytest.mark.parametrize("name", COMPOSED)
def test_grafana_finds_its_source_and_its_dashboard(name: str) -> None:
    grafana = composed(name)["services"]["grafana"]
    mounts = {
        target: source
        for source, target, *_ in (volume.split(":") for volume in grafana["volumes"])
    }
    (provider,) = read(DOCKER / "grafana/provisioning/dashboards/stepspec.yaml")["providers"]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert provider["options"]["path"] == str(home.parent)
    assert (DOCKER / mounts[str(home.parent)] / home.name).samefile(DASHBOARD)
    (source,) = read(DOCKER / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["type"] == "prometheus"


def test_the_chart_ships_the_same_alerts_and_the_same_dashboard(
    rendered: Mapping[str, list[Tree]],
) -> None:
    (rules,) = [each for each in rendered["monitored"] if each["kind"] == "PrometheusRule"]
    assert rules["spec"] == read(ALERTS)
    (board,) = [
        each for each in rendered["monitored"] if each["metadata"]["name"].endswith("-dashboard")
    ]
    assert json.loads(board["data"][DASHBOARD.name]) == json.loads(DASHBOARD.read_text())


def test_keda_queries_existing_metrics(rendered: Mapping[str, list[Tree]], known: Known) -> None:
    (scaled,) = [each for each in rendered["keda"] if each["kind"] == "ScaledObject"]
    for trigger in scaled["spec"]["triggers"]:
        (selector,) = selectors(parsed(trigger["metadata"]["query"]))
        assert selector.name in known
        labels = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
        assert labels == {"namespace": "prod", "service": "demo-stepspec"}
        assert int(trigger["metadata"]["threshold"]) > 0
