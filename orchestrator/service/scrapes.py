"""The metrics of several services as those of one, told apart by a label."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

KIND = CONTENT_TYPE_LATEST
LABEL = "replica"


def together(scrapes: Mapping[str, bytes]) -> bytes:
    """Put *scrapes* together: texts in Prometheus' format, by the name of who told them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Told(scrapes))
    return generate_latest(registry)


@dataclass(frozen=True, eq=False)
class Told(Collector):
    """Collects what was told elsewhere."""

    scrapes: Mapping[str, bytes]

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for name, text in self.scrapes.items():
            for told in text_string_to_metric_families(text.decode()):
                family = families.setdefault(told.name, Metric(told.name, told.documentation, told.type))
                family.samples += [one._replace(labels={**one.labels, LABEL: name}) for one in told.samples]
        return families.values()
