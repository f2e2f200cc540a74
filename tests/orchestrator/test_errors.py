"""Errors name their cause and their cure, and can be caught by their remedy."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from stepspec.orchestrator import errors


def test_an_endpoints_error_without_a_role_names_its_address_or_nothing() -> None:
    assert (
        str(errors.EndpointError("no answer", url="http://here:8001"))
        == "http://here:8001: no answer"
    )
    assert str(errors.EndpointError("no answer")) == "no answer"


def test_the_nearest_word_is_suggested_in_brackets_if_any_is_near() -> None:
    assert errors.near("polcy", ["option", "policy", "police"]) == " (did you mean 'policy'?)"
    assert errors.near("polcy", frozenset({"ahead"})) == ""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """
    The only folder of packages on the path: stepspec's metadata, without a record of its origin.
    """
    metadata = tmp_path / "stepspec-1.2.3.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.4\nName: stepspec\nVersion: 1.2.3\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return metadata


INSIDE = "file:///home/somebody/stepspec"
WHEEL = "file:///home/somebody/stepspec-1.2.3-py3-none-any.whl"
REMOTE = "https://github.com/stepspec/stepspec"


@pytest.mark.parametrize(
    ("record", "command"),
    [
        (None, 'pip install "stepspec[evals,ray]"'),
        ({"url": INSIDE, "dir_info": {}}, 'in your clone, pip install ".[evals,ray]"'),
        (
            {"url": INSIDE, "dir_info": {"editable": False}},
            'in your clone, pip install ".[evals,ray]"',
        ),
        (
            {"url": INSIDE, "dir_info": {"editable": True}},
            'in your clone, pip install --editable ".[evals,ray]"',
        ),
        ({"url": WHEEL, "archive_info": {}}, f'pip install "stepspec[evals,ray] @ {WHEEL}"'),
        (
            {
                "url": REMOTE,
                "vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": "5e2e845"},
            },
            f'pip install "stepspec[evals,ray] @ git+{REMOTE}@5e2e845"',
        ),
    ],
)
def test_an_extra_is_added_as_stepspec_was_installed(
    site: Path, record: dict[str, Any] | None, command: str
) -> None:
    if record is not None:
        (site / "direct_url.json").write_text(json.dumps(record))
    assert errors.install_command("evals", "ray") == command
