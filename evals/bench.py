"""Deprecated path: ``python -m stepspec.evals.bench`` runs `stepspec.evals.experiments.bench`."""

from .command_line import run_moved

if __name__ == "__main__":
    run_moved("bench", "experiments.bench")
