"""The user's cache folder, in which results of vLLM's parser are kept, is the test's own."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:  # its own, because tests undo theirs
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder
