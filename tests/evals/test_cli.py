"""
The plan that ``stepspec eval`` makes of its flags, and the arms that are named on the command line.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from stepspec import Budget
from stepspec import settings as configuration
from stepspec.cli import eval as eval_cli
from stepspec.cli.eval import arm, arms, calibrated
from stepspec.evals.arms import LARGE, PLAIN, SMALL
from stepspec.evals.benchmarks import Half, choose, duplicates, find, half, load, overlaps
from stepspec.evals.evaluation import Evaluation
from stepspec.evals.plan import Plan
from stepspec.evals.results import Result
from stepspec.evals.sample import Arm
from stepspec.evals.testbed import solving_pair
from stepspec.orchestrator.errors import ConfigurationError

from ..test_cli import call
from .scripted import DEAD, Connected, compared
from .test_results import ARMS, done

pytestmark = pytest.mark.usefixtures("nowhere")
TASKS = tuple(load(find("arithmetic"), limit=40))


def test_sampling_and_budget_come_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []

    async def evaluate(solver: object, evaluation: Evaluation, *_: object) -> list[Result]:
        plans.append(evaluation.plan)
        return []

    def show_nothing(*_: Any, **__: Any) -> None:
        pass

    monkeypatch.setattr(eval_cli, "Solver", Connected)
    monkeypatch.setattr(Connected, "require_both", lambda _: None)  # pyright: ignore
    monkeypatch.setattr(eval_cli, "evaluate", evaluate)
    monkeypatch.setattr(eval_cli, "show_results", show_nothing)
    words = "--top-p 0.9 --max-tokens 900 --max-steps 50 --seed 3 --concurrency 2"
    for samples in (1, 4):
        more = (*words.split(), "--samples", str(samples), "--limit", "3")
        assert call("eval", "arithmetic", *DEAD, *more) == 0
        made = plans.pop()
        assert (made.sampling.temperature, made.sampling.top_p) == (0.6, 0.9)
        assert made.budget == Budget(900, 50)
        assert (made.seed, made.concurrency, made.repeats) == (3, 2, samples)
        assert (len(made.tasks), made.arms[0].name) == (3, "plain")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("--temperature -1.0", "--temperature -1.0: Input should be greater than or equal to 0"),
        ("--max-seconds inf", "--max-seconds inf: a finite number"),
        ("--large ftp://host", "--large: 'ftp://host' is not the URL of a server"),
    ],
)
def test_flags_that_cannot_be_are_named(
    flags: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        call("eval", "arithmetic", "--small", "http://h:1", "--large", "http://h:2", *flags.split())
        == 2
    )
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "eval arithmetic --samples 2",
        "eval arithmetic --policy specreason:threshold=x",
        "eval arithmetic --policy reward",
        "calibrate arithmetic --policy specraeson",
        "calibrate arithmetic --policy reward",
        "calibrate arithmetic --values 9,nan",
        "calibrate arithmetic --max-loss nan",
        "calibrate arithmetic --policy bild --vary scale --values 1",
        "calibrate arithmetic --policy specreason --vary thresholds --values 1",
        "calibrate arithmetic --output .",
    ],
)
def test_impossible_options_are_refused_before_anything_starts(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("scipy")

    def start(*args: Any, **more: Any) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr(solving_pair, "running", start)
    assert call(*words.split(), "--testbed") == 2
    assert "error: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_arm_that_was_calibrated_on_the_measured_problems_is_reported_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"} for n in range(40)]
    (tmp_path / "rows.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    (tmp_path / "careful.toml").write_text(
        'policy = "specreason"\n[calibration]\nbenchmark = "gsm8k, calibration half"\n'
    )
    nobody = "http://localhost:9/v1"
    words = ["eval", "gsm8k", "--data", "rows.jsonl", "--policy", "careful.toml"]
    monkeypatch.setenv("STEPSPEC_LARGE__RETRIES", "0")
    monkeypatch.setenv("STEPSPEC_SMALL__RETRIES", "0")
    assert call(*words, "--small", nobody, "--large", nobody) == 1
    assert (
        "'careful' was calibrated on half of the problems that are measured here"
        in capsys.readouterr().err
    )


def write_rows(path: Path) -> Path:
    rows = [{"problem": task.problem, "answer": str(task.gold)} for task in TASKS]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def test_the_miniature_models_read_the_problems_of_a_file_without_a_template(
    tmp_path: Path,
) -> None:
    path = write_rows(tmp_path / "mine.jsonl")
    mine, file = choose(str(path))
    assert (mine.name, file) == ("mine", path)
    assert all("boxed" in task.problem for task in load(mine, path))
    bare = load(eval_cli.without_template(mine), path)
    assert [task.problem for task in bare] == [task.problem for task in TASKS]


HALVES: tuple[Half, ...] = ("report", "calibration")


def test_halves_share_no_problem_and_leave_none_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("scipy")
    tasks = eval_cli.tasks_of
    path = write_rows(tmp_path / "rows.jsonl")
    report, calibration = (tasks(find("arithmetic"), path, 0, part) for part in HALVES)
    assert {*report, *calibration} == set(tasks(find("arithmetic"), path, 0, None))
    assert len(report) + len(calibration) == len(TASKS)
    assert report
    assert calibration
    assert call("eval", "arithmetic", *DEAD, "--half", "report") == 2
    assert "leave --half out" in capsys.readouterr().err


def test_standings_are_shown_as_a_table_or_as_json(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    standings = compared(done(), ARMS)
    eval_cli.show_results(standings, LARGE.name, "a note", as_json=True)
    (line,) = capfdbinary.readouterr().out.splitlines()
    assert [arm["name"] for arm in orjson.loads(line)] == [s.name for s in standings]
    eval_cli.show_results(standings, LARGE.name, "a note", as_json=False)
    shown = capfdbinary.readouterr().out.decode()
    assert all(s.name in shown for s in standings)
    # nothing is cut off, however narrow the terminal
    assert "\u2026" not in shown.partition("a note")[0]


def test_the_command_line_imports_neither_the_openai_sdk_nor_packages_of_the_evals_extra() -> None:
    code = (
        "import sys, stepspec.cli; print(*{'openai', 'datasets', 'latex2sympy2_extended',"
        " 'pyarrow', 'sympy'} & set(sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.strip() == ""


def test_shared_options_are_those_of_methods_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "careful.toml").write_text('policy = "specreason"\n[options]\nthreshold = 9\n')
    specs = ["specreason", "specreason:threshold=8,ahead=0", str(tmp_path / "careful.toml")]
    plain, own_one, file = eval_cli.arms(specs, [], {"threshold": 5, "ahead": 1})
    assert (plain.name, plain.options, plain.run.ahead) == ("specreason", {"threshold": 5}, 1)
    assert (own_one.options, own_one.run.ahead) == ({"threshold": 8}, 0)
    assert file.options == {"threshold": 9}
    with pytest.raises(ConfigurationError, match="'large' has no option 'threshold'"):
        eval_cli.arms(["specreason", "large:lead=0"], [], {"threshold": 5})


def test_a_method_is_named_with_its_options_and_those_of_the_solver() -> None:
    assert arm("specreason") == Arm.of("specreason", "specreason")
    spec = "specreason:threshold=8.5, read=greedy,ahead=0,hedge=0.5"
    assert arm(spec) == Arm.of(
        spec, "specreason", {"threshold": 8.5, "read": "greedy"}, ahead=0, hedge=0.5
    )


def test_a_policy_file_is_an_arm_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "careful.toml"
    path.write_text(
        'policy = "bild"\nahead = 1\n[options]\nscale = "step"\n[small]\nurl = "http://h:1"\n'
    )
    assert arm(str(path)) == Arm.of("careful", "bild", {"scale": "step"}, ahead=1)


def test_baselines_come_first() -> None:
    found = arms(["specreason", "bild"], ["large"])
    assert found == (
        LARGE,
        Arm.of("specreason", "specreason"),
        Arm.of("bild", "bild"),
    )
    assert arms([], ["plain", "small", "plain"]) == (PLAIN, SMALL)


@pytest.mark.parametrize(
    ("chosen", "baselines", "complaint"),
    [
        (["specraeson"], [], "did you mean 'specreason'"),
        (
            ["specreason:limit=8"],
            [],
            "'specreason:limit=8': .* no option 'limit'; its options: threshold=7, ",
        ),
        (["specreason:thresholds=1"], [], "no option 'thresholds' .did you mean 'threshold'"),
        (["specreason:threshold=high"], [], "'threshold': a number from 0 to 9 .got 'high'"),
        (["choose:candidates=99"], [], "'candidates': a whole number from 1 to 20 .got 99"),
        (["specreason:threshold"], [], "write options as NAME=VALUE"),
        (["specreason:ahead=x"], [], "ahead: Input should be a valid integer"),
        (["specreason", "specreason"], [], "'specreason' is there twice"),
        (
            ["specreason"],
            ["medium"],
            "no such baseline: 'medium'; there are plain, large, small",
        ),
        (["nowhere.toml"], [], "nowhere.toml is no settings file"),
    ],
)
def test_unknown_names_are_refused(chosen: list[str], baselines: list[str], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        arms(chosen, baselines)


def test_an_arm_that_was_calibrated_on_the_measured_problems_has_a_warning(tmp_path: Path) -> None:
    path, plain, odd = (tmp_path / f"{name}.toml" for name in ("careful", "plain", "odd"))
    odd.write_text('policy = "bild"\ncalibration = "none"\n')
    path.write_text('policy = "bild"\n[calibration]\nbenchmark = "gsm8k, calibration half"\n')
    plain.write_text('policy = "bild"\n')
    found = calibrated(["specreason", str(path), str(plain), str(odd)])
    assert found == {"careful": "gsm8k, calibration half"}
    (half,) = overlaps(found, "gsm8k", None)
    assert "--half report" in half
    (warning,) = overlaps(found, "gsm8k", "calibration")
    assert "on the very problems that are measured here" in warning
    assert overlaps(found, "gsm8k", "report") == overlaps(found, "math500", None) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("ahead = 1", "names no policy"),
        ("policy = 3", "policy: Input should be a valid string"),
        ("policy = ", "no settings file"),
        ('policy = "bild"\noptions = 3', "options: Input should be a valid dictionary"),
        ('policy = "bild"\n[options]\nx = 1', "'x'"),
    ],
)
def test_a_policy_file_that_is_none_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=complaint):
        arm(str(path))


def test_without_a_policy_the_configured_method_is_measured(tmp_path: Path) -> None:
    settings = configuration.load(policy="bild", options={"rollback": 5}, answer="large")
    plain, configured = arms([], ["plain"], {}, settings)
    assert plain == PLAIN
    assert (configured.policy, configured.options) == ("bild", {"rollback": 5})
    assert configured.run.answer == "large"
    (_, chosen) = arms(["specreason"], ["plain"], {}, settings)
    assert (chosen.policy, chosen.options) == ("specreason", {})
    (_, again) = arms([], ["plain"], {"rollback": 7}, settings)
    assert again.options == {"rollback": 7}


def test_an_empty_half_is_named(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl")
    tasks = load(find("arithmetic"), path)
    one = next(number for number, task in enumerate(tasks) if half(task) == "calibration")
    path.write_bytes(path.read_bytes().splitlines()[one])
    with pytest.raises(ConfigurationError, match="is in its report half: take more problems"):
        eval_cli.tasks_of(find("arithmetic"), path, 0, "report")


def test_problems_that_are_there_before_are_counted_in_a_remark() -> None:
    assert duplicates(TASKS[:10]) == []
    (remark,) = duplicates([*TASKS[:10], *TASKS[:3]])
    assert remark.startswith("3 of 13 problems are there before")


def test_a_csv_file_is_a_benchmark(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text('problem,answer\n"What is 1,000 + 1?",1001\nWhat is 2 + 2?,4\n')
    chosen, file = choose(str(path))
    tasks = load(chosen, file)
    assert [str(task.gold) for task in tasks] == ["1001", "4"]
    assert "1,000 + 1" in tasks[0].problem
