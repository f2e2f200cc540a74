"""``stepspec serve`` as its users run it, for tests."""

from lab.service_program import Program, logged, serve

__all__ = ["Program", "logged", "serve"]
