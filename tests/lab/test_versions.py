"""What pytest printed about a version of vLLM is read as it is, and what it did not print fails."""

from __future__ import annotations

import pytest

from lab.sent_bodies import sent_bodies
from lab.versions import Tried, read_report
from stepspec.orchestrator.errors import ConfigurationError

REPORT = """
FAILED tests/integration/test_seeds.py::test_a - AssertionError
ERROR tests/integration/test_policies.py::test_b - RuntimeError
1 failed, 40 passed, 2 skipped, 1 error in 300.20s
"""


def test_the_report_of_pytest_is_read() -> None:
    names = (
        "tests/integration/test_seeds.py::test_a",
        "tests/integration/test_policies.py::test_b",
    )
    assert read_report("0.29.0", REPORT) == Tried("0.29.0", passed=40, failed=2, failures=names)


def test_tests_that_ended_early_are_no_result() -> None:
    with pytest.raises(ConfigurationError, match=r"0\.29\.0: the tests ended early"):
        read_report("0.29.0", "Killed\n")


async def test_bodies_of_every_kind_of_request_are_kept() -> None:
    bodies = await sent_bodies()
    assert {"/tokenize", "/v1/completions", "/inference/v1/generate"} <= bodies.keys()
    fields = {field for body in bodies["/v1/completions"] for field in body}
    assert {"stream", "allowed_token_ids", "prompt_logprobs"} <= fields
