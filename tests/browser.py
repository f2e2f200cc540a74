"""
The browser that the page is tried in. ``python -m tests.browser`` prints where it is, and installs
one if need be.

It is the one that STEPSPEC_CHROMIUM names, or a Chromium on the PATH, or Playwright's own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, async_playwright

VARIABLE = "STEPSPEC_CHROMIUM"
NAMED = os.environ.pop(VARIABLE, None)  # or the settings, of which it is none, would refuse it
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
CURE = f"install Chromium, or set {VARIABLE} to its executable; `make browser` does the former"


def find() -> str | None:
    """
    Return the executable of a browser, if there is one. Raise `FileNotFoundError` for a wrong
    STEPSPEC_CHROMIUM.
    """
    if NAMED:
        if shutil.which(NAMED) is None:
            raise FileNotFoundError(f"{VARIABLE} names {NAMED!r}, which cannot be run")
        return NAMED
    return next(filter(None, map(shutil.which, NAMES)), None) or _of_playwright()


def _of_playwright() -> str | None:
    """Ask Playwright where it would have put its own."""
    code = (
        "from playwright.sync_api import sync_playwright as start\nwith start() as p:"
        " print(p.chromium.executable_path)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    path = Path(result.stdout.strip() or "nowhere")
    return str(path) if path.is_file() else None


def install() -> None:
    """Install a browser: the system's where that may be done, otherwise Playwright's own."""
    commands = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        commands = [["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in commands:
        subprocess.run(command, env=environment, stdout=sys.stderr, timeout=900, check=True)


@asynccontextmanager
async def browsing(executable: str, *flags: str) -> AsyncGenerator[Browser]:
    """Start the browser at *executable*, without a window, with further *flags*."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=executable, headless=True, args=[*FLAGS, *flags]
        )
        try:
            yield browser
        finally:
            await browser.close()


def main() -> None:
    try:
        if find() is None:
            print("Installing Chromium, once.", file=sys.stderr)
            install()
        found = find()
    except (OSError, subprocess.SubprocessError) as exc:
        sys.exit(f"no browser: {exc}")
    if found is None:
        sys.exit(f"no browser: {CURE}")
    print(found)


if __name__ == "__main__":
    main()
