"""The code of users of other clients, each with a separate environment; see docs/service.md."""
