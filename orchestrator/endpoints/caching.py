"""
How a server caches prefixes, read from ``/metrics``: vLLM shows its cache configuration there as labels.

Hybrid models (attention beside Mamba, linear attention or short convolutions) can go on only from a saved recurrent
state. vLLM saves one where a prompt ends, rounded down to the match unit; without a unit, to a block of 528 to 1600
tokens. A prompt that ends in a question therefore leaves no state that the next question could go on from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

NAME = b"vllm:cache_config_info{"
UNIT = 16  # tokens: divides the blocks of hybrids, which are multiples of 16 on GPUs and of 128 on CPUs
FINE = 128  # tokens; no block of a model without recurrent layers is larger
MATCH_UNIT, MODE, RETENTION = "prefix_match_unit", "mamba_cache_mode", "prefix_cache_retention_interval"
CHECKPOINTS = ("enable_mamba_shared_prefix_checkpoint", "enable_mamba_fine_grained_prefix_cache")  # newest name first

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """
    The prefix cache as the server describes it; None for what it does not say.

    *enabled*: prefixes are cached. *block* and *unit* are in tokens: what is allocated at a time, and where a cached
    prefix may end if that is finer. *mode* is how recurrent states are cached, None for a model without any. *known*
    are the names of all settings, which tell the flags that this version of vLLM has.
    """

    enabled: bool | None = None
    block: int | None = None
    unit: int | None = None
    mode: str | None = None
    known: tuple[str, ...] = ()

    @property
    def hybrid(self) -> bool:
        """Whether the model has recurrent states that are cached with the prefix."""
        return self.mode is not None

    @property
    def checkpoints(self) -> bool:
        """Whether a state is saved where a prompt ends, so that a prompt sent for that purpose alone is worth it."""
        return self.hybrid and self.enabled is not False and self.unit is not None and self.unit < (self.block or 0)

    @property
    def finest(self) -> int:
        """The match unit to start this server with, in tokens: vLLM wants one that divides the block."""
        return gcd(self.block or UNIT, 2 * UNIT)


def read(metrics: bytes) -> CacheConfig | None:
    """Read the configuration of the first engine behind a server; None if it shows none."""
    line = next((line for line in metrics.splitlines() if line.startswith(NAME)), None)
    if line is None:
        return None
    labels = dict(_LABEL.findall(line.decode(errors="replace")))
    enabled = labels.get("enable_prefix_caching")
    mode = labels.get(MODE)
    return CacheConfig(
        enabled=None if enabled is None else enabled == "True",
        block=_number(labels, "block_size"),
        unit=_number(labels, MATCH_UNIT),
        mode=None if mode in (None, "None", "none") else mode,
        known=tuple(sorted(labels)),
    )


def _number(labels: Mapping[str, str], name: str) -> int | None:
    said = labels.get(name, "")
    return int(said) if said.isdigit() else None
