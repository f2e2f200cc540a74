"""A nested pair in the small model's place: the tiny model drafts for the small one, and both for the large one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .arms import Arm

THREE = Arm("three models", "specreason")
NESTED: Mapping[str, Mapping[str, Any]] = {
    # The small miniature model has not learnt to judge: its grades of the tiny one's steps have an AUROC of 0.49. Its
    # probabilities tell right from wrong (0.95): with this rollback it passes 95% of the right steps, 11% of the wrong.
    THREE.name: {"policy": "bild", "options": {"scale": "step", "fallback": 0.4, "rollback": 1.0}, "ahead": 2},
}

SMALL_PRINT = (
    "Three models: SpecReason, whose small model is a pair in its turn. A tiny one drafts, the small one "
    "reads its drafts and writes on where it disagrees (BiLD), and the large one grades what comes of it. What each of "
    "them wrote and read is in the samples' ledgers."
)
