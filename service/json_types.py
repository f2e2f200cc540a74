"""The types of JSON objects and of headers in requests and replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object."""
JsonFields: TypeAlias = Mapping[str, Any]
"""A JSON object, or some of its fields, that is only read."""
HttpHeaders: TypeAlias = Mapping[str, str]
"""The headers of a request or of a response, by name."""
