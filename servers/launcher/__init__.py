"""Start vLLM servers as children of this program, and never leave one behind."""

from .launch import Progress, Served, Server, launch
from .pair import TokenSpeculation

__all__ = ["Progress", "Served", "Server", "TokenSpeculation", "launch"]
