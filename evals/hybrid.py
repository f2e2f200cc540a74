"""Deprecated path: ``python -m stepspec.evals.hybrid`` runs `stepspec.evals.experiments.hybrid_cache`."""

from .command_line import run_moved

if __name__ == "__main__":
    run_moved("hybrid", "experiments.hybrid_cache")
