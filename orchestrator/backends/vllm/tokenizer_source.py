"""Where token ids come from: the server's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...endpoints.chat_template import Fields
from ...http.client import Connection
from ...http.paths import DETOKENIZE, TOKENIZE, Body
from ...http.prompts import EncodedPrompt
from .bodies import Variables, detokenize_body, tokenize_body, tokenize_messages_body
from .replies import detokenized, tokenized, tokenized_prompt


class TokenizerSource:
    """
    Asks one server to encode, to render and to decode. `TextTokenizer` gets all ids from here.

    *template* has variables of the chat template. Another source of ids is a subclass that encodes,
    renders and decodes in another way, and sets `context_length`.
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
        self._messages_body = partial(tokenize_messages_body, model, template=template)

    async def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """
        Encode *text*. A spelling of a special token in *text* becomes this token.

        *special_tokens* adds the tokens that the tokenizer puts around every text.
        """
        body = tokenize_body(self._model, text, special_tokens=special_tokens)
        return await self._tokenize(body)

    async def render(
        self,
        messages: Fields,
        tools: Fields = (),
        *,
        generate: bool = True,
    ) -> list[int]:
        """
        Render *messages* and *tools* with the chat template, and encode the text.

        *generate* adds the generation prompt.
        """
        return await self._tokenize(
            self._messages_body(
                messages,
                generate=generate,
                tools=tools,
            )
        )

    async def render_prompt(self, messages: Fields, tools: Fields = ()) -> EncodedPrompt:
        """
        Do the same as `render`, and leave the ids as JSON. A prompt may have a million ids.

        Raise `ContextTooLong` if the prompt does not fit into the context.
        """
        body = self._messages_body(messages, tools=tools)
        reply = await self._connection.fetch(self.call, TOKENIZE, body)
        return tokenized_prompt(self.call, reply)

    async def decode(self, ids: Sequence[int]) -> str:
        """Decode *ids*, special tokens included."""
        body = detokenize_body(self._model, ids)
        return detokenized(
            self.call,
            await self._connection.post(
                self.call,
                DETOKENIZE,
                body,
            ),
        )

    async def _tokenize(self, body: Body) -> list[int]:
        reply = await self._connection.post(self.call, TOKENIZE, body)
        ids, self.context_length = tokenized(self.call, reply)
        return ids
