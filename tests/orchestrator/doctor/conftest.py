from ..endpoints.conftest import meet

__all__ = ["meet"]
