"""Deprecated path: ``python -m stepspec.evals.overhead`` runs `stepspec.evals.experiments.service_overhead`."""

from .command_line import run_moved

if __name__ == "__main__":
    run_moved("overhead", "experiments.service_overhead")
