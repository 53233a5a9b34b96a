"""Who may see and do what. Airflow does not authenticate requests to a mounted application, so each route asks here.

Users and permissions are Airflow's own. Without a valid token or cookie the answer is 401, without the permission 403.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.auth.tokens import get_signing_key
from airflow.api_fastapi.core_api.security import requires_access_connection, requires_access_view
from fastapi import Depends
from itsdangerous import BadData, URLSafeTimedSerializer

FORM_SECONDS = 3600
"""How long a confirmation page can be used."""
_SALT = "export_queue.page"

Act = Literal["retry", "drop"]

may_see = Depends(requires_access_view(AccessView.PLUGINS))
"""The overview: who may see plugins."""
may_read_entries = Depends(requires_access_connection("GET"))
"""What may contain keys, values and reasons of entries: who may read the connection as well."""
# Not PUT: with several teams, Airflow then expects the body of its own API, which a form does not have.
may_change = Depends(requires_access_connection("DELETE"))
"""Retries and drops: who may delete the connection as well."""


class FormRefused(Exception):
    """A form was not made by this application for this user and this act, or it is too old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a user is asked to confirm. A form contains nothing else, signed, so that no other site can make one."""

    act: Act
    connection: str
    reader: str
    user: str
    most: int
    """Maximum number of letters."""
    seen: int
    """The newest act that the user has seen; after a newer one the order has no effect, so that it counts once."""
    until_ms: int
    """When the letters were shown, by the store's clock. Letters that are set aside later are not meant."""
    which: dict[str, Any]
    """The selection, as in the query of a page."""

    def signed(self) -> str:
        """Return the order as the token of a form."""
        return str(_signer().dumps(asdict(self)))

    @classmethod
    def of_token(cls, token: str, *, act: str, connection: str, user: str) -> Self:
        """Read the token of a form.

        :raises FormRefused: it is not from this application, too old, or of another user, act or connection.
        """
        try:
            order = cls(**_signer().loads(token, max_age=FORM_SECONDS))
        except (BadData, TypeError):
            raise FormRefused from None
        if (order.act, order.connection, order.user) != (act, connection, user):
            raise FormRefused
        return order


def _signer() -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(get_signing_key("api", "secret_key"), salt=_SALT)
