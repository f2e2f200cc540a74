"""The metrics of several services as those of one."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stepspec.orchestrator.service.ray_proxy import merge_metrics


def scrape(count: int) -> bytes:
    registry = CollectorRegistry()
    Counter("requests", "Requests.", ["status"], registry=registry).labels("200").inc(count)
    Gauge("running", "At work.", registry=registry).set(count / 2)
    Histogram("seconds", "How long.", buckets=(1, 2), registry=registry).observe(count)
    Info("about", "The version.", registry=registry).info({"version": '0"1'})
    return generate_latest(registry)


def test_every_sample_gets_the_label_of_its_replica_and_nothing_else_changes() -> None:
    scrapes = {"a": scrape(1), "b": scrape(3)}
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(merge_metrics(scrapes).decode())
        for sample in family.samples
    }
    expected = {
        (sample.name, *sorted({**sample.labels, "replica": name}.items())): sample.value
        for name, text in scrapes.items()
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
    assert found == expected
    assert found["requests_total", ("replica", "b"), ("status", "200")] == 3


def test_a_family_is_described_once() -> None:
    lines = merge_metrics({"a": scrape(1), "b": scrape(2)}).decode().splitlines()
    described = [line for line in lines if line.startswith("#")]
    assert len(described) == len(set(described))
    assert "# TYPE requests_total counter" in described
    assert "# TYPE seconds histogram" in described
    assert 'about_info{replica="a",version="0\\"1"} 1.0' in lines


def test_no_replicas_give_no_samples() -> None:
    assert merge_metrics({}) == b""
