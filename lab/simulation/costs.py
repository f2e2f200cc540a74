"""What the passes of one server take. Values, without I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from stepspec.orchestrator.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ServerCosts:
    """
    Seconds of a forward pass of one server, and how much it serves at once.

    Raise `ConfigurationError` for a negative time, and for a size below 1.
    """

    per_pass: float
    """Seconds of a pass of no tokens."""
    per_sequence: float = 0.0
    """Seconds for each running sequence that gets a token."""
    per_prompt_token: float = 0.0
    """Seconds for each prompt token that is not in the prefix cache."""
    per_context_token: float = 0.0
    """Seconds for each token of context that the sequences attend to."""
    per_request: float = 0.0
    """Seconds of the network and the server's front end, before a request reaches the queue."""
    per_verdict: float = 0.0
    """More seconds for a request that judges."""
    sequences: int = 256
    """Sequences that run at once (``--max-num-seqs``)."""
    tokens: int = 8192
    """Tokens of a pass (``--max-num-batched-tokens``). Prompts get what sequences leave."""
    block: int = 16
    """Tokens of a block of the prefix cache."""
    cache: int | None = None
    """Tokens of memory for running sequences and cached prefixes; None: it is never full."""
    written: float = 1.0
    """
    The mean number of tokens that a sequence gains in a pass. With token-level speculation it is
    above 1, and the other fields have the costs of the speculation.
    """
    beside: float | None = None
    """
    The factor of a pass while another server of a shared card works; None: passes take turns.
    """
    beside_reading: float | None = None
    """The factor while the other server reads a prompt; None: as ``beside``."""
    reading_beside: float | None = None
    """The factor of a pass that reads a prompt; None: as ``beside``."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name.startswith("per_") else 1
            if value is not None and not (math.isfinite(value) and value >= least):
                raise ConfigurationError(
                    f"server costs: {field.name} is {value}, and has to be at least {least}",
                )
        if self.tokens < self.sequences:
            raise ConfigurationError(
                f"server costs: a pass of {self.tokens} tokens has no room for {self.sequences}"
                " sequences",
            )

    def seconds(
        self,
        sequences: int,
        prompt_tokens: int = 0,
        context: float = 0,
    ) -> float:
        """
        Return the seconds of a pass in which *sequences* get a token and *prompt_tokens* are read.

        *context* is the sum of the tokens that all sequences attend to.
        """
        return (
            self.per_pass
            + self.per_sequence * sequences
            + self.per_prompt_token * prompt_tokens
            + self.per_context_token * context
        )
