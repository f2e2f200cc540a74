"""Model names: every method, ``auto``, and the two served models, which are passed through to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..chain import Role
from ..endpoints import AnyEndpoint
from ..near import near
from .errors import Refusal
from .interfaces import Offer

AUTO = "auto"
ROLES: tuple[Role, ...] = ("small", "large")


@dataclass(frozen=True, slots=True)
class Raw:
    """A served model by its own name: requests go to its server as they are."""

    role: Role
    name: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The names that a request may choose between."""

    offer: Offer

    @property
    def orchestrated(self) -> tuple[str, ...]:
        return (AUTO, *self.offer.methods)

    @property
    def raw(self) -> Mapping[str, Raw]:
        """Both models, each under its own name if no other means it, and with its role before it otherwise."""
        served: dict[Role, str] = {role: self._endpoint(role).name for role in ROLES}
        taken = {*self.orchestrated, *([served["small"]] if served["small"] == served["large"] else [])}
        return {(f"{role}:{name}" if name in taken else name): Raw(role, name) for role, name in served.items()}

    def find(self, name: str) -> str | Raw:
        """Return the method or the model that *name* means. Raise `Refusal`."""
        if name == AUTO:
            return self.offer.policy
        if name in self.offer.methods:
            return name
        found = self.raw.get(name) or {f"{raw.role}:{raw.name}": raw for raw in self.raw.values()}.get(name)
        if found is None:
            known = [*self.orchestrated, *self.raw]
            raise Refusal(
                404,
                f"there is no model {name!r}{near(name, known)}; GET /v1/models lists them",
                "model",
                "model_not_found",
            )
        return found

    def label(self, name: object) -> str:
        """*name* as a label of few values: a method, ``small`` or ``large`` passed through, or ``unknown``."""
        try:
            found = self.find(name) if isinstance(name, str) else None
        except Refusal:
            found = None
        return "unknown" if found is None else f"raw:{found.role}" if isinstance(found, Raw) else found

    def listed(self, created: int) -> list[dict[str, Any]]:
        """The list of models in OpenAI's shape, with the context that each can take."""
        return [self.described(name, created) for name in (*self.orchestrated, *self.raw)]

    def described(self, name: str, created: int) -> dict[str, Any]:
        """One entry of the list. Raise `Refusal` for a name that means nothing."""
        found = self.find(name)
        roles: tuple[Role, ...] = (found.role,) if isinstance(found, Raw) else ROLES
        owner = "vllm" if isinstance(found, Raw) else "stepspec"
        room = min(self._endpoint(role).room for role in roles)
        return {"id": name, "object": "model", "created": created, "owned_by": owner, "max_model_len": room}

    def _endpoint(self, role: Role) -> AnyEndpoint:
        return self.offer.engine.small if role == "small" else self.offer.engine.large
