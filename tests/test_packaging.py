"""
The wheel and the sdist: what they hold, which version they have, and that every supported Python
runs them.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import unquote
from zipfile import ZipFile

import pytest
from packaging.version import Version

import stepspec

from .distributions import VERSIONS, Distributions, build, fresh, outside, python

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/stepspec"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REPOSITORY = "https://github.com/stepspec/stepspec"
FOLDERS = ["evals", "orchestrator", "policies", "prompts", "servers", "service"]


@pytest.fixture(scope="module")
def wheel(distributions: Distributions) -> Iterator[ZipFile]:
    with ZipFile(distributions.wheel) as opened:
        yield opened


def shipped() -> set[str]:
    """
    Return what the wheel must hold, under its names there: all but the README files of folders.
    """
    modules = {
        f"stepspec/{path.name}"
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or path.name == "py.typed"
    }
    modules |= {f"stepspec/cli/{path.name}" for path in (PACKAGE / "cli").glob("*.py")}
    return modules | {
        f"stepspec/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not path.name.startswith(".")
        and path.name != "README.md"
    }


def test_the_package_is_the_command_line_and_links_to_the_four_folders() -> None:
    assert stepspec.__file__ == str(PACKAGE / "__init__.py")
    found = sorted(p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__")
    assert found == ["cli", *FOLDERS]
    for folder in FOLDERS:
        assert (PACKAGE / folder).readlink() == Path("../..") / folder
        assert (PACKAGE / folder).resolve() == ROOT / folder


def test_the_wheel_holds_every_module_and_every_data_file_once(
    wheel: ZipFile, distributions: Distributions
) -> None:
    metadata = f"stepspec-{distributions.version}.dist-info/"
    held = [name for name in wheel.namelist() if not name.startswith(metadata)]
    assert len(held) == len(set(held))
    assert set(held) == shipped()


def test_the_wheel_imports_next_to_hostile_names(wheel: ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "site")
    hostile = tmp_path / "project"
    hostile.mkdir()
    for folder in FOLDERS:
        (hostile / f"{folder}.py").write_text("raise ImportError('the wrong one')")
    code = f"import sys, stepspec.{', stepspec.'.join(FOLDERS)}; print(stepspec.__file__)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=hostile,
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == str(tmp_path / "site/stepspec/__init__.py")


def test_the_installed_entry_points_are_those_declared() -> None:
    declared = PROJECT["project"]
    installed = {point.name: point.value for point in entry_points(group="console_scripts")}
    assert declared["scripts"].items() <= installed.items()
    # a plugin of vLLM would be loaded by every vLLM of the environment
    assert "entry-points" not in declared


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])  # a release tries all
def test_a_fresh_environment_runs_it_without_any_extra(
    distributions: Distributions, version: str, tmp_path: Path
) -> None:
    programs = fresh(tmp_path / "environment", python(version), str(distributions.wheel))

    def run(*command: str | Path) -> tuple[int, str]:
        done = subprocess.run(command, env=outside(), capture_output=True, text=True)
        return done.returncode, done.stderr

    assert run(ROOT / ".ci/smoke", programs, distributions.version) == (0, "")
    wrong = f"stepspec --version is '{distributions.version}' instead of '0.0.1'\n"
    assert run(ROOT / ".ci/smoke", programs, "0.0.1") == (1, wrong)
    hint = 'pip install "stepspec[serve]" (in a clone: ".[serve]")'
    needed = (
        f"error: `stepspec serve` needs fastapi, uvicorn, prometheus_client, structlog: {hint}\n"
    )
    assert unquote(run(programs / "stepspec", "serve")[1]) == needed


def test_every_supported_python_is_declared() -> None:
    declared = PROJECT["project"]
    prefix = "Programming Language :: Python :: 3."
    named = {
        "3." + each.removeprefix(prefix)
        for each in declared["classifiers"]
        if each.startswith(prefix)
    }
    assert named == {*VERSIONS}
    assert declared["requires-python"] == f">={VERSIONS[0]}"


def test_the_wheel_of_the_sdist_is_that_of_the_tree(
    distributions: Distributions, tmp_path: Path
) -> None:
    subprocess.run(["tar", "-xf", distributions.sdist, "-C", tmp_path], check=True)
    (source,) = tmp_path.iterdir()
    (again,) = build(source, tmp_path / "built", "wheel")
    assert again.name == distributions.wheel.name
    assert again.read_bytes() == distributions.wheel.read_bytes()


def test_the_sdist_holds_the_files_of_git_and_no_link(distributions: Distributions) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("these sources are not a clone")
    with tarfile.open(distributions.sdist) as packed:
        members = packed.getmembers()
    assert all(member.isreg() for member in members)
    held = {member.name.partition("/")[2] for member in members} - {"PKG-INFO"}
    tracked = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    links = tuple(f"docker/helm/stepspec/{name}/" for name in ("alerts", "dashboards"))
    assert {name for name in held if not name.startswith(links)} == tracked


def described(wheel: ZipFile) -> Message:
    (metadata,) = [
        name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)
    ]
    return Parser().parsestr(wheel.read(metadata).decode())


def test_twine_finds_nothing_to_complain_about(distributions: Distributions) -> None:
    command = [sys.executable, "-m", "twine", "--no-color", "check", "--strict"]
    done = subprocess.run(
        [*command, distributions.wheel, distributions.sdist], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


def test_the_package_index_shows_authors_and_addresses(wheel: ZipFile) -> None:
    metadata = described(wheel)
    assert metadata["Author"] == "The stepspec authors"
    addresses = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert {*addresses} == {"Homepage", "Documentation", "Repository", "Changelog", "Issues"}
    site = addresses.pop("Documentation")
    assert f"site_url: {site}" in (ROOT / "mkdocs.yml").read_text()
    assert all(address.startswith(REPOSITORY) for address in addresses.values())


def test_links_and_images_of_the_readme_work_on_the_package_index(
    wheel: ZipFile, distributions: Distributions
) -> None:
    shown = str(described(wheel).get_payload())
    targets = re.findall(r"(!?)\[[^\]]*\]\(([^)]*)\)", shown)
    assert len(targets) == len(re.findall(r"\]\([^)]*\)", (ROOT / "README.md").read_text()))
    assert all(target.startswith("https://") for _, target in targets)
    tag = f"v{distributions.version}"
    raw = f"https://raw.githubusercontent.com/stepspec/stepspec/{tag}/"
    page = f"{REPOSITORY}/blob/{tag}/"
    paths = {
        target.removeprefix(raw if image else page).partition("#")[0] for image, target in targets
    }
    assert {"docs/images/page-light.png", "docs/results.md", "LICENSE"} <= paths
    assert all((ROOT / path).exists() for path in paths)


def test_only_the_repository_says_that_there_is_no_release(wheel: ZipFile) -> None:
    shown = str(described(wheel).get_payload())
    assert "not on PyPI" not in shown
    assert "<!--" not in shown
    assert "pip install stepspec" in shown


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with one commit and what the version depends on."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = (
        "-c",
        "user.name=nobody",
        "-c",
        "user.email=nobody@localhost",
        "-c",
        "commit.gpgsign=false",
    )
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def version_of(folder: Path, **variables: str) -> str:
    command = [sys.executable, "-m", "hatchling", "version"]
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SETUPTOOLS_SCM", "GIT_"))
    }
    return subprocess.run(
        command, cwd=folder, env=env | variables, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_clone_without_tags_has_a_development_version_with_its_commit(clone: Path) -> None:
    commit = git(clone, "rev-parse", "--short=7", "HEAD")
    assert version_of(clone).startswith(f"0.1.0.dev1+g{commit}")


def test_the_version_is_that_of_the_tag_and_grows_after_it(clone: Path) -> None:
    git(clone, "tag", "unrelated")
    git(clone, "tag", "v1.2.3")
    assert version_of(clone) == "1.2.3"
    git(clone, "commit", "--quiet", "--allow-empty", "--message", "second")
    later = Version(version_of(clone))
    assert Version("1.2.3") < later < Version("1.2.4")
    assert later.is_devrelease
    git(clone, "tag", "v1.3.0rc1")
    assert version_of(clone) == "1.3.0rc1"
    (clone / "README.md").write_text("changed")
    assert Version(version_of(clone)).is_devrelease


def test_sources_without_git_have_the_version_that_they_are_given(clone: Path) -> None:
    fallback = PROJECT["tool"]["hatch"]["version"]["fallback-version"]
    shutil.rmtree(clone / ".git")
    assert version_of(clone) == fallback
    assert version_of(clone, SETUPTOOLS_SCM_PRETEND_VERSION_FOR_STEPSPEC="1.2.3") == "1.2.3"
