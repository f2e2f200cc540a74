"""`stepspec` itself: its public names, and the cost of importing them."""

import subprocess
import sys

import stepspec


def test_every_public_name_is_importable_and_listed_once_in_order() -> None:
    assert stepspec.__all__ == sorted(set(stepspec.__all__))
    assert all(hasattr(stepspec, name) for name in stepspec.__all__)


def test_importing_stepspec_loads_no_model_library() -> None:
    code = "import sys, stepspec; print(*sorted({'vllm', 'torch', 'transformers'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
