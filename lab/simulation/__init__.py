"""Simulate servers, users and methods on a virtual clock: the real loop, with models that answer from statistics."""

from ..script import Script, Turn
from .costs import ServerCosts
from .figures import Figures, simulate

__all__ = ["Figures", "Script", "ServerCosts", "Turn", "simulate"]
