"""
Make a slow large model from a small one: ``python -m lab.real.padded MODEL FOLDER``.

A decoder layer whose output projections are zero adds nothing to what the model writes, and takes
its time. A 1.5B with 160 such layers writes a token about as slowly as a 32B does. Such a pair has
real text, real verdicts and real seconds on one GPU.
"""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from stepspec.cli.program import script
from stepspec.orchestrator.errors import ConfigurationError

WEIGHTS = "model.safetensors"
BASE = "base.safetensors"
"""The file of the model's own weights. A file with the usual name would be the only one read."""
LAYERS_PER_FILE = 20
OUTPUTS = ("self_attn.o_proj.", "mlp.down_proj.")
"""What adds the results of a layer to the hidden state."""
EXAMPLES = """
Examples:

  python -m lab.real.padded build/real/models/large build/real/models/slow

  # the layers that one GPU needs for 20 ms a token are found by trying
  python -m lab.real.padded build/real/models/large build/real/models/slow --layers 120
"""


def pad(model: Path, folder: Path, layers: int) -> None:
    """
    Write *model* with so many further *layers* into *folder*.

    Raise `ConfigurationError` if *model* has no weights in one file, or *folder* exists.
    """
    if not (model / WEIGHTS).exists():
        raise ConfigurationError(f"no {WEIGHTS} in {model}: name the folder of a converted model")
    if folder.exists():
        raise ConfigurationError(f"{folder} exists: delete it, or name another folder")
    new = folder.with_name(f"{folder.name}.new")
    shutil.copytree(model, new, dirs_exist_ok=True)
    config = json.loads((model / "config.json").read_text())
    first = config["num_hidden_layers"]
    config["num_hidden_layers"] = first + layers
    if "layer_types" in config:
        config["layer_types"] += config["layer_types"][-1:] * layers
    (new / "config.json").write_text(json.dumps(config, indent=1))
    (new / WEIGHTS).rename(new / BASE)
    names, layer = _read(model, first - 1)
    files = dict.fromkeys(names, BASE)
    for start in range(first, first + layers, LAYERS_PER_FILE):
        numbers = range(start, min(start + LAYERS_PER_FILE, first + layers))
        file = f"layers-{start}.safetensors"
        files |= _write_layers(new / file, layer, numbers)
    (new / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    new.rename(folder)


def _read(model: Path, number: int) -> tuple[list[str], dict[str, Any]]:
    """
    Return the names of all tensors, and the tensors of layer *number* by their names in it.

    The tensors of `OUTPUTS` are zero.
    """
    prefix = f"model.layers.{number}."
    with import_module("safetensors").safe_open(model / WEIGHTS, "pt") as weights:
        names = list(weights.keys())
        parts = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        layer = {part: weights.get_tensor(prefix + part) for part in parts}
    for part, tensor in layer.items():
        if part.startswith(OUTPUTS):
            tensor.zero_()
    return names, layer


def _write_layers(path: Path, layer: dict[str, Any], numbers: range) -> dict[str, str]:
    """Write *layer* to *path* once for each of *numbers*. Return the file of each tensor."""
    tensors = {
        f"model.layers.{number}.{name}": tensor.clone()
        for number in numbers
        for name, tensor in layer.items()
    }
    import_module("safetensors.torch").save_file(
        tensors,
        path,
        metadata={"format": "pt"},
    )
    return dict.fromkeys(tensors, path.name)


def main(
    model: Annotated[Path, typer.Argument(help="A folder with a model in one file.")],
    folder: Annotated[Path, typer.Argument(help="The folder of the slow model.")],
    layers: Annotated[int, typer.Option(min=1, help="Layers that change nothing.")] = 160,
) -> None:
    """Add layers to a model that change nothing but its time."""
    pad(model, folder, layers)


if __name__ == "__main__":
    script(main, EXAMPLES)
