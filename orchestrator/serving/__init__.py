"""Start vLLM servers as children of this program, and never leave one behind."""

from .launch import launch
from .server import Progress, Served, Server
from .speculation import Speculation

__all__ = ["Progress", "Served", "Server", "Speculation", "launch"]
