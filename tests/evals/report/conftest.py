"""The browser and its pages are those of the page of a run."""

from __future__ import annotations

from ...service.watch.page.conftest import browser, executable, opened, saved

__all__ = ["browser", "executable", "opened", "saved"]
