"""
Benchmarks: problems as they are put, answers as they are graded, and clear words where there is no
data.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from stepspec.evals.benchmarks import BENCHMARKS, Benchmark, choose, find, load, read_benchmark
from stepspec.evals.benchmarks.loading import Row
from stepspec.evals.grading.answers import LETTERS
from stepspec.evals.grading.graders import Answer
from stepspec.evals.sample import Task
from stepspec.orchestrator.errors import ConfigurationError, install_command

DATA = Path(__file__).parent / "data"
DOCS = Path(__file__).parents[2] / "docs"


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def question(number: int = 1) -> dict[str, Any]:
    wrong = {f"Incorrect Answer {at}": f"wrong {at}" for at in (1, 2, 3)}
    return {"Question": f"What is it, {number}?", "Correct Answer": "right", **wrong}


@pytest.mark.parametrize("benchmark", BENCHMARKS.values(), ids=BENCHMARKS)
def test_the_documentation_states_the_source_and_the_licence_of_every_benchmark(
    benchmark: Benchmark,
) -> None:
    lines = (DOCS / "evals.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"| `{benchmark.name}` |")]
    _, _, source, _, licence, metric, _ = [cell.strip() for cell in line.split("|")]
    assert benchmark.source in source
    assert (benchmark.subset or "") in source
    assert licence == benchmark.licence
    assert metric in ("mathematical object", "number", "letter", "text")


def test_problems_are_put_into_the_template_and_stand_alone_without() -> None:
    math, *_ = load(find("math500"), DATA / "math500.jsonl")
    assert math.problem.startswith("Add $\\frac{1}{3}$")
    assert math.problem.endswith(r"end with the final answer in \boxed{}.")
    assert (str(math.gold), math.name) == (r"\frac{1}{2}", "own/1")
    crates, pens = load(find("gsm8k"), DATA / "gsm8k.jsonl")
    assert (str(crates.gold), str(pens.gold)) == ("1,080", "5")
    assert load(find("arithmetic"), limit=1)[0].problem.endswith("now?")


def test_problems_that_are_made_are_the_same_for_the_same_seed_however_many() -> None:
    few, many = (load(find("arithmetic"), seed=3, limit=count) for count in (5, 9))
    assert few == many[:5]
    assert load(find("arithmetic"), seed=4, limit=5) != few


def test_choices_are_shuffled_by_the_seed_together_with_the_right_letter(tmp_path: Path) -> None:
    path = write(tmp_path / "gpqa.jsonl", *map(question, range(200)))
    tasks = load(find("gpqa_diamond"), path, seed=1)
    for task in tasks:
        assert re.search(rf"^\({task.gold!s}\) right$", task.problem, re.MULTILINE)
        assert task.problem.count("wrong") == 3
    assert set(Counter(str(task.gold) for task in tasks)) == set(LETTERS[:4])
    assert max(Counter(str(task.gold) for task in tasks).values()) < 80
    assert load(find("gpqa_diamond"), path, seed=1) == tasks
    assert load(find("gpqa_diamond"), path, seed=2) != tasks


@pytest.mark.parametrize(
    ("name", "row", "answer"),
    [
        ("aime24", {"problem": "p", "answer": "033"}, "033"),
        ("aime25", {"problem": "p", "answer": 70}, "70"),
        ("amc23", {"question": "p", "answer": 27.0}, "27.0"),
        ("arithmetic", {"problem": "p", "answer": 5}, "5"),
        ("gsm8k", {"question": "p", "answer": 18}, "18"),
        (
            "math500",
            {"problem": "p", "answer": 0, "unique_id": 7, "solution": None, "level": [5]},
            "0",
        ),
        (
            "gpqa_diamond",
            question() | {"Correct Answer": 4, "Incorrect Answer 1": 2.5, "Record ID": 1},
            "D",
        ),
    ],
)
def test_answers_may_be_numbers_in_the_data(
    tmp_path: Path, name: str, row: dict[str, Any], answer: str
) -> None:
    (task,) = load(find(name), write(tmp_path / "rows.jsonl", row))
    assert str(task.gold) == answer
    assert {type(getattr(task, field)) for field in Task.__dataclass_fields__} == {str, Answer}


@pytest.mark.parametrize(
    ("name", "row", "complaint"),
    [
        (
            "gsm8k",
            {"question": "q", "answer": [18]},
            r"row 1: 'answer' is \[18\], where a text or a number has to be",
        ),
        (
            "gsm8k",
            {"question": "q", "answer": "so it is ####  "},
            "row 1: no answer in {'question': 'q', 'answer': 'so it is ####",
        ),
        (
            "math500",
            {"problem": {"text": "q"}, "answer": "1"},
            r"row 1: 'problem' is \{'text': 'q'\}",
        ),
        ("math500", {"problem": "q", "answer": True}, "row 1: 'answer' is True"),
        ("aime25", {"problem": " ", "answer": 70}, "row 1: 'problem' is ' '"),
        (
            "gpqa_diamond",
            question() | {"Incorrect Answer 2": [1]},
            r"row 1: 'Incorrect Answer 2' is \[1\]",
        ),
    ],
)
def test_a_value_that_is_neither_text_nor_number_is_refused_with_its_row(
    tmp_path: Path, name: str, row: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"rows\.jsonl, {complaint}"):
        load(find(name), write(tmp_path / "rows.jsonl", row))


def trivia(row: Row, seed: int) -> Task:
    return Task(row["question"], Answer(row["answers"], "exact"))


TRIVIA = Benchmark(
    "trivia", "CC0", ("question", "answers"), trivia, prompt=None, lists=("answers",)
)


@pytest.mark.parametrize(
    ("answers", "lines"),
    [
        (["Ulm", "Ulm an der\nDonau"], "Ulm\nUlm an der Donau"),
        ([1879, "1879 AD"], "1879\n1879 AD"),
        ("Ulm", "Ulm"),
    ],
)
def test_a_column_may_hold_a_list_of_texts_of_which_each_has_a_line(
    tmp_path: Path, answers: Any, lines: str
) -> None:
    path = write(tmp_path / "rows.jsonl", {"question": "Where?", "answers": answers})
    (task,) = load(TRIVIA, path)
    assert str(task.gold) == lines


@pytest.mark.parametrize("answers", [[], ["Ulm", ["Ulm"]], ["Ulm", " "], {"text": "Ulm"}])
def test_a_list_of_anything_but_texts_is_refused(tmp_path: Path, answers: Any) -> None:
    path = write(tmp_path / "rows.jsonl", {"question": "Where?", "answers": answers})
    with pytest.raises(
        ConfigurationError, match=r"row 1: 'answers' is .* a list of texts has to be"
    ):
        load(TRIVIA, path)


def test_a_benchmark_of_one_column_may_lack_an_answer(tmp_path: Path) -> None:
    def read(row: Row, seed: int) -> Task:
        return Task(row["text"], Answer("", "exact"))

    path = write(tmp_path / "rows.jsonl", {"text": "Where?"})
    with pytest.raises(ConfigurationError, match=r"row 1: no answer in \{'text': 'Where\?'\}"):
        load(Benchmark("one", "CC0", ("text",), read), path)


def test_a_parquet_file_has_the_same_rows(tmp_path: Path) -> None:
    if importlib.util.find_spec("pyarrow") is None:
        pytest.skip("without pyarrow")
    rows = [orjson.loads(line) for line in (DATA / "gsm8k.jsonl").read_bytes().splitlines()]
    arrow = importlib.import_module("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    assert load(find("gsm8k"), tmp_path / "x.parquet") == load(find("gsm8k"), DATA / "gsm8k.jsonl")
    nan = [{"question": "q", "answer": float("nan")}]
    parquet.write_table(arrow.Table.from_pylist(nan), tmp_path / "nan.parquet")
    with pytest.raises(ConfigurationError, match=r"nan\.parquet, row 1: 'answer' is nan"):
        load(find("gsm8k"), tmp_path / "nan.parquet")


@pytest.mark.parametrize("content", [b"", b"PAR1" + bytes(40) + b"PAR1"])
def test_a_parquet_file_that_is_broken_is_refused(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "broken.parquet"
    path.write_bytes(content)
    with pytest.raises(
        ConfigurationError, match=r"broken\.parquet: no Parquet file that can be read \(\w+"
    ):
        load(find("gsm8k"), path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            b'{"question": "q"}\n',
            (
                r"row 1: 'answer' missing or null; gsm8k needs 'question', 'answer', and there are"
                r" 'question'"
            ),
        ),
        (b'{"question": "q", "answer": null}\n', r"row 1: 'answer' missing or null"),
        (
            b'{"question": "q", "answer": "#### 1"}\n{"quest',
            r"line 2: not JSON .* one JSON object on a line",
        ),
        (rb'{"question": "\ud83d", "answer": "1"}', r"row 1: 'question' is '\\ud83d'"),
        (b"[1]\n", "line 1: not a JSON object"),
        (b"\n", "no problems in"),
    ],
)
def test_a_file_that_will_not_do_is_refused_by_its_line(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=complaint):
        load(find("gsm8k"), path)


def test_an_unknown_file_or_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no data at .*nowhere\.jsonl"):
        load(find("gsm8k"), tmp_path / "nowhere.jsonl")
    with pytest.raises(
        ConfigurationError, match=r"\(did you mean 'math500'\?\); the benchmarks: math500, gsm8k"
    ):
        find("math-50")


def test_without_a_network_the_error_names_the_option_to_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load_dataset(*names: object, **more: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    cure = "pass --data FILE, a JSONL, CSV or Parquet file with the columns 'problem', 'answer'"
    with pytest.raises(
        ConfigurationError, match=f"cannot load HuggingFaceH4/MATH-500 .*: no route. .* {cure}"
    ):
        load(find("math500"))


def test_without_the_library_the_error_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ConfigurationError, match=re.escape(f"needs datasets: {install_command('evals')}, or")
    ):
        load(find("gsm8k"))


def test_columns_metric_and_prompt_of_a_file_are_the_users_choice(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", {"q": "What is {this}?", "a": "7", "id": "first"})
    template = tmp_path / "ask.txt"
    template.write_text("Think, then answer in \\boxed{}.\n{problem}\n")
    benchmark, file = choose(
        str(path), problem="q", answer="a", metric="number", prompt=str(template)
    )
    assert file == path
    (task,) = load(benchmark, file)
    assert task.problem == "Think, then answer in \\boxed{}.\nWhat is {this}?"
    assert (task.question, task.gold, task.name) == (
        "What is {this}?",
        Answer("7", "number"),
        "first",
    )
    assert (benchmark.name, benchmark.prompt) == ("mine", str(template))
    bare_one, _ = choose(str(path), problem="q", answer="a", prompt="none")
    (bare_task,) = load(bare_one, path)
    assert (bare_task.problem, bare_task.gold) == ("What is {this}?", Answer("7"))
    letters = [{"q": "Which?", "a": gold} for gold in ("b", "(B)", "B) 42")]
    file = write(tmp_path / "letters.jsonl", *letters)
    lettered, _ = choose(str(file), problem="q", answer="a", metric="choice")
    assert {task.gold for task in load(lettered, file)} == {Answer("B", "choice")}


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (
            {"metric": "maths"},
            "--metric maths: there is no such metric; the metrics: math, number, choice, exact",
        ),
        (
            {"prompt": "gone.txt"},
            (
                "--prompt gone.txt cannot be read: No such file.*none, or one of: eval.boxed,"
                " eval.choice"
            ),
        ),
        ({"prompt": "check"}, r"--prompt check: the text needs \{problem\}"),
    ],
)
def test_a_wrong_choice_for_a_file_names_the_flag(
    flags: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "mine.jsonl", {"problem": "1 + 1?", "answer": "2"})
    with pytest.raises(ConfigurationError, match=complaint):
        choose(str(path), **flags)


def test_choices_for_a_file_are_refused_for_a_benchmark_with_a_name() -> None:
    for flag in ("problem", "answer", "metric", "prompt"):
        chosen: Any = {flag: "number"}
        with pytest.raises(ConfigurationError, match=f"--{flag}.* is for a file of your own"):
            choose("math500", **chosen)


def no_problems(seed: int, count: int) -> list[Task]:
    return []


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("math500", "is no Benchmark"),
        (
            replace(find("math500"), made=no_problems),
            "needs one of a source, a file and a function",
        ),
        (replace(find("math500"), source=""), "needs one of a source, a file and a function"),
        (replace(find("math500"), prompt="eval.box"), "there is no prompt 'eval.box'"),
    ],
)
def test_what_cannot_be_a_benchmark_of_a_plugin_is_refused(value: object, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        read_benchmark("mine", value)


def test_a_benchmark_of_a_plugin_has_the_name_of_its_entry_point() -> None:
    assert read_benchmark("mine", find("math500")) == replace(find("math500"), name="mine")
