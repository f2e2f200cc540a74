"""`make mutate` tries the current tree; its results for a module are kept until the module changes."""

import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab import mutate

MODULE, TESTS = "policies/one.py", "tests/test_one.py"


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
    for name, value in {**places, "SESSIONS": {"one": (MODULE, TESTS)}, "cosmic_ray": cosmic_ray}.items():
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


class Session:
    """Seven mutants, one in each line; the one in line 0 is caught, that in line 1 has survived."""

    def __init__(self) -> None:
        self.pending_work_items = [
            SimpleNamespace(job_id=line, mutations=[SimpleNamespace(start_pos=(line, 0))]) for line in (4, 2, 6, 3, 5)
        ]
        self.completed_work_items = [
            (SimpleNamespace(job_id=line, mutations=[]), SimpleNamespace(test_outcome=outcome))
            for line, outcome in ((0, "killed"), (1, "survived"))
        ]
        self.results: dict[int, str] = {}

    def set_result(self, job_id: int, result: tuple[str, str]) -> None:
        self.results[job_id] = result[0]


def always(outcome: str) -> Callable[[str, float, float], tuple[str, str]]:
    """Tests that have the same *outcome* for every mutant."""

    def run_forked(tests: str, seconds: float, limit: float) -> tuple[str, str]:
        return outcome, ""

    return run_forked


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch, session: Session) -> Any:
    """The program that runs the tests, without forks and with a session in the place of cosmic-ray's data base."""

    @contextmanager
    def use_db(path: Path, mode: str) -> Generator[Session]:
        yield session

    def mutate_and_test(mutations: object, tests: str, seconds: float) -> tuple[str, str]:
        return mutating.run_tests(tests, seconds)  # type: ignore[no-any-return]

    mutating: Any = SimpleNamespace(mutate_and_test=mutate_and_test)
    outcomes = SimpleNamespace(SURVIVED="survived", KILLED="killed")
    stubs = {
        "mutating": mutating,
        "work_db": SimpleNamespace(use_db=use_db, WorkDB=SimpleNamespace(Mode=SimpleNamespace(open="open"))),
        "work_item": SimpleNamespace(TestOutcome=outcomes),
    }
    for name, stub in stubs.items():
        monkeypatch.setitem(sys.modules, f"cosmic_ray.{name}", stub)
    monkeypatch.delitem(sys.modules, "lab.forked", raising=False)
    module = import_module("lab.forked")
    yield module
    del sys.modules["lab.forked"]


@pytest.mark.parametrize(("every", "tried"), [(1, [2, 3, 4, 5, 6, 1]), (2, [2, 4, 6, 1]), (5, [2, 1])])
def test_every_nth_untried_mutant_is_tried_in_the_order_of_the_source_and_each_survivor_again(
    forked: Any, monkeypatch: pytest.MonkeyPatch, session: Session, every: int, tried: list[int]
) -> None:
    monkeypatch.setattr(forked, "run_forked", always("survived"))
    forked.main(Path("session"), TESTS, every)
    assert list(session.results) == tried


def test_tests_that_fail_without_any_mutant_are_named(forked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "run_forked", always("killed"))
    with pytest.raises(SystemExit, match="the tests fail without any mutant: slow"):
        forked.main(Path("session"), "slow", 1)


def test_every_listed_module_exists_and_its_tests_too() -> None:
    top = Path(__file__).resolve().parents[2]
    assert set(mutate.POLICIES) == {path.stem for path in (top / "policies").glob("[a-z]*.py")}
    for module, tests in (*mutate.POLICIES.values(), *mutate.CORE.values()):
        for name in (module, *tests.replace(";", " ").split()):
            assert (top / name).is_file(), name
        assert tests
