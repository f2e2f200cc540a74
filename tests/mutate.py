"""
Change the code in one small place at a time and see whether a test notices: ``make mutate``.

Works in a copy below ``build/mutation``, where cosmic-ray is installed too, and goes on where it was interrupted. Every
module is tried with the tests that are about it; the survivors are printed as patches, and each has to be explained in
``docs/mutation.md``.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "mutation"
TREE, SITE = WORK / "tree", WORK / "site"


def about(name: str) -> str:
    """The tests of one policy."""
    found = sorted((ROOT / "tests" / "policies").glob(f"test_{name}*.py"))
    return " ".join(f"tests/policies/{path.name}" for path in found) + " tests/policies/test_make.py"


POLICIES = {
    path.stem: (f"policies/{path.name}", about(path.stem)) for path in sorted((ROOT / "policies").glob("[a-z]*.py"))
}
LOOP = " ".join(f"tests/orchestrator/test_{name}.py" for name in ("lookahead", "steps", "deadline", "kept_open", "run"))
CORE = {
    "budget": ("orchestrator/budget.py", "tests/orchestrator/test_budget.py tests/orchestrator/test_run.py"),
    "reason": ("orchestrator/reason.py", f"{LOOP} tests/orchestrator/test_reason.py"),
    "lookahead": ("orchestrator/lookahead.py", f"{LOOP} tests/orchestrator/test_reason.py"),
    "run": ("orchestrator/run.py", "tests/orchestrator/test_run.py tests/test_public_api.py"),
    "repetition": ("orchestrator/repetition.py", "tests/orchestrator/test_repetition.py"),
}
SESSIONS = {**POLICIES, **CORE}
# The sign between two types of an annotation is the same operator, and no test can tell.
CONFIG = """
[cosmic-ray]
module-path = "{module}"
timeout = 120.0
excluded-modules = []
test-command = ""

[cosmic-ray.distributor]
name = "local"

[cosmic-ray.filters.operators-filter]
exclude-operators = ["core/ReplaceBinaryOperator_BitOr_.*", "core/ReplaceBinaryOperator_.*_BitOr"]
"""


def prepare() -> None:
    """Copy the working tree and install cosmic-ray, where that has not been done."""
    if not SITE.is_dir():
        command = (sys.executable, "-m", "pip", "install", "-q", "--target", str(SITE), "cosmic-ray>=8.4,<9")
        subprocess.run(command, check=True)
    if not TREE.is_dir():
        listed = subprocess.run(
            ("git", "ls-files", "-co", "--exclude-standard"), cwd=ROOT, check=True, capture_output=True
        )
        for name in listed.stdout.decode().splitlines():
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, TREE / name, follow_symlinks=False)


def cosmic_ray(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{TREE / 'src'}:{SITE}"}
    command = (sys.executable, "-m", *arguments)
    return subprocess.run(command, cwd=TREE, env=environment, check=True, capture_output=True, text=True).stdout


def mutate(name: str) -> tuple[int, list[str]]:
    """Try every mutant of one session; return how many there were and the patches of those that survived."""
    module, tests = SESSIONS[name]
    config, session = WORK / f"{name}.toml", WORK / f"{name}.sqlite"
    config.write_text(CONFIG.format(module=module), encoding="utf-8")
    kept = WORK / f"{name}.py"
    if session.is_file():
        shutil.copy2(kept, TREE / module)  # An interrupted mutant is still in its place.
    else:
        shutil.copy2(TREE / module, kept)
        cosmic_ray("cosmic_ray.cli", "init", str(config), str(session))
        cosmic_ray("cosmic_ray.tools.filters.operators_filter", str(session), str(config))
    environment = {**os.environ, "PYTHONPATH": f"{TREE / 'src'}:{SITE}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = (sys.executable, str(ROOT / "tests" / "forked.py"), str(session), tests)
    subprocess.run(command, cwd=TREE, env=environment, check=True)
    with sqlite3.connect(session) as results:
        tried = results.execute(
            "select diff, test_outcome from work_results where worker_outcome = 'NORMAL'"
        ).fetchall()
    return len(tried), [diff for diff, outcome in tried if "SURVIVED" in str(outcome).upper()]


def main(names: Sequence[str]) -> None:
    prepare()
    for name in names or SESSIONS:
        tried, survivors = mutate(name)
        print(f"== {name}: {tried} mutants, {len(survivors)} survived", flush=True)
        for diff in survivors:
            print(
                *[line for line in diff.splitlines() if line[:1] in "+-@" and line[:3] not in ("+++", "---")], sep="\n"
            )
        print(flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
