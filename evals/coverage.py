"""Deprecated path: ``python -m stepspec.evals.coverage`` runs `stepspec.evals.calibration.simulation`."""

from .command_line import run_moved

if __name__ == "__main__":
    run_moved("coverage", "calibration.simulation")
