"""The workflows are valid and safe, and what they run works: the check of a tag, the changelog's section, the chart."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from .distributions import VERSIONS, build
from .docker.files import tool

ROOT = Path(__file__).parents[1]
WORKFLOWS = ROOT / ".github" / "workflows"
RELEASE = ROOT / ".ci" / "release.py"
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


def jobs(name: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((WORKFLOWS / name).read_text())["jobs"]
    return found


def steps(workflow: str) -> Iterator[Mapping[str, Any]]:
    for job in jobs(workflow).values():
        yield from job.get("steps", ())


NAMES = sorted(path.name for path in WORKFLOWS.iterdir())


def test_there_is_a_workflow_for_changes_and_one_for_releases() -> None:
    assert NAMES == ["ci.yml", "release.yml"]


def test_the_workflows_keep_to_the_schema() -> None:
    command = [tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, *(WORKFLOWS / name for name in NAMES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor_finds_no_weakness() -> None:
    command = [tool("zizmor"), "--offline", "--no-progress", "--persona", "pedantic", str(ROOT / ".github")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_scripts_are_bash_and_take_values_from_variables_alone(name: str) -> None:
    scripts = [step["run"] for step in steps(name) if "run" in step]
    assert scripts
    for script in scripts:
        assert "${{" not in script
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for path in re.findall(r"(?<!\S)\.ci/[\w.]+", script):
            assert (ROOT / path).is_file()


def test_every_change_passes_what_developers_run() -> None:
    test = jobs("ci.yml")["test"]["steps"]
    assert [step["run"] for step in test if "run" in step] == [".ci/run"]
    (setup,) = [step["with"] for step in test if "setup-python" in step.get("uses", "")]
    *others, default = setup["python-version"].split()
    assert {*others, default} == {*VERSIONS}
    assert default == "3.11"  # that of the lock: the last one is python3


def test_every_supported_python_installs_the_release() -> None:
    assert tuple(jobs("release.yml")["install"]["strategy"]["matrix"]["python"]) == VERSIONS


def needed(name: str, found: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return every job that has to succeed before the one called *name*."""
    direct = found[name].get("needs", [])
    direct = [direct] if isinstance(direct, str) else direct
    return {*direct}.union(*(needed(each, found) for each in direct))


def test_nothing_is_published_before_everything_is_tested_and_the_index_comes_last() -> None:
    found = jobs("release.yml")
    assert found["test"]["uses"].endswith("/.github/workflows/ci.yml")
    for name in ("image", "chart", "pypi", "release", "site"):
        assert {"build", "install", "test"} <= needed(name, found)
    assert {"image", "chart"} <= needed("pypi", found)
    assert all("pypi" in needed(name, found) for name in ("release", "site"))


def test_each_job_has_no_more_rights_than_it_needs() -> None:
    rights = {
        name: {right for right, access in job["permissions"].items() if access == "write"}
        for name, job in jobs("release.yml").items()
    }
    assert rights == {
        **{name: set[str]() for name in ("build", "install", "test")},
        **{name: {"packages"} for name in ("image", "chart")},
        "pypi": {"id-token"},
        **{name: {"contents"} for name in ("release", "site")},
    }
    assert jobs("release.yml")["pypi"]["environment"]["name"] == "pypi"
    assert all(yaml.safe_load((WORKFLOWS / name).read_text())["permissions"] == {} for name in NAMES)


def test_a_called_workflow_does_not_wait_for_its_caller() -> None:
    groups = [yaml.safe_load((WORKFLOWS / name).read_text())["concurrency"]["group"].lower() for name in NAMES]
    assert len({*groups}) == len(groups)
    assert not any("github.workflow " in group for group in groups)  # the caller's name, in both


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with what the script reads: version 1.2.0 is built, and the newest one in every file."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(RELEASE, tmp_path / ".ci")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    chart = tmp_path / "docker/helm/stepspec"
    chart.mkdir(parents=True)
    text = (ROOT / "docker/helm/stepspec/Chart.yaml").read_text()
    (chart / "Chart.yaml").write_text(re.sub(r"^(version|appVersion): .*$", r"\1: 1.2.0", text, flags=re.MULTILINE))
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "stepspec-1.2.0-py3-none-any.whl").touch()
    (dist / "stepspec-1.2.0.tar.gz").touch()
    return tmp_path


def release(project: Path, *arguments: str) -> tuple[int, str]:
    """Run the script of *project* as the workflow does; return its exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, ".ci/release.py", *arguments], cwd=project, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_the_notes_are_the_section_of_the_version(project: Path) -> None:
    newest = "### Added\n\n- A thing ([link](docs/thing.md)).\n\n### Fixed\n\n- Another.\n"
    assert release(project, "notes", "v1.2.0") == (0, newest)
    assert release(project, "notes", "v1.1.0") == (0, "- An older thing.\n")


@pytest.mark.parametrize("tag", ["v1.3.0", "v1.2", "Unreleased", "v"])
def test_a_version_without_a_section_has_no_notes(project: Path, tag: str) -> None:
    code, printed = release(project, "notes", tag)
    assert code == 1
    assert f"no section `## [{tag.removeprefix('v')}] - YYYY-MM-DD`" in printed


def test_a_tag_with_its_own_version_everywhere_is_let_through(project: Path) -> None:
    assert release(project, "check", "v1.2.0", "dist") == (0, "")


@pytest.mark.parametrize("tag", ["v1.3.0", "1.2.0", "v1.1.0"])
def test_another_tag_is_refused(project: Path, tag: str) -> None:
    code, printed = release(project, "check", tag, "dist")
    assert code == 1
    if tag == "1.2.0":
        assert printed == "1.2.0: the tag 1.2.0 does not begin with v\n"
    else:
        assert [line.partition(" ")[0] for line in printed.splitlines()] == [f"{tag}:"] * 4


def test_what_is_of_another_version_is_named(project: Path) -> None:
    (project / "dist/stepspec-1.2.0.tar.gz").rename(project / "dist/stepspec-1.2.1.dev1+g1.tar.gz")
    chart = project / "docker/helm/stepspec/Chart.yaml"
    chart.write_text(chart.read_text().replace("appVersion: 1.2.0", "appVersion: 1.1.0"))
    (project / "CHANGELOG.md").write_text(CHANGELOG.replace("[1.2.0] - 2026-12-01", "[1.2.0]"))
    code, printed = release(project, "check", "v1.2.0", "dist")
    assert code == 1
    assert printed.splitlines() == [
        "v1.2.0: dist holds stepspec-1.2.0-py3-none-any.whl, stepspec-1.2.1.dev1+g1.tar.gz instead of "
        "stepspec-1.2.0-py3-none-any.whl, stepspec-1.2.0.tar.gz",
        "v1.2.0: appVersion in docker/helm/stepspec/Chart.yaml is 1.1.0",
        "v1.2.0: the newest version of CHANGELOG.md is 1.1.0",
    ]


def test_wrong_arguments_are_answered_with_the_usage(project: Path) -> None:
    code, printed = release(project, "publish")
    assert code == 1
    assert "python .ci/release.py check v0.1.0 dist" in printed


def test_the_tag_of_this_changelog_could_be_released(tmp_path: Path) -> None:
    """Build these sources as the workflow does, from a repository whose only commit has the newest version's tag."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("these sources are not a clone")
    (version,) = re.findall(r"^## \[(\d[^\]]*)\] - ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[:1]
    clone = tmp_path / "clone"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name, follow_symlinks=False)
    identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "-c", "commit.gpgsign=false")
    for command in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "all"), ("tag", f"v{version}")):
        subprocess.run(["git", *identity, *command], cwd=clone, check=True, capture_output=True)
    build(clone, tmp_path / "dist")
    assert release(clone, "check", f"v{version}", str(tmp_path / "dist")) == (0, "")
    code, printed = release(clone, "notes", f"v{version}")
    assert code == 0
    assert printed.startswith("### Added\n")


PACKAGING = """
import sys
from helm_python import package

print(package(sys.argv[1], destination=sys.argv[2]))
"""


def test_the_packaged_chart_holds_what_its_links_lead_to(tmp_path: Path) -> None:
    chart = str(ROOT / "docker/helm/stepspec")
    done = subprocess.run([sys.executable, "-c", PACKAGING, chart, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (packed,) = tmp_path.glob("stepspec-*.tgz")
    with tarfile.open(packed) as opened:
        held = {member.name: member.size for member in opened.getmembers()}
        dashboard = opened.extractfile("stepspec/dashboards/stepspec.json")
        assert dashboard
        assert json.load(dashboard)["title"]
    assert held["stepspec/alerts/stepspec.yaml"] > 0
