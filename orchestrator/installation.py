"""How to add an extra to this installation of stepspec, for messages about a package that is missing."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import distribution

NAME = "stepspec"
VLLM_FOR_CPUS = "without a GPU, run `make install` in a clone and use its .venv"


@cache
def install_command(*extras: str) -> str:
    """
    Return the command that installs the *extras* as stepspec itself was installed, as the end of a sentence.

    An installation from a package index has no record of its origin (PEP 610). One from a folder is repeated in the
    clone, one from an archive or a repository from the same URL.
    """
    wanted = f"{NAME}[{','.join(extras)}]"
    record = distribution(NAME).read_text("direct_url.json")
    if record is None:
        return f'pip install "{wanted}"'
    origin = json.loads(record)
    if "dir_info" in origin:
        editable = "--editable " if origin["dir_info"].get("editable") else ""
        return f'in your clone, pip install {editable}".[{",".join(extras)}]"'
    url = origin["url"]
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return f'pip install "{wanted} @ {url}"'
