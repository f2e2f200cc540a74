"""What is on this machine of a model: a folder, or what the hub's cache holds. Reads files; downloads nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast


def folder(model: str, revision: str | None = None) -> Path | None:
    """Return where the files of *model* are, or None if they would have to be downloaded."""
    if Path(model).is_absolute():
        return Path(model) if (Path(model) / "config.json").is_file() else None
    kept = _cache() / f"models--{model.replace('/', '--')}"
    commit = revision or "main"
    named = kept / "refs" / commit
    if named.is_file():
        commit = named.read_text(encoding="utf-8").strip()
    snapshot = kept / "snapshots" / commit
    return snapshot if (snapshot / "config.json").is_file() else None


def configuration(at: Path) -> Mapping[str, Any] | None:
    """Read a model's ``config.json``; None if it is none."""
    return _table(at / "config.json")


def vocabulary(at: Path) -> Mapping[str, int] | None:
    """Return the id of every token; None where ``tokenizer.json`` does not list them."""
    tokenizer = _table(at / "tokenizer.json")
    listed = tokenizer and cast("Mapping[str, Any]", tokenizer.get("model") or {}).get("vocab")
    if tokenizer is None or not isinstance(listed, dict):
        return None
    added = cast("list[dict[str, Any]]", tokenizer.get("added_tokens") or [])
    return {**cast("dict[str, int]", listed), **{str(one["content"]): int(one["id"]) for one in added}}


def _cache() -> Path:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub")


def _table(file: Path) -> Mapping[str, Any] | None:
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return cast("Mapping[str, Any]", read) if isinstance(read, dict) else None
