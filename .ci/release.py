"""
What the release of a tag such as v0.1.0 needs, for .github/workflows/release.yml. The standard
library is enough.

``python .ci/release.py notes v0.1.0`` prints the section of CHANGELOG.md about that version.
``python .ci/release.py check v0.1.0 dist`` fails unless dist/ holds a wheel and an sdist of that
version, and the chart and the newest section of CHANGELOG.md are of it too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADING = re.compile(
    r"^## \[(?P<version>[^\]]+)\](?: - (?P<date>\d{4}-\d\d-\d\d))?\s*$", re.MULTILINE
)


def sections(changelog: str) -> Iterator[tuple[str, str | None, str]]:
    """
    Yield version, date and text of every section, the newest first. What is not released has no
    date.
    """
    headings = [*HEADING.finditer(changelog)]
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        text = changelog[heading.end() : following.start() if following else None]
        yield heading["version"], heading["date"], text.strip()


def notes(tag: str, changelog: str) -> str:
    """Return the text about the version of *tag*; exit with a message if there is none."""
    for version, date, text in sections(changelog):
        if version == tag.removeprefix("v") and date and text:
            return text
    sys.exit(
        f"CHANGELOG.md has no section `## [{tag.removeprefix('v')}] - YYYY-MM-DD` with changes"
        " in it"
    )


def problems(tag: str, dist: Path) -> Iterator[str]:
    """Yield what is not of the version of *tag*."""
    version = tag.removeprefix("v")
    if tag == version:
        yield f"the tag {tag} does not begin with v"
    wanted = {f"stepspec-{version}-py3-none-any.whl", f"stepspec-{version}.tar.gz"}
    if (built := {path.name for path in dist.iterdir()}) != wanted:
        yield (
            f"{dist} holds {', '.join(sorted(built)) or 'nothing'} instead of"
            f" {', '.join(sorted(wanted))}"
        )
    chart = (ROOT / "docker/helm/stepspec/Chart.yaml").read_text()
    for key, found in re.findall(r"^(version|appVersion): (\S+)$", chart, re.MULTILINE):
        if found.strip('"') != version:
            yield f"{key} in docker/helm/stepspec/Chart.yaml is {found}"
    released = [
        section for section, date, _ in sections((ROOT / "CHANGELOG.md").read_text()) if date
    ]
    if released[:1] != [version]:
        yield f"the newest version of CHANGELOG.md is {', '.join(released[:1]) or 'none'}"


def main() -> None:
    match sys.argv[1:]:
        case ["notes", tag]:
            print(notes(tag, (ROOT / "CHANGELOG.md").read_text()))
        case ["check", tag, dist]:
            if found := [*problems(tag, Path(dist))]:
                sys.exit("\n".join(f"{tag}: {problem}" for problem in found))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
