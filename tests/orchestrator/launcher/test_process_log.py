from __future__ import annotations

from stepspec.orchestrator.launcher.process import failure_lines, port_taken

from .scripted_server import TRACEBACK

VALIDATION = """\
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "runpy.py", line 198, in _run_module_as_main
(APIServer pid=7) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
(APIServer pid=7)   Value error, Invalid repository ID or local directory specified: '/nowhere'.
(APIServer pid=7) Please verify the following requirements:
"""


def test_root_cause_first_without_frames_and_prefixes() -> None:
    assert failure_lines(TRACEBACK) == [
        "ValueError: the weights are rotten",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]


def test_an_error_of_several_lines_keeps_them() -> None:
    assert failure_lines(VALIDATION) == [
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "  Value error, Invalid repository ID or local directory specified: '/nowhere'.",
    ]


def test_a_repeated_failure_is_reported_once() -> None:
    assert failure_lines(TRACEBACK * 2) == failure_lines(TRACEBACK)


def test_a_refused_argument_is_a_reason() -> None:
    log = "usage: api_server.py [-h] [--headless]\n\napi_server.py: error: argument --port: invalid int value: 'x'\n"
    assert failure_lines(log) == ["api_server.py: error: argument --port: invalid int value: 'x'"]


def test_without_an_error_the_last_lines_have_to_do() -> None:
    log = "".join(f"(Worker pid=1) INFO 11-21 13:05:07 [a.py:1] line {n}\n\n" for n in range(20))
    assert failure_lines(log, limit=2) == ["line 18", "line 19"]
    assert failure_lines("") == []


def test_a_long_line_is_cut() -> None:
    (line,) = failure_lines("ValueError: " + "x" * 10_000)
    assert line.startswith("ValueError: xxx")
    assert line.endswith("x...")
    assert len(line) == 300


def test_a_taken_port_is_recognised() -> None:
    assert port_taken("OSError: [Errno 98] Address already in use")
    assert not port_taken(TRACEBACK)
