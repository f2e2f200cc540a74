"""
The stand-in for vLLM with the vocabulary of a real family: it divides text among tokens as vLLM
does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from ...stand_in import FakeVllm

HALF = "\ufffd"
CONTEXT = 4  # tokens, of a byte each, make any character


@dataclass
class RealVllm(FakeVllm):
    """
    Writes the tokens *written*, after those of them that the prompt ends in, and then ends the turn
    with *end*.

    Text is made as vLLM makes it: a stream that is primed with the prompt and holds half a
    character back, while the spelling of each token is looked up by itself.
    """

    tokenizer: Tokenizer | None = None
    written: Sequence[int] = ()
    end: int = 0

    def id(self, piece: bytes) -> int:
        (number,) = self.encode(piece.decode())
        return number

    def encode(self, text: str) -> list[int]:
        assert self.tokenizer is not None
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        assert self.tokenizer is not None
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    @property
    def turn_end(self) -> int:
        return self.end

    def tokens(self, body: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
        assert self.tokenizer is not None
        prompt: list[int] = body["prompt"]
        stream = DecodeStream(ids=prompt, skip_special_tokens=False)
        context = list[int]()
        for number in (*self._going_on(prompt), self.end):
            try:
                new = stream.step(self.tokenizer, number) or ""
            except (
                Exception
            ):  # Bytes that are tokens made a character and then none: vLLM begins a new stream.
                stream = DecodeStream(skip_special_tokens=False)
                new = stream.step(self.tokenizer, number) or ""
            yield new, self._spelling(number, context), number
            context.append(number)

    def _going_on(self, prompt: Sequence[int]) -> Sequence[int]:
        """The rest of what is written, after as much of it as *prompt* ends in."""
        full = list(self.written)
        most = min(len(full), len(prompt))
        begun = next(
            size
            for size in range(most, -1, -1)
            if list(prompt[len(prompt) - size :]) == full[:size]
        )
        return full[begun:]

    def _spelling(self, number: int, context: Sequence[int]) -> str:
        """
        Spell one token as the log-probabilities do: "" for half a character, the whole of it for
        its last bytes.
        """
        alone = self.decode([number])
        if not alone.endswith(HALF):
            return alone
        for size in range(1, min(CONTEXT, len(context)) + 1):
            before = list(context[-size:])
            text = self.decode([*before, number])
            if text.endswith(HALF):
                continue
            while before and self.decode(before[-1:]).endswith(HALF):
                before.pop()
            return text.removeprefix(self.decode(before)) if before else text
        return ""
