"""Deprecated path: ``python -m stepspec.evals.scoring`` runs `stepspec.evals.experiments.judging_cost`."""

from .command_line import run_moved

if __name__ == "__main__":
    run_moved("scoring", "experiments.judging_cost")
