"""
Exit with 0 if every server named is up: ``health.py [--wait SECONDS] URL[,URL...] ...``, for images
without curl.

Up is what answers with a status below 500, as for the service itself. Of URLs with commas between
them one is enough. A server on another machine is asked through the proxy of the environment.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

WITHIN = 3.0  # seconds for one look
EVERY = 2.0  # seconds between two
OWN = ("127.0.0.1", "::1", "localhost")  # hosts that no proxy reaches


def up(url: str) -> bool:
    own = urlsplit(url).hostname in OWN
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({} if own else None))
    try:
        with opener.open(url, timeout=WITHIN):
            return True
    except urllib.error.HTTPError as exc:
        return exc.code < 500
    except (OSError, http.client.HTTPException):
        return False


def down(wanted: list[str]) -> list[str]:
    return [urls for urls in wanted if not any(map(up, urls.split(",")))]


def main() -> None:
    parser = argparse.ArgumentParser(description="Exit with 0 if every server named is up.")
    parser.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="how long they may take to be"
    )
    parser.add_argument("urls", nargs="+", metavar="URL[,URL...]", help="of several, one is enough")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.wait
    while missing := down(arguments.urls):
        if time.monotonic() >= until:
            sys.exit(f"not up: {', '.join(missing)}")
        time.sleep(EVERY)


if __name__ == "__main__":
    main()
