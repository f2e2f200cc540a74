"""An option of a run is declared once, and appears everywhere by that alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from stepspec.orchestrator.run_options import (
    NOT_CALIBRATED,
    NOT_IN_ARMS,
    NOT_IN_REQUESTS,
    RunOptions,
    RunOverrides,
)

ROOT = Path(__file__).parents[1]

SCRIPT = '''
"""Import the package with one more option declared in `RunOptions`, and print where it appears."""
import importlib.machinery, json, os, sys

MODULE = "stepspec.orchestrator.run_options"
ANCHOR = "    delimiter: Delimiter = "
DUMMY = "    dummy: Count = 7\\n"

class Loader(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data, path, **more):
        before, anchor, after = data.decode().partition(ANCHOR)
        assert anchor, "the options of RunOptions have moved"
        return super().source_to_code((before + DUMMY + anchor + after).encode(), path, **more)

    def get_code(self, fullname):  # never a cached module, which has no dummy
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = Loader(name, spec.origin)
        return spec

sys.meta_path.insert(0, Finder)

from typer.testing import CliRunner
from stepspec import Solver, settings
from stepspec.cli import app
from stepspec.cli.eval import arm
from stepspec.evals.calibration.policy_file import changed_settings
from stepspec.service.formats.schemas import StepspecOptions

solver = Solver("http://small:1", "http://large:1", dummy=8)
os.environ["STEPSPEC_DUMMY"] = "9"
variable = settings.load().dummy
del os.environ["STEPSPEC_DUMMY"]
chosen = arm("specreason:dummy=4")
print(json.dumps({
    "default": settings.load().dummy,
    "solver": solver.settings.dummy,
    "variable": variable,
    "run": solver.settings.with_overrides({"dummy": 3}).dummy,
    "conditions": settings.load().conditions()["dummy"],
    "service": StepspecOptions.model_validate({"dummy": 5}).model_dump(exclude_none=True),
    "arm": chosen.run.dummy,
    "policy file": changed_settings(solver.settings)["dummy"],
    "flag": "--dummy" in CliRunner().invoke(app, ["solve", "--help"]).output,
}))
'''


def test_an_option_that_is_declared_once_appears_everywhere(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr.decode()
    assert orjson.loads(ran.stdout) == {
        "default": 7,
        "solver": 8,
        "variable": 9,
        "run": 3,
        "conditions": 7,
        "service": {"dummy": 5},
        "arm": 4,
        "policy file": 8,
        "flag": True,
    }


def test_type_checkers_know_every_option() -> None:
    assert RunOverrides.__annotations__.keys() == RunOptions.model_fields.keys()


def test_every_option_says_what_it_is() -> None:
    for name, field in RunOptions.model_fields.items():
        assert (field.description or "").endswith("."), name


@pytest.mark.parametrize("left_out", [NOT_CALIBRATED, NOT_IN_ARMS, NOT_IN_REQUESTS])
def test_only_options_are_left_out_of_something(left_out: set[str]) -> None:
    assert left_out < RunOptions.model_fields.keys()


def test_overrides_change_what_they_name_and_none_changes_nothing() -> None:
    options = RunOptions(policy="bild", options={"scale": "step"}, ahead=4)
    assert options.with_overrides({"ahead": None, "hedge": 0.5}) == options.model_copy(
        update={"hedge": 0.5}
    )
    assert options.with_overrides({"policy": "bild"}).options == {"scale": "step"}
    assert options.with_overrides({"policy": "specreason"}).options == {}
    assert options.with_overrides(
        {"policy": "specreason", "options": {"threshold": 8}}
    ).options == {"threshold": 8}
