"""Arms that only experiments compare; `stepspec.evals.arms` has the common ones."""

from __future__ import annotations

from dataclasses import replace

from stepspec.evals.sample import Arm

SEQUENTIAL = Arm.of("SpecReason, sequential", "specreason", ahead=0)
BILD = Arm.of("BiLD, steps", "bild", {"scale": "step"})
READING = Arm.of("reading", "reading")
REFLECTIVE = Arm.of("reflective", "reflective")
AUTO = Arm.of("auto", "bild", {"scale": "step"}, auto=True)
"""`auto` over the method that was the fastest on the short world: it chooses who writes, and not between methods."""
THINKING = Arm.of("SpecReason, thinking only", "specreason", ending="small", answer="large")
"""The part for which the miniature judge was trained, without answers and without steps that lack their ends."""
THINKING_SEQUENTIAL = replace(
    THINKING, name=f"{THINKING.name}, sequential", run=THINKING.run.with_overrides({"ahead": 0})
)
