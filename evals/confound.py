"""Deprecated path: ``python -m stepspec.evals.confound`` runs `stepspec.evals.experiments.reflection_control`."""

from .command_line import run_moved

if __name__ == "__main__":
    run_moved("confound", "experiments.reflection_control")
