"""The parser of the installed vLLM checks the flags of a pair's file in a separate process, if possible."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.launcher import machine, vllm_flags
from stepspec.orchestrator.launcher.machine import InstalledVllm
from stepspec.orchestrator.launcher.pair import Pair
from stepspec.orchestrator.launcher.up import load_checked
from stepspec.orchestrator.launcher.vllm_flags import ParsedFlags, check_flags, flagged_lines, parse

KNOWN = frozenset({"max-num-seqs", "hf-overrides", "seed", "enforce-eager", "no-enforce-eager"})
FILE = '[large]\nmodel = "org/big"\ngpus = []\nflags = { max-num-seq = 3 }\n[small]\nurl = "http://a:1"\n'
ANSWER = """
import json, sys
lines = json.load(sys.stdin)
print("vLLM's own log")
print(json.dumps({"flags": ["max-num-seqs"], "refusals": {name: " ".join(line) for name, line in lines.items()}}))
"""


def pair(large: dict[str, Any], small: dict[str, Any] | None = None) -> Pair:
    small_one = {"model": "tiny", "flags": small} if small else {"url": "http://a:1"}
    return Pair.model_validate({"large": {"model": "big", "flags": large}, "small": small_one})


def complaint(wrong: Pair, **refusals: str) -> str:
    with pytest.raises(ConfigurationError) as failure:
        check_flags(wrong, ParsedFlags(KNOWN, refusals))
    return str(failure.value)


def scripted(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Let *source* stand in for vLLM's parser."""
    monkeypatch.setattr(vllm_flags, "WORKER", (sys.executable, "-c", source))


def test_only_servers_with_flags_are_checked_with_all_their_arguments() -> None:
    assert flagged_lines(pair({})) == {}
    lines = flagged_lines(pair({"max-num-seqs": 3}, {}))
    assert list(lines) == ["large"]
    assert lines["large"][:4] == ("--model", "big", "--served-model-name", "big")
    assert lines["large"][-2:] == ("--max-num-seqs", "3")
    assert list(flagged_lines(pair({}, {"seed": 1}))) == ["small"]


def test_an_unknown_flag_is_named_with_the_nearest_one() -> None:
    refused = "unrecognized arguments: --max-num-seq"
    assert complaint(pair({"max-num-seq": 3}), large=refused) == (
        "large.flags: the installed vLLM has no flag 'max-num-seq' (did you mean 'max-num-seqs'?)"
    )
    assert complaint(pair({"max-num-seq": False})).startswith("large.flags")
    assert complaint(pair({"zzz": 1}), large="unrecognized").endswith("no flag 'zzz'")
    both = complaint(pair({"sed": 1}, {"zzz.key": 1}))
    assert both.count("\n- ") == 2
    assert "\n- small.flags: the installed vLLM has no flag 'zzz.key'" in both


def test_another_refusal_of_vllm_is_reported_in_its_words() -> None:
    message = "argument --seed: invalid int value: 'abc'"
    assert complaint(pair({"seed": "abc"}), large=message) == f"large: the installed vLLM refuses its flags: {message}"


def test_flags_that_vllm_takes_are_let_through() -> None:
    good = pair({"max-num-seqs": 3, "no-enforce-eager": True, "hf-overrides.rope_theta": 1}, {"seed": 1})
    check_flags(good, ParsedFlags(KNOWN, {"large": "", "small": ""}))


def test_the_last_line_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, ANSWER)
    assert parse({"large": ["--a", "b"]}) == ParsedFlags(frozenset({"max-num-seqs"}), {"large": "--a b"})


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise ImportError('no such module')", "ImportError: no such module"),
        ("raise SystemExit(3)", "exit code 3"),
        ("print('no answer')", "Expecting value"),
        ("import time; time.sleep(60)", "it was not done after 0.5 s"),
    ],
)
def test_an_unavailable_parser_has_a_reason(source: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, source)
    monkeypatch.setattr(vllm_flags, "WORKER_SECONDS", 0.5 if "sleep" in source else 60.0)
    message = parse({})
    assert isinstance(message, str)
    assert why in message


COUNTING = """
import json, pathlib, sys
with pathlib.Path({marker!r}).open("a") as runs:
    runs.write("x")
print(json.dumps({{"flags": ["seed"], "refusals": {{name: "" for name in json.load(sys.stdin)}}}}))
"""
LINES = {"large": ["--model", "big", "--seed", "1"]}
PARSED = ParsedFlags(frozenset({"seed"}), {"large": ""})


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count how often the parser was run."""
    monkeypatch.setattr(vllm_flags, "vllm_version", lambda: "0.32.0")
    marker = tmp_path / "runs"
    marker.touch()
    scripted(monkeypatch, COUNTING.format(marker=str(marker)))
    return lambda: marker.stat().st_size


def kept(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def test_a_result_is_kept_for_the_same_lines(cache: Path, runs: Callable[[], int]) -> None:
    waits: list[int] = []
    for _ in range(3):
        assert parse(LINES, lambda: waits.append(1)) == PARSED
    assert (runs(), len(waits)) == (1, 1)
    (file,) = kept(cache)
    assert file.parent == cache / "stepspec" / "vllm-flags"


def test_another_line_vllm_variable_or_file_has_a_result_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Callable[[], int]
) -> None:
    template = tmp_path / "template.jinja"
    lines = {"large": [*LINES["large"], "--chat-template", str(template)]}
    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: template.write_text("one"),
        lambda: os.utime(template, ns=(1, 1)),
        lambda: monkeypatch.setenv("VLLM_PLUGINS", "one"),
        lambda: monkeypatch.setattr(vllm_flags, "vllm_version", lambda: "0.33.0"),
        lambda: lines["large"].append("--enforce-eager"),
    ]
    for count, change in enumerate(changes, 1):
        change()
        assert parse(lines) == parse(lines) == PARSED
        assert runs() == count


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"flags": 3}', b"\xff"])
def test_a_damaged_file_is_replaced(cache: Path, runs: Callable[[], int], damage: bytes) -> None:
    parse(LINES)
    (file,) = kept(cache)
    file.write_bytes(damage)
    assert parse(LINES) == PARSED
    assert parse(LINES) == PARSED
    assert runs() == 2


def test_a_folder_that_cannot_be_written_costs_time_only(cache: Path, runs: Callable[[], int]) -> None:
    (cache / "stepspec").write_text("a file")
    assert parse(LINES) == parse(LINES) == PARSED
    assert runs() == 2


def test_a_failure_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, "raise SystemExit(3)")
    assert parse(LINES) == "exit code 3"
    assert kept(cache) == []


def test_several_programs_keep_one_result_and_leave_no_parts(cache: Path, runs: Callable[[], int]) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(parse, [LINES] * 8)) == [PARSED] * 8
    assert runs() <= 8
    assert [file.suffix for file in kept(cache)] == [".json"]


def test_the_wait_is_announced_also_without_a_terminal(
    file: Path, runs: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(FILE.replace("max-num-seq = 3", "seed = 3"))
    for expected in (True, False):
        load_checked(file, Console(width=200))
        assert ("checking the flags of large with vLLM's own parser" in capsys.readouterr().out) is expected


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pair's file with a wrong flag, on a machine that has vLLM."""
    monkeypatch.setattr(
        machine, "installed_vllm", lambda: InstalledVllm("0.32.0", frozenset[str](), suffix_decoding=False)
    )
    (tmp_path / "pair.toml").write_text(FILE)
    return tmp_path / "pair.toml"


def test_a_wrong_flag_is_refused_before_anything_is_started(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, ANSWER)
    with pytest.raises(ConfigurationError, match=r"large\.flags: the installed vLLM has no flag 'max-num-seq'"):
        load_checked(file, Console(quiet=True))


def test_unchecked_flags_are_reported(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, "raise ImportError('cli_args')")
    load_checked(file, Console(width=200))
    message = "not checked: the flags of large: vLLM's parser could not be run (ImportError: cli_args)"
    assert message in capsys.readouterr().out


def test_without_flags_the_parser_is_not_called(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_flags, "parse", lambda lines: pytest.fail("the parser was called"))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    file.write_text(FILE.replace("flags = { max-num-seq = 3 }", ""))
    load_checked(file, Console(quiet=True))


def test_the_parser_is_called_only_for_files_without_other_errors(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_flags, "parse", lambda lines: pytest.fail("the parser was called"))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    file.write_text(FILE.replace("org/big", "./gone"))
    with pytest.raises(ConfigurationError, match=r"large\.model: no model at"):
        load_checked(file, Console(quiet=True))
