"""The routes of the page. A GET only reads; a POST needs the token of a form that the page made for the user."""

# Annotations must stay objects: FastAPI could not find the names of functions that are local.
import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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

Known = Callable[[str, Request], str]
"""Returns the connection of a request, or refuses the request."""

MOST_CHANGED = 1000
"""Maximum number of dead letters that one form retries or drops."""
FORM_BYTES = 1 << 18
"""Maximum size of a form. It holds a selection, which came in an address, and servers limit addresses more strictly."""
LOCK_SECONDS = 5.0
"""How long a retry waits for drains of the same units."""
STORES_AT_ONCE = 8
"""Maximum number of stores that the overview reads at once."""

_LOG_SAYS_WHY = "The log of the API server says why."
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

    def known(connection_id: str, request: Request) -> str:
        if connection_id not in conn_ids:
            raise HTTPException(404)
        if any("\0" in value for value in request.query_params.values()):
            raise StoreProblem("the address contains a NUL character, which no stored text has", "", status=400)
        return connection_id

    _add_overview(app, conn_ids)
    _add_reader(app, known)
    _add_changes(app, known)
    _add_store(app, known)
    return app


def _add_overview(app: FastAPI, conn_ids: Collection[str]) -> None:
    @app.get("/style.css", dependencies=[may_see])
    def style_sheet() -> Response:
        return asset("style.css", "text/css")

    @app.get("/logo.svg", dependencies=[may_see])
    def logo() -> Response:
        return asset("logo.svg", "image/svg+xml")

    @app.get("/", dependencies=[may_see])
    def stores(request: Request) -> Response:
        return page(request, "overview", stores=_overviews_of(conn_ids))


def _add_reader(app: FastAPI, known: Known) -> None:
    """Add the routes that show a reader and its dead letters."""
    connection = Annotated[str, Depends(known)]
    rights = [may_see, may_read_entries]

    @app.get("/connections/{connection_id:path}/reader", dependencies=rights)
    def reader(request: Request, conn_id: connection, reader: str) -> Response:
        with opened(conn_id) as store:
            found = figures.details(store, reader)
        return page(request, "reader", conn_id=conn_id, details=found)

    @app.get("/connections/{connection_id:path}/letters", dependencies=rights)
    def letters(request: Request, conn_id: connection, reader: str) -> Response:
        which = _selection(request.query_params)
        with opened(conn_id) as store:
            after = _position(request.query_params.get("after"))
            found = figures.letters(store, reader, _filter(which), after=after)
        return page(request, "letters", conn_id=conn_id, found=found, which=which)

    @app.get("/connections/{connection_id:path}/letter", dependencies=rights)
    def letter(request: Request, conn_id: connection, reader: str) -> Response:
        with opened(conn_id) as store:
            found = figures.letter(store, reader, _filter(_selection(request.query_params)))
        if found is None:
            raise HTTPException(404)
        return page(request, "letter", conn_id=conn_id, reader=reader, letter=found)


def _add_changes(app: FastAPI, known: Known) -> None:
    """Add the routes that change a store, and the one that asks for a confirmation before."""
    connection = Annotated[str, Depends(known)]
    rights = [may_see, may_read_entries, may_change]

    @app.get("/connections/{connection_id:path}/confirm", dependencies=rights)
    def confirm(request: Request, conn_id: connection, reader: str, act: Act, user: GetUserDep) -> Response:
        which = _selection(request.query_params)
        with opened(conn_id) as store:
            found = figures.decision(store, reader, _filter(which), most=MOST_CHANGED)
        order = Order(
            act=act,
            connection=conn_id,
            reader=reader,
            user=user.get_id(),
            most=MOST_CHANGED if found.letters is None else found.letters,
            seen=found.seen,
            until_ms=found.until_ms,
            which=which,
        )
        return page(request, "confirm", order=order, count=found.letters)

    @app.post("/connections/{connection_id:path}/{act}", dependencies=rights)
    def change(
        request: Request, conn_id: connection, act: Act, user: GetUserDep, token: Annotated[str, Depends(_token)]
    ) -> Response:
        order = Order.of_token(token, act=act, connection=conn_id, user=user.get_id())
        with opened(conn_id) as store:
            count = _changed(store, order, who=user.get_name() or user.get_id())
        return page(request, "changed", order=order, count=count)


def _add_store(app: FastAPI, known: Known) -> None:
    """Add the route of one store, after all others: the id of a connection may contain slashes."""
    connection = Annotated[str, Depends(known)]

    @app.get("/connections/{connection_id:path}", dependencies=[may_see])
    def one_store(request: Request, conn_id: connection) -> Response:
        found = _overview_of(conn_id, after=request.query_params.get("after"))
        return page(request, "overview", stores={conn_id: found})


async def _token(request: Request) -> str:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES:
            raise StoreProblem("The form is larger than those of the pages. Nothing was changed.", "", status=413)
    form = parse_qs(body.decode("utf-8", "replace"))
    return form.get("token", [""])[0]


def _changed(store: Store, order: Order, *, who: str) -> int:
    letters, which = store.dead_letters, replace(_filter(order.which), until_ms=order.until_ms)
    if not order.most:
        return 0
    if order.act == "drop":
        return letters.drop(order.reader, which, limit=order.most, who=who, seen=order.seen)
    return letters.retry(order.reader, which, limit=order.most, lock_timeout=LOCK_SECONDS, who=who, seen=order.seen)


def _overviews_of(conn_ids: Collection[str]) -> dict[str, figures.Overview | StoreProblem]:
    """Read all stores at once, so that those which do not answer cost the time of one."""
    with ThreadPoolExecutor(max_workers=STORES_AT_ONCE, thread_name_prefix="export-queue-page") as threads:
        return dict(zip(conn_ids, threads.map(_overview_of, conn_ids), strict=True))


def _overview_of(conn_id: str, *, after: str | None = None) -> figures.Overview | StoreProblem:
    try:
        with opened(conn_id) as store:
            return figures.overview(store, after=after)
    except StoreProblem as problem:
        return problem
    except Exception as error:  # the page of the other stores must not end with this one
        log.exception("The overview of connection %s failed", conn_id)
        return StoreProblem(f"The overview failed: {type(error).__name__}", _LOG_SAYS_WHY, status=500)


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
    found = int(digits) if digits.isdecimal() and len(digits) < 20 else 1 << 63
    if found >= 1 << 63:
        raise StoreProblem(f"expected a sequence, found {digits[:50]!r}", "", status=400)
    return found


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
        return page(request, "error", status=500, message="The page failed.", hint=_LOG_SAYS_WHY)

    app.add_exception_handler(StoreProblem, problem)
    app.add_exception_handler(FormRefused, refused)
    app.add_exception_handler(AnyHttpError, http_error)
    app.add_exception_handler(RequestValidationError, bad_request)
    app.add_exception_handler(Exception, failed)
