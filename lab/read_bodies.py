"""
Read request bodies by the request classes of the vLLM on the path: ``read_bodies.py FILE``.

Print a line for each field that the class of its route does not know, and for each body that it
refuses. Print nothing if all is well. The classes need torch, which a compiled vLLM does not.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

CLASSES = {
    "/v1/completions": ("vllm.entrypoints.openai.completion.protocol", "CompletionRequest"),
    "/v1/chat/completions": (
        "vllm.entrypoints.openai.chat_completion.protocol",
        "ChatCompletionRequest",
    ),
    "/inference/v1/generate": (
        "vllm.entrypoints.scale_out.token_in_token_out.protocol",
        "GenerateRequest",
    ),
}


def problems(path: str, body: dict[str, Any]) -> list[str]:
    """Return what the class of the route *path* says against *body*."""
    module, name = CLASSES[path]
    kind = getattr(import_module(module), name)
    try:
        request = kind.model_validate(body)
    except ValueError as exc:
        return [f"{path}: {exc}"]
    unknown: dict[str, Any] = request.model_extra or {}
    return [f"{path}: {field} is unknown" for field in unknown]


def main() -> None:
    bodies = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    found: set[str] = set()
    checked = 0
    for path in CLASSES.keys() & bodies.keys():
        for body in bodies[path]:
            checked += 1
            found.update(problems(path, body))
    if not checked:
        found.add("no body was checked")
    print("\n".join(sorted(found)))


if __name__ == "__main__":
    main()
