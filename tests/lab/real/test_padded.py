"""A padded model writes what the model writes."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from lab.real.padded import LAYERS_PER_FILE, pad
from stepspec.evals.testbed.servers import MODELS
from stepspec.orchestrator.errors import ConfigurationError

MODEL = MODELS / "small"
ADDED = LAYERS_PER_FILE + 2


def logits(folder: Path) -> Any:
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.arange(1, 30)[None]).logits


def test_the_added_layers_change_nothing(tmp_path: Path) -> None:
    padded = tmp_path / "padded"
    pad(MODEL, padded, ADDED)
    layers = [
        json.loads((folder / "config.json").read_text())["num_hidden_layers"]
        for folder in (MODEL, padded)
    ]
    assert layers[1] == layers[0] + ADDED
    assert logits(padded).equal(logits(MODEL))


def test_what_cannot_be_padded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no model\.safetensors in .*: name the folder"):
        pad(tmp_path, tmp_path / "padded", 1)
    with pytest.raises(ConfigurationError, match="exists: delete it"):
        pad(MODEL, tmp_path, 1)
