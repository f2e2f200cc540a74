"""
Change the code in one small place at a time and see whether a test notices: ``make mutate``.

Works in a copy below ``build/mutation``, made anew at every start, where cosmic-ray is installed
too. Every module is tried with the tests that are about it, and goes on where it was interrupted;
what survived is tried again, for a test may have come. A module that was edited, or is given other
tests, begins anew. With ``--every N`` only every N-th of the mutants that were not tried yet is
tried, in the order of the source. The survivors are printed as patches, and each has to be
explained in ``CONTRIBUTING.md``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "mutation"
TREE = WORK / "tree"
SITE = WORK / "site"


def about(name: str) -> str:
    """The tests of one policy."""
    found = sorted((ROOT / "tests" / "policies").glob(f"test_{name}*.py"))
    return (
        " ".join(f"tests/policies/{path.name}" for path in found)
        + " tests/policies/test_methods.py"
    )


POLICIES = {
    path.stem: (f"policies/{path.name}", about(path.stem))
    for path in sorted((ROOT / "policies").glob("[a-z]*.py"))
}
WRAPPERS = "tests/policies/test_wrappers.py"
POLICIES["baselines"] = ("policies/baselines.py", f"{about('baselines')} {WRAPPERS}")
POLICIES["wrappers"] = (
    "policies/wrappers.py",
    f"{WRAPPERS} tests/fidelity/test_08_who_ends_the_thinking.py",
)


def core(name: str, *tests: str, slow: Sequence[str] = ()) -> tuple[str, str]:
    """A module of the orchestrator and the files below ``tests/`` that are about it."""
    return outside(f"orchestrator/{name}", *tests, slow=slow)


def outside(name: str, *tests: str, slow: Sequence[str] = ()) -> tuple[str, str]:
    """A module of any folder and the files below ``tests/`` that are about it."""
    parts = (" ".join(f"tests/{test}.py" for test in part) for part in (tests, slow) if part)
    return f"{name}.py", ";".join(parts)


RUN = (
    "orchestrator/test_run",
    "orchestrator/test_request_context",
    "fidelity/test_09_who_writes_the_answer",
)
LOOP = (*(f"orchestrator/test_{name}" for name in ("lookahead", "steps")), *RUN[:2])
PROMISES = (RUN[2], "orchestrator/test_reason")
MACHINES = "orchestrator/test_state_machines"
CORE = {
    "answer": core("answer", "orchestrator/test_answer", *RUN),
    "budget": core("budget", "orchestrator/test_budget", *RUN),
    "chain": core("chain", "orchestrator/test_chain"),
    "concurrency": core("concurrency", "orchestrator/test_concurrency"),
    "ledger": core("ledger", "orchestrator/test_ledger"),
    "lookahead": core("lookahead", *LOOP, slow=PROMISES),
    "reason": core("reason", *LOOP, slow=PROMISES),
    "repetition": core("repetition", "orchestrator/test_repetition"),
    "replicas": core(
        "endpoints/replicas", "orchestrator/endpoints/test_replicas", slow=(MACHINES,)
    ),
    "run": core("run", *RUN),
    "run_options": core(
        "run_options",
        "test_settings",
        slow=("test_run_options", "test_run_option_effects", "test_solver"),
    ),
    "admission": outside("service/admission", "service/http/test_admission", slow=(MACHINES,)),
    "breaker": core("endpoints/breaker", "orchestrator/endpoints/test_replicas", slow=(MACHINES,)),
    "client": core(
        "http/client",
        *(f"orchestrator/http/test_{name}" for name in ("retries", "failures", "sse")),
        "orchestrator/endpoints/test_priority",
    ),
    "auto": core("auto", "orchestrator/test_auto"),
    "costs": core("costs", "orchestrator/test_costs"),
    "server_load": core("server_load", "orchestrator/test_server_load"),
}
SESSIONS = {**POLICIES, **CORE}
# The sign between two types of an annotation is the same operator, and no test can tell.
CONFIG = """
[cosmic-ray]
module-path = "{module}"
timeout = 120.0
excluded-modules = []
test-command = "{tests}"

[cosmic-ray.distributor]
name = "local"

[cosmic-ray.filters.operators-filter]
exclude-operators = ["core/ReplaceBinaryOperator_BitOr_.*", "core/ReplaceBinaryOperator_.*_BitOr"]
"""


def prepare() -> None:
    """Install cosmic-ray, where that has not been done, and copy the working tree as it is now."""
    if not SITE.is_dir():
        command = (
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--target",
            str(SITE),
            "cosmic-ray>=8.4,<9",
        )
        subprocess.run(command, check=True)
    shutil.rmtree(TREE, ignore_errors=True)
    listing = ("git", "ls-files", "-z", "-co", "--exclude-standard")
    listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in listed.split("\0"):
        if os.path.lexists(ROOT / name) and name:
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, TREE / name, follow_symlinks=False)


def cosmic_ray(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{TREE / 'src'}:{SITE}"}
    command = (sys.executable, "-m", *arguments)
    return subprocess.run(
        command, cwd=TREE, env=environment, check=True, capture_output=True, text=True
    ).stdout


def begin(name: str) -> Path:
    """
    Return the session of *name*: the one that was begun, if the module and the choice of its tests
    are the same.
    """
    module, tests = SESSIONS[name]
    session, config, kept, fresh = (
        WORK / f"{name}.{kind}" for kind in ("sqlite", "toml", "py", "fresh")
    )
    wanted = (
        CONFIG.format(module=module, tests=tests),
        (TREE / module).read_text(encoding="utf-8"),
    )
    if session.is_file():
        found = tuple(
            path.read_text(encoding="utf-8") if path.is_file() else "" for path in (config, kept)
        )
        if found == wanted:
            return session
        print(
            f"== {name}: begun anew, for {module} or the choice of its tests has changed",
            flush=True,
        )
        session.unlink()
    fresh.unlink(missing_ok=True)
    for path, text in zip((config, kept), wanted, strict=True):
        path.write_text(text, encoding="utf-8")
    cosmic_ray("cosmic_ray.cli", "init", str(config), str(fresh))
    cosmic_ray("cosmic_ray.tools.filters.operators_filter", str(fresh), str(config))
    return fresh.rename(session)


def mutate(name: str, every: int = 1) -> tuple[int, int, list[str]]:
    """
    Try the mutants of one session; return how many were tried, how many there are, and the
    survivors' patches.
    """
    session = begin(name)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{TREE / 'src'}:{SITE}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = (sys.executable, "-m", "tests.forked", str(session), SESSIONS[name][1], str(every))
    subprocess.run(command, cwd=TREE, env=environment, check=True)
    with sqlite3.connect(session) as results:
        tried = results.execute(
            "select diff, test_outcome from work_results where worker_outcome = 'NORMAL'"
        ).fetchall()
        (skipped,) = results.execute(
            "select count(*) from work_items where job_id not in (select job_id from work_results)"
        ).fetchone()
    return (
        len(tried),
        len(tried) + skipped,
        [diff for diff, outcome in tried if "SURVIVED" in str(outcome).upper()],
    )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description="List the small changes of the code that no test notices."
    )
    parser.add_argument("modules", nargs="*", help=f"by default all: {', '.join(SESSIONS)}")
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="try only every N-th mutant not tried yet"
    )
    options = parser.parse_args(arguments)
    prepare()
    for name in options.modules or SESSIONS:
        tried, total, survivors = mutate(name, options.every)
        print(f"== {name}: {tried} of {total} mutants tried, {len(survivors)} survived", flush=True)
        for diff in survivors:
            print(
                *[
                    line
                    for line in diff.splitlines()
                    if line[:1] in "+-@" and line[:3] not in ("+++", "---")
                ],
                sep="\n",
            )
        print(flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
