"""
The command line: errors that name the cause and the cure, what it prints, and ``stepspec trace``.
"""

from __future__ import annotations

import io
import re
import sys
from importlib.metadata import version
from pathlib import Path

import orjson
import pytest

from stepspec import __version__, cli
from stepspec.cli.program import stderr
from stepspec.cli.terminal import RunPrinter
from stepspec.orchestrator.events import Decided, Degraded
from stepspec.policies import METHODS
from stepspec.service.watch.page import html

from .service.watch.page.made import made
from .stand_in import stand_in_process

PAIR = Path(__file__).parents[1] / "recipes" / "miniature.toml"
DEAD = "--small", "http://127.0.0.1:1", "--large", "http://127.0.0.1:1"


def call(*arguments: str) -> int:
    """Run the command; return its exit code."""
    sys.argv = ["stepspec", *arguments]
    try:
        cli.main()
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    return 0


@pytest.fixture(autouse=True)
def wide(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["solve", "1 + 1"],
            "no small model and no large model: pass --small URL and --large URL",
        ),
        (["solve", "1 + 1", "--small", "http://127.0.0.1:9"], "no large model"),
        (["solve", "  "], "the problem is empty"),
        (["solve", "p.txt", *DEAD], "p.txt is a file: write --problems p.txt"),
        (["solve"], "name one problem, - for standard input, or a file of them with --problems"),
        (
            ["solve", "x", "--limit", "3"],
            "--limit, --concurrency and --fresh are only for a file of problems",
        ),
        (
            ["solve", "x", "--fresh"],
            "--limit, --concurrency and --fresh are only for a file of problems",
        ),
        (["solve", "--problems", "nope.txt"], "no problems in nope.txt: No such file or directory"),
        (["solve", "--problems", "nope.txt", "--fresh"], "name it"),
        (["solve", "x", "-o", "."], "--output .: no file that can be written"),
        (["solve", "--problems", "x" * 300], "File name too long"),
        (["report", "x" * 300], "File name too long"),
        (["config", "show", "--config", "x" * 300], "File name too long"),
        (
            ["solve", "--problems", "p.txt", "-o", "p.txt", "--fresh", *DEAD],
            "--output p.txt is the file of the problems: name another",
        ),
        (["solve", "x", "-o", "p.txt/x", *DEAD], "--output p.txt/x: p.txt is no folder"),
        (
            ["solve", "x", *DEAD, "--trace", "/proc/none/run.jsonl"],
            "--trace /proc/none/run.jsonl: ",
        ),
        (["solve", "x", "--small", "localhost:9131"], "write it like http://localhost:8000/v1"),
        (["solve", "x", "--small-api-key", "k"], "small.url"),
        (
            ["solve", "x", "--config", "nowhere.toml"],
            "--config names 'nowhere.toml', which is not a file",
        ),
        (
            ["solve", "x", "--temperature", "7"],
            "--temperature 7.0: Input should be less than or equal to 2",
        ),
        (["solve", "x", "-O", "threshold"], "write it as NAME=VALUE"),
        (["solve", "x", *DEAD, "-O", "threshold=80"], "--option threshold: policy 'specreason'"),
        (
            ["solve", "x", *DEAD, "-p", "specreasn"],
            "no policy 'specreasn' (did you mean 'specreason'?)",
        ),
        (
            ["solve", "x", *DEAD, "-p", "bild", "-O", "run=0"],
            "option 'run': a whole number of 1 or more (got 0)",
        ),
        (["solve", "x", *DEAD, "-p", "reward"], "pass --critic URL"),
        (
            ["serve", *DEAD, "-O", "threshold=NaN"],
            "option 'threshold': a number from 0 to 9 (got 'NaN')",
        ),
        (["serve", *DEAD, "--host", "0.0.0.0"], "--insecure"),
        (["policies", "chose"], "no policy 'chose' (did you mean 'choose'?)"),
        (["up"], "pass --testbed"),
        (["up", "pair.toml", "--testbed"], "pass --testbed"),
        (["up", "nowhere.toml"], "nowhere.toml: No such file"),
        (
            ["up", "pair.toml", "--speculation", "ngram"],
            "--profile and --speculation are only for --testbed: write",
        ),
        (["up", "--testbed", "--dry-run"], "recipes/miniature.toml has the miniature pair"),
        (
            ["up", "--testbed", "--profile", "foo"],
            "'foo' is not one of 'paced', 'slow', 'off'",
        ),
        (
            ["up", "--testbed", "--speculation", "foo"],
            "'foo' is not one of 'none', 'ngram', 'draft_model'",
        ),
        (["eval", "math-50"], "did you mean 'math500'"),
        (
            ["eval", "arithmetic", *DEAD, "-p", "specreason:threshold=high"],
            "a number from 0 to 9 (got 'high')",
        ),
        (
            ["eval", "arithmetic", *DEAD, "-p", "specreason:ahead=-1"],
            "ahead: Input should be greater than or equal",
        ),
        (
            ["eval", "gsm8k", *DEAD, "-p", "specreason", "-p", "bild", "-O", "scale=step"],
            "no option 'scale'",
        ),
        (
            ["eval", "arithmetic", "--testbed", "--small", "http://h:1"],
            "leave out either it or --small",
        ),
        (["eval", "arithmetic", "--half", "both"], "is not one of"),
        (["eval", "arithmetic", *DEAD, "-o", "p.txt"], "--output p.txt: p.txt is no folder"),
        (["eval", "arithmetic", *DEAD, "-o", "/no-such/x"], "there is no folder /no-such"),
        (["eval", "arithmetic", "--data", "nowhere.jsonl"], "no data at nowhere.jsonl"),
        (["eval", "nowhere.parquet", "--data", "x.jsonl"], "leave --data out"),
        (["calibrate", "arithmetic", *DEAD, "-p", "specreasn"], "did you mean 'specreason'"),
        (
            ["tune", *DEAD[:3], "http://127.0.0.1:2", "-p", "bild:scael=step"],
            "did you mean 'scale'",
        ),
        (["trace", "nowhere.jsonl"], "nowhere.jsonl: No such file"),
        (["trace", "p.txt"], "p.txt: not a line of a trace"),
        (
            ["trace", "empty.jsonl"],
            "empty.jsonl: not a trace: it does not begin with the event Started",
        ),
        (["trace", "."], "Is a directory"),
        (["trace", "run.jsonl", "-o", "."], "--output .: no file that can be written"),
        (
            ["trace", "run.jsonl", "-o", "run.jsonl"],
            "run.jsonl is the trace itself: name another file",
        ),
        (
            ["config", "show", "--config", str(PAIR)],
            "small.url: Field required (the file of a pair is for `stepspec",
        ),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    arguments: list[str], complaint: str, files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {*files.iterdir()}
    assert call(*arguments) == 2
    printed = capfd.readouterr()
    assert complaint in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert {*files.iterdir()} == before


@pytest.mark.parametrize("words", [["-"], ["--problems", "-"]])
def test_standard_input_without_a_text_is_wrong_use(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for content, complaint in (
        (b"\xe9", "it is not UTF-8"),
        (b"\xef\xbb\xbf\r\n", "is empty"),
        (None, "is empty"),
    ):
        monkeypatch.setattr(
            sys, "stdin", content and io.TextIOWrapper(io.BytesIO(content), "utf-8")
        )
        assert call("solve", *words, *DEAD) == 2
        assert complaint in capfd.readouterr().err


def test_brackets_in_the_words_of_a_server_are_no_markup(capfd: pytest.CaptureFixture[str]) -> None:
    RunPrinter(stderr)(Degraded("small", "no [/INST] in [small]"))
    assert "no [/INST] in [small]" in capfd.readouterr().err


def test_where_the_large_model_writes_alone_the_first_step_says_why(
    capfd: pytest.CaptureFixture[str],
) -> None:
    show = RunPrinter(stderr)
    show(Decided(0, "large", 1, reason="not measured"))
    show(Decided(1, "large", 1, reason="not measured"))
    show(Decided(2, "method", 1, figures="its pace"))
    show(Decided(9, "large", 1, reason="its pace", figures="logged already"))
    assert (
        capfd.readouterr().err
        == "the large model writes alone: not measured\nthe method goes on: its pace\n"
    )


def test_what_a_closed_standard_output_loses_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for words in (["policies"], ["policies", "--json"]):
        monkeypatch.setattr(sys, "stdout", None)
        assert call(*words) == 1
        sys.stdout.close()
        assert (
            "error: standard output, or a file, cannot be written: Bad file descr"
            in capfd.readouterr().err
        )


def test_a_dead_server_is_named_and_exit_code_1(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("solve", "x", "--small", "http://127.0.0.1:9", "--large", "http://127.0.0.1:9") == 1
    assert "http://127.0.0.1:9" in capfd.readouterr().err


def test_policies_are_listed_one_a_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert call("policies", "--json") == 0
    listed = orjson.loads(capfd.readouterr().out)
    assert listed["specreason"]["options"]["threshold"]["default"] == 7
    assert call("policies") == 0
    # rich may still hold what an earlier test could not print
    lines = capfd.readouterr().out.splitlines()[-len(METHODS) :]
    assert [line.split(maxsplit=1) for line in lines] == [
        [name, method.about] for name, method in METHODS.items()
    ]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_described_completely(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    method = METHODS[name]
    assert call("policies", name) == 0
    printed = " ".join(capfd.readouterr().out.split())
    meanings = [option.means for option in METHODS[name].describe_options().values()]
    for wanted in (method.documentation, method.paper, method.needs, method.cost, *meanings):
        assert " ".join(wanted.split()) in printed
    for key, option in METHODS[name].describe_options().items():
        assert f"{key} {option.values} default {option.default!r} means" in printed
    assert call("policies", name, "--json") == 0
    listed = orjson.loads(capfd.readouterr().out)
    assert listed["documentation"] == method.documentation
    assert {key: option["means"] for key, option in listed["options"].items()} == {
        key: option.means for key, option in METHODS[name].describe_options().items()
    }


def test_the_list_of_commands_has_whole_sentences(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("--help") == 0
    listed, _, _ = capfd.readouterr().out.partition("Examples:")
    assert "..." not in listed.partition("Commands:")[2]


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version_is_the_distributions(flag: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(flag) == 0
    assert capfd.readouterr().out.strip() == __version__ == version("stepspec")


@pytest.fixture
def files(nowhere: Path) -> Path:
    """The working directory, with a trace, an empty file, and a text."""
    (nowhere / "run.jsonl").write_bytes(made())
    (nowhere / "empty.jsonl").touch()
    (nowhere / "p.txt").write_text("What is 1 + 1?")
    return nowhere


@pytest.mark.parametrize(
    ("words", "written"),
    [([], "run.html"), (["-o", "page"], "page"), (["--output", "run.jsonl.htm"], "run.jsonl.htm")],
)
def test_the_page_of_a_trace_is_written(
    words: list[str], written: str, files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("trace", "run.jsonl", *words) == 0
    assert (files / written).read_text(encoding="utf-8") == html(made())
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", f"wrote {written}\n")


def test_the_page_of_a_trace_is_written_to_standard_output(
    files: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {*files.iterdir()}
    assert call("trace", "run.jsonl", "-o", "-") == 0
    assert capfd.readouterr().out == html(made())
    assert {*files.iterdir()} == before


def test_the_doctor_says_by_its_exit_code_and_its_last_line_whether_it_works(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with stand_in_process() as small, stand_in_process() as large:
        assert call("doctor", "--small", small, "--large", large) == 0
        printed = capfd.readouterr().out.splitlines()
        assert re.fullmatch(
            r"It works: \d+ cost speed or accuracy(, \d+ (is|are) unknown)?\.", printed[-1]
        )
        assert all(len(line.split("  ")) > 1 for line in printed if line.startswith("costs"))
        assert call("doctor", "--small", small, "--large", large, "--critic", large) == 1
        printed = capfd.readouterr().out.splitlines()
        assert any(
            line.startswith("cannot work  critic: no /pooling or no /tokenize here")
            for line in printed
        )
        assert printed[-1].startswith("It cannot work like this: 1 thing cannot work, ")
    assert call("doctor", "--small", small, "--large", large, "--json") == 1
    found = orjson.loads(capfd.readouterr().out)
    assert [finding["check"] for finding in found["findings"]] == [
        "connection",
        "connection",
    ]
