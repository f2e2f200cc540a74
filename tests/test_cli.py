"""Errors of the command line name the cause and the cure, without a traceback."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path

import orjson
import pytest
import typer
import typer.core

from stepspec import __version__, cli
from stepspec.policies import METHODS

from .stand_in import stand_in_process

DEAD = "--small", "http://127.0.0.1:1", "--large", "http://127.0.0.1:1"
GROUP = typer.main.get_command(cli.app)
assert isinstance(GROUP, typer.core.TyperGroup)
COMMANDS = [name for name, command in GROUP.commands.items() if not isinstance(command, typer.core.TyperGroup)]


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
        (["solve", "1 + 1"], "no small model and no large model: pass --small http://HOST:PORT/v1 and --large"),
        (["solve", "1 + 1", "--small", "http://127.0.0.1:9"], "no large model"),
        (["solve", "  "], "the problem is empty"),
        (["solve", "x", "--small", "ftp://h", "--large", "http://h:1"], "'ftp://h' is not the URL of a server"),
        (["solve", "x", "--temperature", "7"], "--temperature 7.0: Input should be less than or equal to 2"),
        (["solve", "x", "-O", "threshold"], "write it as NAME=VALUE"),
        (["solve", "x", *DEAD, "-p", "specreasn"], "no policy 'specreasn' (did you mean 'specreason'?)"),
        (["solve", "x", *DEAD, "-p", "bild", "-O", "fallbacks=1"], "no option 'fallbacks' (did you mean 'fallback'?)"),
        (["solve", "x", *DEAD, "-p", "bild", "-O", "run=0"], "option 'run': a whole number of 1 or more (got 0)"),
        (["solve", "x", *DEAD, "-p", "reward"], "needs a reward model"),
        (["solve", "x", *DEAD, "-p", "reward"], "pass --critic URL"),
        (["solve", "x", "--small", "localhost:9131"], "write it like http://localhost:9131/v1"),
        (["solve", "x", *DEAD, "--trace", "/proc/none/run.jsonl"], "--trace /proc/none/run.jsonl: "),
        (["solve", "--problems", "nope.txt"], "no problems in nope.txt: No such file or directory"),
        (["up", "--testbed", "--profile", "foo"], "--profile: there is no pacing profile 'foo'"),
        (["up", "--testbed", "--speculation", "foo"], "--speculation: the miniature pair has no"),
        (["serve", *DEAD, "-p", "specreasn"], "did you mean 'specreason'"),
        (["serve", *DEAD, "-O", "threshold=NaN"], "option 'threshold': a number from 0 to 9 (got 'NaN')"),
        (["eval", "arithmetic", *DEAD, "-p", "specreason:threshold=high"], "a number from 0 to 9 (got 'high')"),
        (["eval", "arithmetic", *DEAD, "-p", "specreason:thresholds=1"], "did you mean 'threshold'"),
        (["eval", "arithmetic", *DEAD, "-p", "specreason:ahead=-1"], "ahead: Input should be greater than or equal"),
        (["eval", "arithmetic", *DEAD, "-p", "reward"], "needs a reward model"),
        (["calibrate", "arithmetic", *DEAD, "-p", "specreasn"], "did you mean 'specreason'"),
        (["policies", "chose"], "no policy 'chose' (did you mean 'choose'?)"),
        (["policies", "chose", "--json"], "no policy 'chose' (did you mean 'choose'?)"),
        (["up"], "pass --testbed"),
        (["up", "pair.toml", "--testbed"], "pass --testbed"),
        (["up", "nowhere.toml"], "nowhere.toml: No such file"),
        (["up", "pair.toml", "--speculation", "ngram"], "--profile and --speculation are only for --testbed: write"),
        (["up", "--testbed", "--speculation", "eagle3"], "no speculation method 'eagle3'"),
        (["up", "--testbed", "--profile", "warp"], "warp"),
        (["eval", "math-50"], "did you mean 'math500'"),
        (["eval", "arithmetic"], "no small model and no large model: pass --small http://HOST"),
        (["eval", "arithmetic", "-p", "specraeson"], "did you mean 'specreason'"),
        (["eval", "arithmetic", "--testbed", "--small", "http://h:1"], "leave out either it or --small"),
        (["calibrate", "arithmetic", "--testbed", "--critic", "http://h:1"], "leave out either it or --critic"),
        (["eval", "arithmetic", "--half", "both"], "use report or calibration"),
        (["eval", "arithmetic", "--data", "nowhere.jsonl"], "no data at nowhere.jsonl"),
        (["eval", "nowhere.parquet", "--data", "x.jsonl"], "leave --data out"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    arguments: list[str], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments) == 2
    printed = capfd.readouterr()
    assert complaint in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""


def test_a_dead_server_is_named_and_exit_code_1(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("solve", "x", "--small", "http://127.0.0.1:9", "--large", "http://127.0.0.1:9") == 1
    assert "http://127.0.0.1:9" in capfd.readouterr().err


def test_policies_are_listed_with_their_options(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("policies", "--json") == 0
    listed = orjson.loads(capfd.readouterr().out)
    assert listed["specreason"]["options"]["threshold"] == 7
    assert call("policies") == 0
    assert "threshold=7" in capfd.readouterr().out


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


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(command, "--help") == 0
    assert "Usage" in capfd.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_its_examples_use_existing_commands(command: str) -> None:
    assert isinstance(GROUP, typer.core.TyperGroup)
    known = {name: {flag for one in each.params for flag in one.opts} for name, each in GROUP.commands.items()}
    text = (GROUP.commands[command].epilog or "").replace("\\\n", "")
    examples = re.findall(r"stepspec (\w+)([^\n|&]*)", text)
    assert command in {name for name, _ in examples}
    for name, line in examples:
        assert set(re.findall(r"(?<=\s)--?[a-z][\w-]*", line.partition(" # ")[0])) <= known[name]


def test_the_help_lists_every_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("--help") == 0
    printed = capfd.readouterr().out.split()
    assert {"solve", "serve", "trace", "policies", "doctor", "eval", "calibrate", "up", "demo"} <= {*COMMANDS}
    assert {*COMMANDS} <= {*printed}


def test_a_problem_that_is_the_name_of_a_file_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.txt").write_text("What is 1 + 1?")
    assert call("solve", "p.txt", *DEAD) == 2
    assert "p.txt is a file: write --problems p.txt" in capfd.readouterr().err


def test_help_has_plain_words_and_whole_sentences(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("--help") == 0
    listed, _, _ = capfd.readouterr().out.partition("Examples:")
    assert "..." not in listed.partition("Commands:")[2]
    assert call("eval", "--help") == 0
    printed = capfd.readouterr().out
    assert "[OPTIONS] BENCHMARK\n" in printed
    assert not re.search(r"<(?:int|str|float|path|list)|{benchmark}", printed)


def test_the_version_is_the_distributions(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capfd.readouterr().out.strip() == __version__ == version("stepspec")


def test_a_dry_run_prints_the_commands_and_starts_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("up", "--testbed", "--profile", "off", "--speculation", "draft_model", "--dry-run") == 0
    large, small, then = capfd.readouterr().out.splitlines()
    assert then.startswith('# then: stepspec solve "..." --small http://127.0.0.1:')
    assert '--speculative-config \'{"method": "draft_model"' in large
    assert "--served-model-name testbed-small" in small
    (tmp_path / "pair.toml").write_text('[large]\nurl = "http://a:1"\n[small]\nurl = "http://b:1"\n')
    assert call("up", "pair.toml", "--dry-run", "--log-dir", "logs", "--json") == 0
    assert capfd.readouterr().out.splitlines() == [
        "# large runs at http://a:1",
        "# small runs at http://b:1",
        '# then: stepspec solve "..." --small http://b:1 --large http://a:1',
    ]


def test_a_pair_within_is_checked_with_its_policy_before_anything_is_started(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    three = 'large = "http://a:1"\n[small]\npolicy = "bild"\nlarge = "http://b:1"\nsmall = "http://c:1"\n'
    (tmp_path / "three.toml").write_text(three)
    assert call("up", "three.toml", "--dry-run") == 0
    assert capfd.readouterr().out.splitlines()[0].startswith("# small is a pair: bild over small.small and small.large")
    for was, now, complaint in (
        ("bild", "bidl", "small: there is no policy 'bidl' (did you mean 'bild'?"),
        ('"bild"', '"bild"\noptions = { scael = "step" }', "small: policy 'bild' has no option 'scael' (did you mean"),
        ("bild", "reward", "small: policy 'reward' needs a reward model"),
    ):
        (tmp_path / "three.toml").write_text(three.replace(was, now))
        assert call("up", "three.toml") == 2
        assert complaint in capfd.readouterr().err


def test_the_doctor_looks_at_every_model_of_a_nested_pair(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nowhere = ("http://127.0.0.1:9", "http://127.0.0.1:19", "http://127.0.0.1:29")
    tiny, small, large = (f'{{ url = "{url}", retries = 0 }}' for url in nowhere)
    (tmp_path / "stepspec.toml").write_text(f"large = {large}\n[small]\nsmall = {tiny}\nlarge = {small}\n")
    assert call("doctor", "--json") == 1
    found = orjson.loads(capfd.readouterr().out)
    urls = {pair["name"]: (pair["small"]["url"], pair["large"]["url"]) for pair in found["pairs"]}
    assert urls == {"small.small with small.large": nowhere[:2], "small.large with large": nowhere[1:]}
    assert (found["ok"], found["critic"]) == (False, None)
    assert call("doctor") == 1
    assert "small.large with large" in capfd.readouterr().out


def test_the_doctor_says_by_its_exit_code_and_its_last_line_whether_it_works(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with stand_in_process() as small, stand_in_process() as large:
        assert call("doctor", "--small", small, "--large", large) == 0
        printed = capfd.readouterr().out.splitlines()
        assert re.fullmatch(r"It works: \d+ cost speed or accuracy(, \d+ (is|are) unknown)?\.", printed[-1])
        assert all(len(line.split("  ")) > 1 for line in printed if line.startswith("costs"))
        assert call("doctor", "--small", small, "--large", large, "--critic", large) == 1
        printed = capfd.readouterr().out.splitlines()
        assert any(line.startswith("cannot work  critic: no /pooling or no /tokenize here") for line in printed)
        assert printed[-1].startswith("It cannot work like this: 1 thing cannot work, ")
    assert call("doctor", "--small", small, "--large", large, "--json") == 1
    found = orjson.loads(capfd.readouterr().out)
    assert [finding["check"] for finding in found["pairs"][0]["findings"]] == ["connection", "connection"]


def test_the_doctor_prints_the_schema_of_its_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("doctor", "--json-schema") == 0
    assert set(orjson.loads(capfd.readouterr().out)["properties"]) == {"ok", "summary", "pairs", "critic"}
