"""Start vLLM servers as children of this program, and never leave one behind."""

from .launch import Progress, Served, ServerCommand, launch
from .pair import TokenSpeculation

__all__ = ["Progress", "Served", "ServerCommand", "TokenSpeculation", "launch"]
