"""The routes of the page. A GET only reads; a POST needs the token of a form that the page made for the user."""

# Annotations must stay objects: FastAPI could not find the names of functions that are local.
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any
from urllib.parse import parse_qs

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException as AnyHttpError

from export_queue.core.client import Store
from export_queue.core.queue import DeadLetterFilter
from export_queue.page import figures
from export_queue.page.access import Act, FormRefused, Order, may_change, may_read_entries, may_see
from export_queue.page.rendering import asset, page
from export_queue.page.stores import StoreProblem, opened

log = logging.getLogger(__name__)

MOST_CHANGED = 1000
"""Maximum number of dead letters that one form retries or drops."""
LOCK_SECONDS = 5.0
"""How long a retry waits for drains of the same units."""

_REMEDIES = {
    401: "Sign in to Airflow, then load this page again.",
    403: "The overview needs the permission to see plugins; readers and dead letters also that to read the "
    "connection; retries and drops also that to delete it.",
    404: "Nothing has this address.",
    405: "This address does not take such a request.",
}


def create_app(conn_ids: Collection[str]) -> FastAPI:
    """Make the application.

    :param conn_ids: the connections whose stores are shown; others do not exist for it.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _answer_errors(app)

    def known(connection_id: str) -> str:
        if connection_id not in conn_ids:
            raise HTTPException(404)
        return connection_id

    _add_overview(app, conn_ids, known)
    _add_reader(app, known)
    _add_changes(app, known)
    return app


def _add_overview(app: FastAPI, conn_ids: Collection[str], known: Callable[[str], str]) -> None:
    connection = Annotated[str, Depends(known)]

    @app.get("/style.css", dependencies=[may_see])
    def style_sheet() -> Response:
        return asset("style.css", "text/css")

    @app.get("/logo.svg", dependencies=[may_see])
    def logo() -> Response:
        return asset("logo.svg", "image/svg+xml")

    @app.get("/", dependencies=[may_see])
    def stores(request: Request) -> Response:
        return page(request, "overview", stores={conn_id: _overview_of(conn_id) for conn_id in conn_ids})

    @app.get("/connections/{connection_id}", dependencies=[may_see])
    def one_store(request: Request, conn_id: connection) -> Response:
        found = _overview_of(conn_id, after=request.query_params.get("after"))
        return page(request, "overview", stores={conn_id: found})


def _add_reader(app: FastAPI, known: Callable[[str], str]) -> None:
    """Add the routes that show a reader and its dead letters."""
    connection = Annotated[str, Depends(known)]
    rights = [may_see, may_read_entries]

    @app.get("/connections/{connection_id}/reader", dependencies=rights)
    def reader(request: Request, conn_id: connection, reader: str) -> Response:
        with opened(conn_id) as store:
            found = figures.details(store, reader)
        return page(request, "reader", conn_id=conn_id, details=found)

    @app.get("/connections/{connection_id}/letters", dependencies=rights)
    def letters(request: Request, conn_id: connection, reader: str) -> Response:
        which = _selection(request.query_params)
        with opened(conn_id) as store:
            after = _position(request.query_params.get("after"))
            found = figures.letters(store, reader, _filter(which), after=after)
        return page(request, "letters", conn_id=conn_id, found=found, which=which)

    @app.get("/connections/{connection_id}/letter", dependencies=rights)
    def letter(request: Request, conn_id: connection, reader: str) -> Response:
        with opened(conn_id) as store:
            found = figures.letter(store, reader, _filter(_selection(request.query_params)))
        if found is None:
            raise HTTPException(404)
        return page(request, "letter", conn_id=conn_id, reader=reader, letter=found)


def _add_changes(app: FastAPI, known: Callable[[str], str]) -> None:
    """Add the routes that change a store, and the one that asks for a confirmation before."""
    connection = Annotated[str, Depends(known)]
    rights = [may_see, may_read_entries, may_change]

    @app.get("/connections/{connection_id}/confirm", dependencies=rights)
    def confirm(request: Request, conn_id: connection, reader: str, act: Act, user: GetUserDep) -> Response:
        which = _selection(request.query_params)
        with opened(conn_id) as store:
            count = figures.count_letters(store, reader, _filter(which), most=MOST_CHANGED)
        most = MOST_CHANGED if count is None else count
        order = Order(act=act, connection=conn_id, reader=reader, user=user.get_id(), most=most, which=which)
        return page(request, "confirm", order=order, count=count)

    @app.post("/connections/{connection_id}/{act}", dependencies=rights)
    def change(
        request: Request, conn_id: connection, act: Act, user: GetUserDep, token: Annotated[str, Depends(_token)]
    ) -> Response:
        order = Order.of_token(token, act=act, connection=conn_id, user=user.get_id())
        with opened(conn_id) as store:
            count = _changed(store, order, who=user.get_name() or user.get_id())
        return page(request, "changed", order=order, count=count)


async def _token(request: Request) -> str:
    form = parse_qs((await request.body()).decode("utf-8", "replace"))
    return form.get("token", [""])[0]


def _changed(store: Store, order: Order, *, who: str) -> int:
    letters, which = store.dead_letters, _filter(order.which)
    if not order.most:
        return 0
    if order.act == "drop":
        return letters.drop(order.reader, which, limit=order.most, who=who)
    return letters.retry(order.reader, which, limit=order.most, lock_timeout=LOCK_SECONDS, who=who)


def _overview_of(conn_id: str, *, after: str | None = None) -> figures.Overview | StoreProblem:
    try:
        with opened(conn_id) as store:
            return figures.overview(store, after=after)
    except StoreProblem as problem:
        return problem


def _selection(query: Mapping[str, str]) -> dict[str, str]:
    """Return the selection of dead letters in a query; empty fields of a form select nothing."""
    return {name: query[name] for name in ("key", "key_hex", "seq", "error_class", "drain_id") if query.get(name)}


def _filter(which: Mapping[str, str]) -> DeadLetterFilter:
    """Return the filter that a selection describes.

    :raises StoreProblem: a field does not have the form that the pages give it.
    """
    seq = which.get("seq")
    return DeadLetterFilter(
        key=_bytes(which["key_hex"]) if "key_hex" in which else which.get("key"),
        seq=None if seq is None else _number(seq),
        error_class=which.get("error_class"),
        drain_id=which.get("drain_id"),
    )


def _position(after: str | None) -> tuple[int, bytes] | None:
    if after is None:
        return None
    seq, _, key = after.partition(":")
    return _number(seq), _bytes(key)


def _number(digits: str) -> int:
    if not digits.isdecimal() or int(digits[:20]) >= 1 << 63:
        raise StoreProblem(f"expected a sequence, found {digits[:50]!r}", "", status=400)
    return int(digits)


def _bytes(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise StoreProblem("expected a key as hexadecimal digits", "", status=400) from None


def _answer_errors(app: FastAPI) -> None:
    """Answer every error with a page that names no secret; the log of the API server has the rest."""

    def problem(request: Request, error: Any) -> Response:
        return page(request, "error", status=error.status, message=error.message, hint=error.hint)

    def refused(request: Request, error: Any) -> Response:
        message = "This form is too old, or was not made for you by this page. Nothing was changed."
        return page(request, "error", status=403, message=message, hint="Open the confirmation again.")

    def http_error(request: Request, error: Any) -> Response:
        hint = _REMEDIES.get(error.status_code, "")
        return page(request, "error", status=error.status_code, message=str(error.detail), hint=hint)

    def bad_request(request: Request, error: Any) -> Response:
        return page(request, "error", status=400, message="The address is not one that the pages contain.", hint="")

    def failed(request: Request, error: Any) -> Response:
        log.error("The page %s failed", request.scope.get("path"), exc_info=error)
        return page(
            request, "error", status=500, message="The page failed.", hint="The log of the API server says why."
        )

    app.add_exception_handler(StoreProblem, problem)
    app.add_exception_handler(FormRefused, refused)
    app.add_exception_handler(AnyHttpError, http_error)
    app.add_exception_handler(RequestValidationError, bad_request)
    app.add_exception_handler(Exception, failed)
