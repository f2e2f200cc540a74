"""The arms that measurements compare with others."""

from __future__ import annotations

from . import plain
from .sample import Arm

PLAIN = Arm.of(plain.PLAIN, plain.PLAIN)
LARGE = Arm.of("large alone", "large")
SMALL = Arm.of("small alone", "small")
SHIPPED = Arm.of("SpecReason", "specreason")
