"""Start vLLM servers as children of this program, and never leave one behind."""

from .launch import Served, ServerCommand, launch

__all__ = ["Served", "ServerCommand", "launch"]
