"""Start vLLM servers as children of this program, and never leave one behind."""

from .launch import Progress, Served, ServerCommand, launch

__all__ = ["Progress", "Served", "ServerCommand", "launch"]
