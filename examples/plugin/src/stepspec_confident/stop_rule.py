"""Concluded: a stop rule that ends the thinking once two steps state the same answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepspec import Chain, Model

STATED = re.compile(r"\banswer is\s+(\S+?)[.,!]?(?=\s|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Concluded:
    """End the thinking once the last step and an earlier one state the same answer. *large* is not used."""

    large: Model

    async def __call__(self, chain: Chain) -> bool:
        if not chain.steps:
            return False
        *earlier, last = ([match[1] for match in STATED.finditer(step.text)] for step in chain.steps)
        return any(answer in answers for answer in last for answers in earlier)
