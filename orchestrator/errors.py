"""
Everything that stepspec raises on purpose.

    StepspecError
    |-- ConfigurationError (ValueError)     yours: a setting, an option or an argument is wrong
    |-- EndpointError                       a served model: names its role, its URL and what was asked of it
    |   |-- EndpointUnavailable             no connection, a server error, or no answer before the deadline
    |   |-- EndpointRejected                the server understood and refused: key, model name, request
    |   |   `-- ContextTooLong              the chain no longer fits into the model's context
    |   `-- MalformedReply                  the server answered, but not what was asked
    |-- MissingCapability                   the method needs something that this endpoint cannot do
    |-- WorkersLost                         an eval on other machines has none left, or one trial costs it too many
    `-- ServerError                         a server that stepspec itself started
        |-- ServerNotReady                  not healthy before the deadline
        `-- ServerDied                      its process ended; carries the exit code and the last log lines
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from .chain import Role


class StepspecError(Exception):
    """The root of the tree above."""


class ConfigurationError(StepspecError, ValueError):
    """A setting, an option or an argument is wrong; the message says which and what would do."""


class EndpointError(StepspecError):
    """A served model failed. *role*, *url* and *verb* say which and at what."""

    def __init__(self, message: str, *, role: Role | str = "", url: str = "", verb: str = "") -> None:
        where = f"the {role} model at {url}" if role else url
        super().__init__(f"{where}: {message}" if where else message)
        self.role, self.url, self.verb, self.cause = role, url, verb, message


class EndpointUnavailable(EndpointError):
    """No connection, a server error, or no answer before the deadline. Another replica or a later try may do."""


class EndpointRejected(EndpointError):
    """The server understood the request and refused it. The same request will be refused again."""


class ContextTooLong(EndpointRejected):
    """The chain and the tokens asked for no longer fit into the model's context."""


class MalformedReply(EndpointError):
    """The server answered, but not what was asked."""


class MissingCapability(StepspecError):
    """The method needs something that this endpoint cannot do; ``stepspec doctor`` lists what each can."""


class WorkersLost(StepspecError):
    """An eval on other machines has no worker left, or one of its trials costs it too many."""


class ServerError(StepspecError):
    """A server that stepspec itself started failed."""


class ServerNotReady(ServerError):
    """The server was not healthy before its deadline."""


class ServerDied(ServerError):
    """The server's process ended; the message carries the exit code and the last log lines."""


def near(word: str, known: Iterable[str]) -> str:
    """Suggest the one of the *known* words that is most like *word*, in brackets to put behind it; if any is."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
