"""
Check what stepspec brings along: `audit.py licences`, and `audit.py vulnerabilities`, which needs
pip-audit and PyPI.

requirements/audit.toml says what is accepted, and until when.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
ACCEPTED = ROOT / "requirements" / "audit.toml"
EXTRAS = ("serve", "otel")  # those of the image


def accepted() -> Mapping[str, Any]:
    return tomllib.loads(ACCEPTED.read_text(encoding="utf-8"))


def exceptions(accepted: Mapping[str, Any], today: datetime.date) -> list[str]:
    """
    Return the ids of accepted vulnerabilities. Raise SystemExit for one without a reason, or whose
    time is over.
    """
    found = list[str]()
    for each in accepted.get("vulnerabilities", ()):
        if each.keys() != {"id", "why", "until"}:
            raise SystemExit(f"{ACCEPTED.name}: {each}: an exception has id, why and until")
        if each["until"] < today:
            raise SystemExit(
                f"{ACCEPTED.name}: {each['id']} was accepted until {each['until']}: {each['why']}"
            )
        found.append(each["id"])
    return found


def brought(name: str, extras: Iterable[str]) -> dict[str, Distribution]:
    """Return *name* with these *extras* and all that they need here, by name."""
    found = dict[str, Distribution]()
    done = set[tuple[str, str]]()
    left = [(name, extra) for extra in ("", *extras)]
    while left:
        wanted, extra = left.pop()
        if (wanted, extra) in done:
            continue
        done.add((wanted, extra))
        try:
            found[wanted] = distribution(wanted)
        except PackageNotFoundError:
            raise SystemExit(
                f"{wanted} is not installed: pip install '.[{','.join(EXTRAS)}]'"
            ) from None
        for text in found[wanted].requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                left += [(canonicalize_name(needed.name), each) for each in ("", *needed.extras)]
    return found


def licences(package: Distribution, spellings: Mapping[str, str]) -> Iterator[set[str]]:
    """Yield sets of SPDX names, of each of which one has to be accepted."""
    metadata: Any = package.metadata  # whose type lacks the method that all versions have
    expression = metadata.get("License-Expression")
    if expression is None:
        classified = [
            text.rpartition(" :: ")[2]
            for text in metadata.get_all("Classifier") or ()
            if "License" in text
        ]
        spelt = classified or [(metadata.get("License") or "none").strip().splitlines()[0]]
        yield {name for text in spelt for name in spellings.get(text, text).split(" OR ")}
        return
    for part in re.split(r"\s+AND\s+", expression):
        yield {name.strip("() ") for name in re.split(r"\s+OR\s+", part)}


def check_licences(accepted: Mapping[str, Any], packages: Mapping[str, Distribution]) -> list[str]:
    """Return a complaint for each package with a licence that is not accepted."""
    allowed = {*accepted["licences"]}
    return [
        f"{name}: {' OR '.join(sorted(options))}"
        for name, package in sorted(packages.items())
        for options in licences(package, accepted["spellings"])
        if not options & allowed
    ]


def main(what: str) -> int:
    known = accepted()
    ignored = exceptions(known, datetime.date.today())
    if what == "licences":
        packages = brought("stepspec", EXTRAS)
        complaints = check_licences(known, packages)
        print(
            *complaints,
            f"{len(packages)} packages, {len(complaints)} with a licence that is not accepted",
            sep="\n",
        )
        return bool(complaints)
    lock = ROOT / "requirements" / "lock.txt"
    flags = [flag for each in ignored for flag in ("--ignore-vuln", each)]
    audit = (
        "-m",
        "pip_audit",
        "--strict",
        "--disable-pip",
        "--no-deps",
        "--requirement",
        str(lock),
        *flags,
    )
    return subprocess.run([sys.executable, *audit], check=False).returncode


if __name__ == "__main__":
    if sys.argv[1:] not in (["licences"], ["vulnerabilities"]):
        raise SystemExit(__doc__)
    sys.exit(main(sys.argv[1]))
