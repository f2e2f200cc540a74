"""Simulate servers, users and methods on a virtual clock: the real loop, with models that answer from statistics."""

from .costs import ServerCosts
from .figures import Figures, ServerWork, simulate
from .script import Script, Statistics, Turn

__all__ = ["Figures", "Script", "ServerCosts", "ServerWork", "Statistics", "Turn", "simulate"]
