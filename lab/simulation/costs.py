"""What the passes of one server take. Values, without I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from stepspec.orchestrator.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ServerCosts:
    """
    Seconds of a forward pass of one server, and how much it serves at once.

    A pass takes *per_pass*, plus *per_sequence* for each running sequence that it gives a token,
    plus *per_prompt_token* for each prompt token that is not in the prefix cache, plus
    *per_context_token* for each token of context that those sequences attend to. A request takes
    *per_request* besides, before it reaches the queue: the network and the server's front end. A
    verdict takes *per_verdict* more.

    At most *sequences* run at once (``--max-num-seqs``); a pass has at most *tokens*
    (``--max-num-batched-tokens``), of which the prompts get what the running sequences leave. The
    prefix cache works in blocks of *block* tokens. Running sequences and cached prefixes share
    *cache* tokens of memory, None if it is never full. *written* is the mean number of tokens that
    a sequence gains in a pass: above 1 with token-level speculation, whose costs are then in the
    other fields.

    On a card that several servers share, a pass takes *beside* times as long while another server
    of it works, *beside_reading* times while that one reads a prompt, and *reading_beside* times if
    it reads one itself (None: as *beside*). With a *beside* of None the passes of these servers
    take turns.

    Raise `ConfigurationError` for a negative time, and for a size below 1.
    """

    per_pass: float
    per_sequence: float = 0.0
    per_prompt_token: float = 0.0
    per_context_token: float = 0.0
    per_request: float = 0.0
    per_verdict: float = 0.0
    sequences: int = 256
    tokens: int = 8192
    block: int = 16
    cache: int | None = None
    written: float = 1.0
    beside: float | None = None
    beside_reading: float | None = None
    reading_beside: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name.startswith("per_") else 1
            if value is not None and not (math.isfinite(value) and value >= least):
                raise ConfigurationError(
                    f"server costs: {field.name} is {value}, and has to be at least {least}"
                )
        if self.tokens < self.sequences:
            raise ConfigurationError(
                f"server costs: a pass of {self.tokens} tokens has no room for {self.sequences}"
                " sequences"
            )

    def seconds(self, sequences: int, prompt_tokens: int = 0, context: int = 0) -> float:
        """
        Seconds of one pass in which *sequences* get a token each and *prompt_tokens* are read.

        *context* is the sum of the tokens that all these sequences attend to.
        """
        return (
            self.per_pass
            + self.per_sequence * sequences
            + self.per_prompt_token * prompt_tokens
            + self.per_context_token * context
        )
