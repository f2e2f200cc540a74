"""What stepspec brings along has licences that are accepted, and no exception outlives its day."""

from __future__ import annotations

import datetime
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DAY = datetime.date(2027, 1, 31)
EXCEPTION = {"id": "GHSA-1", "why": "never called", "until": DAY}


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Package:
    def __init__(self, **fields: str) -> None:
        self._fields = fields

    @property
    def metadata(self) -> Package:
        return self

    def get(self, name: str) -> str | None:
        return self._fields.get(name)

    def get_all(self, name: str) -> list[str] | None:
        return [f"License :: OSI Approved :: {self._fields[name]}"] if name in self._fields else None


def test_all_that_is_brought_along_has_an_accepted_licence(audit: ModuleType) -> None:
    packages = audit.brought("stepspec", audit.EXTRAS)
    assert {"openai", "fastapi", "h11", "opentelemetry-sdk"} <= packages.keys()
    assert "torch" not in packages
    assert audit.check_licences(audit.accepted(), packages) == []


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"License-Expression": "MIT AND (GPL-3.0-only OR Apache-2.0)"}, []),
        ({"License-Expression": "MIT AND GPL-3.0-only"}, ["it: GPL-3.0-only"]),
        ({"Classifier": "MIT License"}, []),
        ({"Classifier": "GNU General Public License v3 (GPLv3)"}, ["it: GNU General Public License v3 (GPLv3)"]),
        ({"License": "Apache 2.0\nthe whole text"}, []),
        ({}, ["it: none"]),
    ],
)
def test_a_licence_is_read_wherever_it_stands(audit: ModuleType, fields: dict[str, str], complaint: list[str]) -> None:
    assert audit.check_licences(audit.accepted(), {"it": Package(**fields)}) == complaint


def test_no_exception_is_over(audit: ModuleType) -> None:
    audit.exceptions(audit.accepted(), datetime.date.today())


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [(EXCEPTION, "GHSA-1 was accepted until 2027-01-31: never called"), ({"id": "x"}, "an exception has")],
)
def test_an_exception_has_a_reason_and_ends(audit: ModuleType, entry: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SystemExit, match=complaint):
        audit.exceptions({"vulnerabilities": [entry]}, DAY + datetime.timedelta(days=1))


def test_an_exception_counts_on_its_last_day(audit: ModuleType) -> None:
    assert audit.exceptions({"vulnerabilities": [EXCEPTION]}, DAY) == ["GHSA-1"]


def test_the_workflows_audit_every_week_and_a_release_lists_what_it_brings() -> None:
    workflows = {
        name: yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text()) for name in ("ci", "release")
    }
    assert workflows["ci"][True]["schedule"]  # YAML reads "on" as true
    ran = [step.get("run", "") for step in workflows["ci"]["jobs"]["audit"]["steps"]]
    assert [run for run in ran if "audit.py" in run] == [
        "python .ci/audit.py licences",
        "python .ci/audit.py vulnerabilities",
    ]
    (pushed,) = [step["run"] for step in workflows["release"]["jobs"]["image"]["steps"] if "run" in step]
    assert "--sbom=true --provenance=mode=max --push" in pushed
    built = "\n".join(step.get("run", "") for step in workflows["release"]["jobs"]["build"]["steps"])
    assert "cyclonedx-py environment" in built
