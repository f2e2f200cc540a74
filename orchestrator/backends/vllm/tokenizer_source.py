"""Where token ids come from: the server's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Sequence

from ...endpoints.chat_template import Fields
from ...http.client import Connection
from ...http.paths import DETOKENIZE, TOKENIZE, Body
from ...http.prompts import EncodedPrompt
from .bodies import Variables
from .replies import detokenized, tokenized


class TokenizerSource:
    """
    Asks one server to encode, to render and to decode. `TextTokenizer` gets all ids from here.

    *template* has variables of the chat template.

    A second source of ids is a subclass that overrides `encode` and `decode`. `encode` has to set
    `context_length`, because `ModelTokenizer.learn` reads the length after the first call of
    `encode`, before any rendering. Rendering needs the chat template, which a tokenizer.json does
    not have. So the subclass leaves `render` to the server.
    """

    def __init__(
        self,
        connection: Connection,
        model: str,
        template: Variables | None = None,
    ) -> None:
        self.call = connection.call("tokenize")
        """The request that error messages about this tokenizer name."""
        self.context_length = 0
        """The longest sequence that the model takes, in tokens. 0: no text was encoded yet."""
        self._connection = connection
        self._model = model
        self._template = template

    async def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """
        Encode *text*. A spelling of a special token in *text* becomes this token.

        *special_tokens* adds the tokens that the tokenizer puts around every text.
        """
        return (await self._tokenize({"prompt": text, "add_special_tokens": special_tokens})).ids

    async def render(
        self,
        messages: Fields,
        tools: Fields = (),
        *,
        generate: bool = True,
    ) -> EncodedPrompt:
        """
        Render *messages* and *tools* with the chat template, and encode the text.

        *generate* adds the generation prompt. The ids stay JSON: a prompt may have a million of
        them.
        """
        body: Body = {"messages": messages, "add_generation_prompt": generate}
        if tools:
            body["tools"] = tools
        if self._template:
            body["chat_template_kwargs"] = self._template
        return await self._tokenize(body)

    async def decode(self, ids: Sequence[int]) -> str:
        """Decode *ids*, special tokens included."""
        body: Body = {"model": self._model, "tokens": ids}
        return detokenized(self.call, await self._connection.post(self.call, DETOKENIZE, body))

    async def _tokenize(self, body: Body) -> EncodedPrompt:
        body = {"model": self._model, **body}
        reply = await self._connection.fetch(self.call, TOKENIZE, body)
        prompt, self.context_length = tokenized(self.call, reply)
        return prompt
