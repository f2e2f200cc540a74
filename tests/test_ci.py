"""
The workflows are valid and safe, and the programs of .ci do what they say: release, audit, size.
"""

from __future__ import annotations

import ast
import datetime
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from .distributions import VERSIONS
from .docker.files import program, read, tool

ROOT = Path(__file__).parents[1]
WORKFLOWS = ROOT / ".github" / "workflows"
NAMES = sorted(path.name for path in WORKFLOWS.iterdir())
CHART = "docker/helm/stepspec"
CHANGELOG = """# Changelog

## [Unreleased]

## [1.2.0] - 2026-12-01

### Added

- A thing ([link](docs/thing.md)).

### Fixed

- Another.

## [1.1.0] - 2026-11-01

- An older thing.
"""


audit = program("audit")
size = program("size")


def jobs(name: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read(WORKFLOWS / f"{name}.yml")["jobs"]
    return found


def commands(workflow: str, job: str) -> list[str]:
    return [step["run"] for step in jobs(workflow)[job].get("steps", ()) if "run" in step]


@pytest.mark.parametrize(
    "command",
    [
        [
            "check-jsonschema",
            "--builtin-schema",
            "vendor.github-workflows",
            *(str(WORKFLOWS / name) for name in NAMES),
        ],
        ["zizmor", "--offline", "--no-progress", "--persona", "pedantic", str(ROOT / ".github")],
    ],
    ids=lambda command: command[0],
)
def test_the_workflows_keep_to_the_schema_and_have_no_weakness(command: list[str]) -> None:
    done = subprocess.run([tool(command[0]), *command[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("workflow", ["ci", "release"])
def test_scripts_are_bash_and_take_values_from_variables_alone(workflow: str) -> None:
    assert NAMES == ["ci.yml", "release.yml"]
    scripts = [script for job in jobs(workflow) for script in commands(workflow, job)]
    assert scripts
    for script in scripts:
        assert "${{" not in script
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for path in re.findall(r"(?<!\S)\.ci/[\w.]+", script):
            assert (ROOT / path).is_file()


def test_every_change_passes_what_developers_run_on_every_supported_python() -> None:
    assert commands("ci", "test") == [".ci/run"]
    (setup,) = [
        step["with"]
        for step in jobs("ci")["test"]["steps"]
        if "setup-python" in step.get("uses", "")
    ]
    *others, default = setup["python-version"].split()
    assert {*others, default} == {*VERSIONS}
    assert default == "3.11"  # that of the lock: the last one is python3
    assert tuple(jobs("release")["install"]["strategy"]["matrix"]["python"]) == VERSIONS


def needed(name: str, found: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return every job that has to succeed before the one called *name*."""
    direct = found[name].get("needs", [])
    direct = [direct] if isinstance(direct, str) else direct
    return {*direct}.union(*(needed(each, found) for each in direct))


def test_nothing_is_published_before_everything_is_tested_and_the_index_comes_last() -> None:
    found = jobs("release")
    assert found["test"]["uses"].endswith("/.github/workflows/ci.yml")
    for name in ("image", "chart", "pypi", "release", "site"):
        assert {"build", "install", "test"} <= needed(name, found)
    assert {"image", "chart"} <= needed("pypi", found)
    assert all("pypi" in needed(name, found) for name in ("release", "site"))


def test_each_job_has_no_more_rights_than_it_needs() -> None:
    rights = {
        name: {right for right, access in job["permissions"].items() if access == "write"}
        for name, job in jobs("release").items()
    }
    assert rights == {
        **{name: set[str]() for name in ("build", "install", "test")},
        **{name: {"packages"} for name in ("image", "chart")},
        "pypi": {"id-token"},
        **{name: {"contents"} for name in ("release", "site")},
    }
    assert jobs("release")["pypi"]["environment"]["name"] == "pypi"
    assert all(read(WORKFLOWS / name)["permissions"] == {} for name in NAMES)


def test_a_called_workflow_does_not_wait_for_its_caller() -> None:
    groups = [read(WORKFLOWS / name)["concurrency"]["group"].lower() for name in NAMES]
    assert len({*groups}) == len(groups)
    assert not any("github.workflow " in group for group in groups)  # the caller's name, in both


def test_the_workflows_audit_every_week_and_a_release_lists_what_it_brings() -> None:
    on: Any = yaml.safe_load((WORKFLOWS / "ci.yml").read_text())[True]  # YAML reads "on" as true
    assert on["schedule"]
    ran = [run for run in commands("ci", "audit") if "audit.py" in run]
    assert ran == ["python .ci/audit.py licences", "python .ci/audit.py vulnerabilities"]
    (pushed,) = commands("release", "image")
    assert "--sbom=true --provenance=mode=max --push" in pushed
    assert "cyclonedx-py environment" in "\n".join(commands("release", "build"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """
    A project with what the release reads: version 1.2.0 is built, and the newest one in every file.
    """
    for folder in (".ci", "dist", CHART):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / ".ci/release.py", tmp_path / ".ci")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    text = (ROOT / CHART / "Chart.yaml").read_text()
    text = re.sub(r"^(version|appVersion): .*$", r"\1: 1.2.0", text, flags=re.MULTILINE)
    (tmp_path / CHART / "Chart.yaml").write_text(text)
    distribute(tmp_path / "dist", "1.2.0")
    return tmp_path


def distribute(folder: Path, version: str) -> None:
    for ending in ("-py3-none-any.whl", ".tar.gz"):
        (folder / f"stepspec-{version}{ending}").touch()


def release(project: Path, *arguments: str) -> tuple[int, str]:
    """
    Run the script of *project* as the workflow does; return its exit code and what it printed.
    """
    command = [sys.executable, ".ci/release.py", *arguments]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "code", "wanted"),
    [
        (
            "notes v1.2.0",
            0,
            "### Added\n\n- A thing ([link](docs/thing.md)).\n\n### Fixed\n\n- Another.\n",
        ),
        ("notes v1.1.0", 0, "- An older thing.\n"),
        (
            "notes v1.3.0",
            1,
            "CHANGELOG.md has no section `## [1.3.0] - YYYY-MM-DD` with changes in it\n",
        ),
        (
            "notes Unreleased",
            1,
            "CHANGELOG.md has no section `## [Unreleased] - YYYY-MM-DD` with changes in it\n",
        ),
        ("check v1.2.0 dist", 0, ""),
        ("check 1.2.0 dist", 1, "1.2.0: the tag 1.2.0 does not begin with v\n"),
    ],
)
def test_a_release_has_the_notes_of_its_version(
    project: Path, words: str, code: int, wanted: str
) -> None:
    assert release(project, *words.split()) == (code, wanted)


def test_another_tag_is_refused_and_what_is_of_another_version_is_named(project: Path) -> None:
    code, printed = release(project, "check", "v1.1.0", "dist")
    assert (code, printed.count("v1.1.0: ")) == (1, 4)
    (project / "dist/stepspec-1.2.0.tar.gz").rename(project / "dist/stepspec-1.2.1.dev1+g1.tar.gz")
    chart = project / CHART / "Chart.yaml"
    chart.write_text(chart.read_text().replace("appVersion: 1.2.0", "appVersion: 1.1.0"))
    (project / "CHANGELOG.md").write_text(CHANGELOG.replace("[1.2.0] - 2026-12-01", "[1.2.0]"))
    code, printed = release(project, "check", "v1.2.0", "dist")
    assert code == 1
    assert printed.splitlines() == [
        (
            "v1.2.0: dist holds stepspec-1.2.0-py3-none-any.whl, stepspec-1.2.1.dev1+g1.tar.gz"
            " instead of stepspec-1.2.0-py3-none-any.whl, stepspec-1.2.0.tar.gz"
        ),
        f"v1.2.0: appVersion in {CHART}/Chart.yaml is 1.1.0",
        "v1.2.0: the newest version of CHANGELOG.md is 1.1.0",
    ]


def test_wrong_arguments_are_answered_with_the_usage(project: Path) -> None:
    code, printed = release(project, "publish")
    assert code == 1
    assert "python .ci/release.py check v0.1.0 dist" in printed


def test_the_tag_of_this_changelog_could_be_released(tmp_path: Path) -> None:
    (version,) = re.findall(
        r"^## \[(\d[^\]]*)\] - ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )[:1]
    distribute(tmp_path, version)
    assert release(ROOT, "check", f"v{version}", str(tmp_path)) == (0, "")
    code, printed = release(ROOT, "notes", f"v{version}")
    assert code == 0
    assert "### Added\n" in printed


PACKAGING = """
import sys
from helm_python import package

print(package(sys.argv[1], destination=sys.argv[2]))
"""


def test_the_packaged_chart_holds_what_its_links_lead_to(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PACKAGING, str(ROOT / CHART), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (packed,) = tmp_path.glob("stepspec-*.tgz")
    with tarfile.open(packed) as opened:
        held = {member.name: member.size for member in opened.getmembers()}
        dashboard = opened.extractfile("stepspec/dashboards/stepspec.json")
        assert dashboard
        assert json.load(dashboard)["title"]
    assert held["stepspec/alerts/stepspec.yaml"] > 0


def test_all_that_is_brought_along_has_an_accepted_licence() -> None:
    packages = audit.brought("stepspec", audit.EXTRAS)
    assert {"openai", "fastapi", "h11", "opentelemetry-sdk"} <= packages.keys()
    assert "torch" not in packages
    assert audit.check_licences(audit.accepted(), packages) == []


@pytest.mark.parametrize(
    ("field", "text", "complaint"),
    [
        ("License-Expression", "MIT AND (GPL-3.0-only OR Apache-2.0)", []),
        ("License-Expression", "MIT AND GPL-3.0-only", ["it: GPL-3.0-only"]),
        ("Classifier", "License :: OSI Approved :: MIT License", []),
        ("Classifier", "License :: OSI Approved :: GNU GPLv3", ["it: GNU GPLv3"]),
        ("License", "Apache 2.0\nthe whole text", []),
        ("Name", "it", ["it: none"]),
    ],
)
def test_a_licence_is_read_wherever_it_stands(field: str, text: str, complaint: list[str]) -> None:
    package = SimpleNamespace(metadata=Message())
    package.metadata[field] = text
    assert audit.check_licences(audit.accepted(), {"it": package}) == complaint


def test_an_exception_has_a_reason_and_ends() -> None:
    audit.exceptions(audit.accepted(), datetime.date.today())
    day = datetime.date(2027, 1, 31)
    entry = {"id": "GHSA-1", "why": "never called", "until": day}
    assert audit.exceptions({"vulnerabilities": [entry]}, day) == ["GHSA-1"]
    with pytest.raises(SystemExit, match="GHSA-1 was accepted until 2027-01-31: never called"):
        audit.exceptions({"vulnerabilities": [entry]}, day + datetime.timedelta(days=1))
    with pytest.raises(SystemExit, match="an exception has"):
        audit.exceptions({"vulnerabilities": [{"id": "x"}]}, day)


LONG = "\n".join(f"    x{number} = {number}" for number in range(61))
DEEP = """
def f():
    if a:
        for b in c:
            with d:
                try:
                    pass
                except E:
                    if g:
                        pass
"""
ELIFS = """
def f():
    if a: pass
    elif b: pass
    elif c: pass
    elif d: pass
    elif e: pass
"""
FUNCTION_WITHIN = """
def f():
    if a:
        def g():
            if b:
                while c: pass
"""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (f'def f():\n    """{LONG}"""\n    return 1', []),
        (f"def f():\n{LONG}", ["61 lines"]),
        ("def f(self, a, b, c, *, e, f, g): ...", []),
        ("async def f(a, b, c, d, *, e, f, g): ...", ["7 parameters"]),
        ("def f(a, b, c, d, e, f, g: Annotated[str, typer.Option()]): ...", []),
        ('@with_settings("eval")\ndef f(a, b, c, d, e, f, g: Limit): ...', []),
        (DEEP, ["5 blocks deep"]),
        (ELIFS, []),
        (FUNCTION_WITHIN, []),
    ],
)
def test_a_function_above_a_limit_is_found(source: str, found: list[str]) -> None:
    (function,) = ast.parse(source).body
    assert size.excess(function) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x = 1 if a else 2", []),
        ("x = 1 if a else 2 if b else 3", ["conditionals inside conditionals"]),
        ('x = "s" * (n != 1)', ["texts or tuples times a truth value"]),
        ("x = (a,) * bool(b)", ["texts or tuples times a truth value"]),
        ('x = ", of which few are known" * few', ["texts or tuples times a truth value"]),
        ('x = " " * width', []),
        ("a, b = x, y", ["packed assignments"]),
        ("a, b = b, a", []),
        ("a, b = c", []),
        ("if (a := b): pass", []),
        ("x = [a for a in b if (c := a)]", []),
        ("x = f(a := b)", [":= outside of if, while and comprehension filters"]),
        (f"# {'x' * 99}", ["lines above 100 characters"]),
    ],
)
def test_patterns_that_make_code_dense_are_found(source: str, found: list[str]) -> None:
    assert [name for name, _ in size.patterns(ast.parse(source), source)] == found


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "docs/decisions").mkdir(parents=True)
    (tmp_path / ".ci").mkdir()
    (tmp_path / "README.md").write_text("Four words of text.")
    (tmp_path / "src/api.py").write_text("class A:\n    def f(self, a, b, c, d, e, f, g): ...\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    return tmp_path


def test_a_decision_defends_a_function_above_a_limit(repository: Path) -> None:
    places = size.count_parts(repository)["package"].places["functions above the limits"]
    assert places == ["src/api.py:2 A.f: 7 parameters"]
    (repository / "docs/decisions/1.md").write_text("**`A.f` has 7\nparameters**, because")
    subprocess.run(["git", "add", "."], cwd=repository, check=True)
    assert size.count_parts(repository)["package"].places["functions above the limits"] == []


def test_figures_may_only_get_better(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = size.table(repository, size.count_parts(repository))
    size.record(repository, rows)
    assert size.check_ratchet(repository, rows) == 0
    (repository / "src/api.py").write_text("a, b = x, y if a else 1 if b else 2\n" + "#" * 101)
    worse = size.table(repository, size.count_parts(repository))
    assert size.check_ratchet(repository, worse) == 1
    printed = capsys.readouterr().out
    assert "package: conditionals inside conditionals: 1, was 0" in printed
    assert "package: lines above 100 characters: 1, was 0" in printed
    assert "package: packed assignments" not in printed  # 40 may be packed


def test_everything_that_make_quick_leaves_out_is_there() -> None:
    printed = subprocess.run(
        ["make", "--dry-run", "quick"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    left_out = re.findall(r"--ignore=(\S+)", printed.stdout)
    assert left_out
    assert [name for name in left_out if not (ROOT / name).exists()] == []
