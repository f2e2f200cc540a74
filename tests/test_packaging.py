"""The wheel owns one import name, and everything in the four folders travels with it."""

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points, version
from pathlib import Path
from zipfile import ZipFile

import pytest

import stepspec

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/stepspec"
FOLDERS = ["evals", "orchestrator", "policies", "prompts"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    with ZipFile(built) as opened:
        yield opened


def shipped() -> set[str]:
    """Return what the wheel must hold, under its names there."""
    modules = {f"stepspec/{path.name}" for path in PACKAGE.iterdir() if path.suffix == ".py" or path.name == "py.typed"}
    modules |= {f"stepspec/cli/{path.name}" for path in (PACKAGE / "cli").glob("*.py")}
    return modules | {
        f"stepspec/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }


def test_the_package_is_the_four_folders_and_the_command_line() -> None:
    assert stepspec.__file__ == str(PACKAGE / "__init__.py")
    found = sorted(p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__")
    assert found == ["cli", *FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_link_points_at_the_real_folder(folder: str) -> None:
    link = PACKAGE / folder
    assert link.readlink() == Path("../..") / folder
    assert link.resolve() == ROOT / folder


def test_the_wheel_owns_one_import_name(wheel: ZipFile) -> None:
    assert {name.split("/")[0] for name in wheel.namelist()} == {
        "stepspec",
        f"stepspec-{version('stepspec')}.dist-info",
    }


def test_the_wheel_holds_every_module_and_every_data_file_once(wheel: ZipFile) -> None:
    held = [name for name in wheel.namelist() if name.startswith("stepspec/")]
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
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group, names in {
        "console_scripts": declared["scripts"],
        "vllm.general_plugins": declared["entry-points"]["vllm.general_plugins"],
    }.items():
        installed = {point.name: point.value for point in entry_points(group=group)}
        assert names.items() <= installed.items()
