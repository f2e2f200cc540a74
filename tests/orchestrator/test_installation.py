"""The hint to install an extra repeats the way in which stepspec was installed; real records come from real tools."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepspec.orchestrator.errors import install_command


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    install_command.cache_clear()
    yield
    install_command.cache_clear()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of packages on the path: stepspec's metadata, without a record of its origin."""
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
        ({"url": INSIDE, "dir_info": {"editable": False}}, 'in your clone, pip install ".[evals,ray]"'),
        ({"url": INSIDE, "dir_info": {"editable": True}}, 'in your clone, pip install --editable ".[evals,ray]"'),
        ({"url": WHEEL, "archive_info": {}}, f'pip install "stepspec[evals,ray] @ {WHEEL}"'),
        (
            {"url": REMOTE, "vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": "5e2e845"}},
            f'pip install "stepspec[evals,ray] @ git+{REMOTE}@5e2e845"',
        ),
    ],
)
def test_an_extra_is_added_as_stepspec_was_installed(site: Path, record: dict[str, Any] | None, command: str) -> None:
    if record is not None:
        (site / "direct_url.json").write_text(json.dumps(record))
    assert install_command("evals", "ray") == command
