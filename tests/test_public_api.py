"""`stepspec` itself: its public names, and the cost of importing them."""

import subprocess
import sys

import stepspec

IMPORTS = """
import sys

def loaded(*names):
    print(*[name for name in names if name in sys.modules], sep=",")

import stepspec
loaded("vllm", "torch", "transformers")
import stepspec.cli
loaded("fastapi", "uvicorn", "structlog")
import stepspec.service.http.app
loaded("ray")
"""


def test_every_public_name_is_importable_and_listed_once_in_order() -> None:
    assert stepspec.__all__ == sorted(set(stepspec.__all__))
    assert all(hasattr(stepspec, name) for name in stepspec.__all__)


def test_importing_loads_no_model_library_the_command_no_service_and_the_service_no_ray() -> None:
    run = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True
    )
    assert run.stdout == "\n\n\n"
