"""
`make mutate` tries the current tree; its results for a module are kept until the module changes.
"""

import subprocess
from pathlib import Path

import pytest

from tests import mutate

MODULE = "policies/one.py"
TESTS = "tests/test_one.py"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one module; cosmic-ray writes the mutants' names at the start."""
    for name, text in {MODULE: "ONE = 1\n", TESTS: "", ".gitignore": "build\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(("git", "init", "-q"), cwd=tmp_path, check=True)

    def cosmic_ray(command: str, *arguments: str) -> str:
        if arguments[0] == "init":
            Path(arguments[2]).write_text("not one tried")
        return ""

    work = tmp_path / "build" / "mutation"
    places = {"ROOT": tmp_path, "WORK": work, "TREE": work / "tree", "SITE": work / "site"}
    for name, value in {
        **places,
        "SESSIONS": {"one": (MODULE, TESTS)},
        "cosmic_ray": cosmic_ray,
    }.items():
        monkeypatch.setattr(mutate, name, value)
    places["SITE"].mkdir(parents=True)
    mutate.prepare()
    return tmp_path


def test_the_copy_is_the_tree_as_it_is_now(root: Path) -> None:
    (mutate.TREE / MODULE).write_text("ONE = 2\n")  # a mutant, whose run was interrupted
    (root / "policies" / "two.py").write_text("TWO = 2\n")
    (root / TESTS).unlink()
    mutate.prepare()
    assert sorted(str(path.relative_to(mutate.TREE)) for path in mutate.TREE.rglob("*.py")) == [
        MODULE,
        "policies/two.py",
    ]
    assert (mutate.TREE / MODULE).read_text() == "ONE = 1\n"


def test_a_started_module_is_resumed_though_other_modules_change(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mutate.begin("one").write_text("half of them tried")
    (root / "policies" / "two.py").write_text("TWO = 2\n")
    (root / TESTS).write_text("# another one\n")
    mutate.prepare()
    assert mutate.begin("one").read_text() == "half of them tried"
    assert not capsys.readouterr().out


@pytest.mark.parametrize("edited", ["module", "tests", "never kept"])
def test_an_edited_module_or_one_with_other_tests_starts_again(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, edited: str
) -> None:
    mutate.begin("one").write_text("half of them tried")
    match edited:
        case "module":
            (root / MODULE).write_text("ONE = 1  # at most\n")
        case "tests":
            monkeypatch.setattr(mutate, "SESSIONS", {"one": (MODULE, f"{TESTS} tests/test_two.py")})
        case _:
            (mutate.WORK / "one.py").unlink()
    mutate.prepare()
    assert mutate.begin("one").read_text() == "not one tried"
    assert "one: begun anew" in capsys.readouterr().out
    assert mutate.begin("one").read_text() == "not one tried"
    assert not capsys.readouterr().out


def test_every_listed_module_exists_and_its_tests_too() -> None:
    top = Path(__file__).resolve().parents[1]
    assert set(mutate.POLICIES) == {path.stem for path in (top / "policies").glob("[a-z]*.py")}
    for module, tests in (*mutate.POLICIES.values(), *mutate.CORE.values()):
        for name in (module, *tests.replace(";", " ").split()):
            assert (top / name).is_file(), name
        assert tests
