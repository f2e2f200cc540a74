"""
Everything that stepspec raises on purpose, words for cures, and the stream for messages.

    StepspecError
    |-- ConfigurationError            a setting, an option or an argument is wrong (a ValueError)
    |-- EndpointError                 a served model failed: with its role, URL and kind of request
    |   |-- EndpointUnavailable       no connection, a server error, or no response in time
    |   |   |-- EndpointUnreachable   no connection: refused, an unknown host, no TLS, ...
    |   |   |-- ModelGone             the server does not serve the model any more
    |   |   `-- VerifierFailed        no rating by a verifier that may have no fallback
    |   |-- EndpointRejected          the server rejected the request: key, model name, body
    |   |   `-- ContextTooLong        the chain no longer fits into the model's context
    |   `-- MalformedReply            the response does not match the request
    |       `-- FormatIgnored         the model did not write in the format it was asked for
    |-- LocalShortage                 this process lacks files, ports, memory or a slot
    |-- MissingCapability             the method needs something that this endpoint cannot do
    |-- WorkersLost                   an evaluation has no worker left, or one trial loses too many
    `-- ServerError                   a server that stepspec itself started
        |-- ServerNotReady            not healthy before the deadline
        `-- ServerDied                its process ended; carries its last log lines
"""

from __future__ import annotations

import difflib
import io
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType

from .chain import Role

WAITING = "stepspec.waiting"
"""The logger of servers that do not answer. The command line shows what it logs."""
VLLM_FOR_CPUS = "without a GPU, run `make install` in a clone and use its .venv"
MAX_WORD_CHARACTERS = 64
"""No similar words are sought for a longer word. The time grows with the square of the length."""


class StepspecError(Exception):
    """The base class of all errors above."""


class ConfigurationError(StepspecError, ValueError):
    """A setting, an option or an argument is wrong. The message says which, and what is valid."""

    def __init__(self, message: str, *, option: str = "") -> None:
        super().__init__(message)
        self.option = option
        """The name of the policy's option that is wrong; "" if it is none, or more than one."""


class EndpointError(StepspecError):
    """A served model failed."""

    status: int = 0
    """The HTTP status of the response, or of the error inside of it; 0 if there is none."""
    body: bytes = b""
    """The body of a response with an error status; b"" if there is none."""
    headers: Mapping[str, str] = MappingProxyType({})
    """The headers of a response with an error status."""

    def __init__(
        self,
        message: str,
        *,
        role: Role | str = "",
        url: str = "",
        verb: str = "",
    ) -> None:
        where = f"the {role} model at {url}" if role else url
        super().__init__(f"{where}: {message}" if where else message)
        self.role = role
        """The role of the model; "" if it has none."""
        self.url = url
        """The URL of the model's server; "" if it is unknown."""
        self.verb = verb
        """The kind of request; "" if there was none."""
        self.cause = message
        """The message without the model."""


class EndpointUnavailable(EndpointError):
    """
    No connection, a server error, or no response before the deadline.

    Another replica, or a retry, may work.
    """

    retry_after: float = 0.0
    """Seconds after which the server wants the request again; 0 if it did not say."""


class EndpointUnreachable(EndpointUnavailable):
    """There is no connection to the server. For now, every request to it will fail."""


class ModelGone(EndpointUnavailable):
    """The server does not serve the model any more. Another one was started there."""


class VerifierFailed(EndpointUnavailable):
    """The *verifier* gave no rating, and its fallback is to fail the run."""

    def __init__(self, message: str, *, verifier: str) -> None:
        super().__init__(f"the {verifier} gave no rating: {message}")
        self.role = "critic"
        self.verb = "rate"
        self.cause = message


class EndpointRejected(EndpointError):
    """The server understood the request and rejected it. It will reject the same request again."""


class ContextTooLong(EndpointRejected):
    """The chain and the requested tokens no longer fit into the model's context."""


class MalformedReply(EndpointError):
    """The response does not match the request. Another replica, or a retry, may work."""


class FormatIgnored(MalformedReply):
    """The model did not write in the format that it was asked for, and will not next time."""


class MissingCapability(StepspecError):
    """
    The method needs something that this endpoint cannot do.

    ``stepspec doctor`` lists what each endpoint can do.
    """


class LocalShortage(StepspecError):
    """
    This process has no file descriptor, port or memory left, or no slot of an endpoint became free.

    No server is at fault.
    """


class WorkersLost(StepspecError):
    """A distributed evaluation has no worker left, or one of its trials loses too many workers."""


class ServerError(StepspecError):
    """A server that stepspec itself started failed."""


class ServerNotReady(ServerError):
    """The server was not healthy before its deadline."""


class ServerDied(ServerError):
    """The server's process ended. The message has the exit code and the last lines of the log."""


def near(word: str, known: Iterable[str]) -> str:
    """
    Return " (did you mean ...?)" with the *known* word that is most similar to *word*.

    Return "" if no word is similar.
    """
    if len(word) > MAX_WORD_CHARACTERS:
        return ""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def install_command(*extras: str) -> str:
    """Return the command that installs the *extras*. It reads as the end of a sentence."""
    names = ",".join(extras)
    return f'pip install "stepspec[{names}]" (in a clone: ".[{names}]")'


class GuardedStream(io.TextIOBase):
    """
    Standard error, for logs. What cannot be written is lost, and ends no request and no service.

    The disk may be full, the reader gone, or the stream missing.
    """

    def write(self, text: str, /) -> int:
        with suppress(
            OSError,
            ValueError,
            AttributeError,
        ):  # without a stream, sys.stderr is None
            return sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()

    def isatty(self) -> bool:
        with suppress(ValueError, AttributeError):
            return sys.stderr.isatty()
        return False
