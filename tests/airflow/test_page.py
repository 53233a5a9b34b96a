"""The page in the UI: who may see and do what, what it shows, and that hostile content stays text."""

from __future__ import annotations

import html
import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx import Response
from tests.support.pages import rows_of
from tests.support.sessions import sessions_counted
from tests.support.waiting import PATIENCE, wait_until

from export_queue import DeadLetterFilter, MemorySink, SinkSpec, Store, drain, verify
from export_queue.core.store import schema
from export_queue.get_provider_info import get_provider_info
from export_queue.plugin import PREFIX, ExportQueuePlugin, Page

CONNECTION = "export_queue_default"
READER = f"/connections/{CONNECTION}/reader"
LETTERS = f"/connections/{CONNECTION}/letters"
LETTER = f"/connections/{CONNECTION}/letter"
CONFIRM = f"/connections/{CONNECTION}/confirm"
HOSTILE = "<script>alert('x')</script>\"&{{'xy'*4}}\x1b[31m\u202e"
PASSWORD = "kept-secret-4711"
FIRST_SEQ = 1_700_000_000_000_000_000


@pytest.fixture(scope="module")
def token_of(request: pytest.FixtureRequest) -> Callable[[str | None], str]:
    """Airflow's own token of a user with a role."""
    request.getfixturevalue("airflow_database")
    from airflow.api_fastapi.app import init_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    manager = init_auth_manager()
    return lambda role: manager.generate_jwt(SimpleAuthManagerUser(username=role or "nobody", role=role))


@pytest.fixture
def client(token_of: Callable[[str | None], str]) -> Iterator[TestClient]:
    """A browser without a session, before an Airflow with a base path."""
    airflow = FastAPI(root_path="/airflow")
    airflow.mount(PREFIX, Page([CONNECTION]))
    with TestClient(airflow, base_url=f"http://testserver/airflow{PREFIX}", raise_server_exceptions=False) as made:
        yield made


@pytest.fixture
def signed_in(client: TestClient, token_of: Callable[[str | None], str]) -> Callable[[str | None], TestClient]:
    """Sign a user with a role in."""

    def sign_in(role: str | None) -> TestClient:
        client.cookies.set("_token", token_of(role))
        return client

    return sign_in


@pytest.fixture
def op(signed_in: Callable[[str], TestClient]) -> TestClient:
    """A browser of a user with all permissions on connections."""
    return signed_in("op")


@pytest.fixture
def letters(airflow_store: Store) -> Store:
    """A store whose queue ``orders`` has three dead letters."""
    die(airflow_store, {"anna": "one", "ben": "two", "carl": "three"})
    return airflow_store


def die(store: Store, entries: dict[str, Any], error: type[Exception] = ValueError, message: str = "not this") -> None:
    def refuse(entry: Any) -> Any:
        raise error(message)

    with store.transaction() as tx:
        for key, value in entries.items():
            tx.queue("orders").add(key, value)
    drain(store, "orders", MemorySink(), sink_name="memory", exporter=refuse)


def token_in(answer: Response) -> str:
    return html.unescape(re.findall(r'name="token" value="([^"]+)"', answer.text)[0])


def contents(store: Store) -> tuple[int, int, int]:
    """Dead letters, pending entries and acts."""
    pending = sum(unit.entries for unit in store.backlog("orders"))
    return store.dead_letters.count("orders"), pending, len(store.dead_letters.audit("orders"))


@contextmanager
def _open_without_file(conn_id: str) -> Iterator[Store]:
    """Open a store whose file need not exist."""
    from export_queue.hooks import ExportQueueHook, open_store

    with open_store(ExportQueueHook(conn_id).describe()) as store:
        yield store


# -- the plugin --------------------------------------------------------------------------------------------------------


def test_there_is_no_page_and_no_entry_in_the_menu_unless_the_configuration_names_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for named in ("", " , "):
        monkeypatch.setenv("AIRFLOW__EXPORT_QUEUE__UI_CONN_IDS", named)
        ExportQueuePlugin.on_load()
        assert (ExportQueuePlugin.fastapi_apps, ExportQueuePlugin.external_views) == ([], [])


def test_airflow_mounts_the_page_and_lists_it_in_the_menu(
    airflow_store: Store, token_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow import plugins_manager
    from airflow.api_fastapi.app import init_plugins
    from airflow.api_fastapi.core_api.datamodels.plugins import PluginResponse

    monkeypatch.setenv("AIRFLOW__EXPORT_QUEUE__UI_CONN_IDS", f"{CONNECTION}, {CONNECTION},")
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team/")
    plugins_manager._get_plugins.cache_clear()
    plugins_manager.get_fastapi_plugins.cache_clear()
    try:
        init_plugins(mounted := FastAPI())
        (plugin,) = [one for one in plugins_manager.get_plugin_info() if one["name"] == "export_queue"]
        (entry,) = PluginResponse.model_validate(plugin).external_views
    finally:
        monkeypatch.delenv("AIRFLOW__EXPORT_QUEUE__UI_CONN_IDS")
        ExportQueuePlugin.on_load()
        plugins_manager._get_plugins.cache_clear()
        plugins_manager.get_fastapi_plugins.cache_clear()
    assert (entry.name, entry.destination, entry.href) == ("Export Queue", "nav", f"/team{PREFIX}/")
    assert entry.icon == f"/team{PREFIX}/logo.svg"
    browser = TestClient(mounted)
    assert browser.get(f"{PREFIX}/").status_code == 401
    found = browser.get(f"{PREFIX}/", headers={"Authorization": f"Bearer {token_of('viewer')}"})
    assert (found.status_code, found.text.count("<h2>"), ">orders<" in found.text) == (200, 1, True)
    (integration,) = get_provider_info()["integrations"]
    logo = browser.get(integration["logo"], headers={"Authorization": f"Bearer {token_of('viewer')}"})
    assert (logo.status_code, logo.headers["content-type"]) == (200, "image/svg+xml")


# -- permissions -------------------------------------------------------------------------------------------------------


def requests(letter: str) -> list[tuple[str, str, str]]:
    """Each route, and the role that it needs."""
    return [
        ("GET", "/", "viewer"),
        ("GET", "/style.css", "viewer"),
        ("GET", "/logo.svg", "viewer"),
        ("GET", f"/connections/{CONNECTION}", "viewer"),
        ("GET", f"{READER}?reader=orders", "op"),
        ("GET", f"{LETTERS}?reader=orders", "op"),
        ("GET", f"{LETTER}?reader=orders&{letter}", "op"),
        ("GET", f"{CONFIRM}?reader=orders&act=retry", "op"),
        ("GET", f"{CONFIRM}?reader=orders&act=drop", "op"),
        ("POST", f"/connections/{CONNECTION}/retry", "op"),
        ("POST", f"/connections/{CONNECTION}/drop", "op"),
    ]


def test_every_route_is_in_the_table_of_permissions(client: TestClient) -> None:
    from export_queue.page import create_app

    described = {
        (method, route.path.replace("{connection_id:path}", CONNECTION))  # type: ignore[attr-defined]
        for route in create_app([CONNECTION]).routes
        for method in route.methods  # type: ignore[attr-defined]
    }
    tried = {
        (method, re.sub(r"/(retry|drop)$", "/{act}", path.partition("?")[0])) for method, path, _ in requests("seq=1")
    }
    assert tried == described


def test_a_request_without_a_user_is_401_and_one_without_the_permission_is_403(
    client: TestClient, letters: Store, token_of: Callable[[str | None], str]
) -> None:
    before = contents(letters)
    (first, *_) = letters.dead_letters.list("orders")
    for method, path, role in requests(f"seq={first.position.seq}&key_hex={first.position.key.hex()}"):
        client.cookies.clear()
        assert client.request(method, path).status_code == 401, path
        assert client.request(method, path, headers={"Authorization": "Bearer x.y.z"}).status_code == 403, path
        refused = [None] if role == "viewer" else [None, "viewer", "user"]
        for other in refused:
            client.cookies.set("_token", token_of(other))
            answer = client.request(method, path)
            assert (answer.status_code, "anna" in answer.text) == (403, False), (path, other)
        if method == "GET":
            client.cookies.set("_token", token_of(role))
            assert client.get(path).status_code == 200, path
    assert contents(letters) == before


def test_connections_that_are_not_named_do_not_exist(
    op: TestClient, letters: Store, connect: Callable[..., None]
) -> None:
    connect("warehouse", conn_type="export_queue", host=letters.url_safe)
    for _, path, _ in requests("seq=1&key_hex=00")[3:]:
        method = "POST" if path.endswith(("/retry", "/drop")) else "GET"
        assert op.request(method, path.replace(CONNECTION, "warehouse")).status_code in (403, 404), path
    assert op.get("/connections/warehouse").status_code == 404


def test_the_id_of_a_connection_may_contain_whatever_airflow_allows(
    signed_in: Callable[[str], TestClient], letters: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from export_queue.page import create_app

    odd = "team/a#(b)!:c\\.d"
    monkeypatch.setenv(
        f"AIRFLOW_CONN_{odd.upper()}", json.dumps({"conn_type": "export_queue", "host": letters.url_safe})
    )
    token = signed_in("op").cookies["_token"]
    with TestClient(create_app([odd]), cookies={"_token": token}) as browser:
        seen, left = set(), ["/"]
        while left:  # every link, as a browser follows it
            path = left.pop()
            page = browser.get(path)
            assert page.status_code == 200, path
            seen.add(path)
            found = {html.unescape(link) for link in re.findall(r'href="([^"]*)"', page.text)}
            left += [link for link in found if link not in seen and link not in left]
        assert len(seen) > 10
        assert browser.post(f"/connections/{quote(odd, safe='')}/drop", data={"token": ""}).status_code == 403


def test_every_answer_forbids_scripts_sniffing_other_frames_and_caches(
    signed_in: Callable[[str | None], TestClient], letters: Store
) -> None:
    answers = [signed_in(role).request(method, path) for role in ("op", None) for method, path, _ in requests("seq=x")]
    answers += [signed_in("op").get(path) for path in ("/nothing", READER, f"{READER}?reader=nobody")]
    assert {answer.status_code for answer in answers} >= {200, 400, 403, 404}
    for answer in answers:
        assert "default-src 'none'" in answer.headers["content-security-policy"], answer.url
        assert "script-src" not in answer.headers["content-security-policy"]
        assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "<script" not in answer.text
        assert " style=" not in answer.text
        assert not re.search(r"\son\w+=", answer.text)


# -- retries and drops -------------------------------------------------------------------------------------------------


def test_letters_are_retried_after_a_confirmation(op: TestClient, letters: Store) -> None:
    asked = op.get(CONFIRM, params={"reader": "orders", "act": "retry"})
    assert contents(letters)[:2] == (3, 0)
    done = op.post(f"/connections/{CONNECTION}/retry", data={"token": token_in(asked)})
    assert (done.status_code, "3 dead letters of orders were put back" in done.text) == (200, True)
    assert contents(letters)[:2] == (0, 3)
    assert letters.dead_letters.audit("orders")[0].who == "op"


def test_one_letter_is_dropped_and_the_others_stay(op: TestClient, letters: Store) -> None:
    page = op.get(LETTERS, params={"reader": "orders"}).text
    link = html.unescape(re.findall(r'href="([^"]*/letter\?[^"]*)"', page)[1]).removeprefix(f"/airflow{PREFIX}")
    shown = op.get(link).text
    assert "two" in shown
    confirm = html.unescape(re.findall(r'href="([^"]*act=drop[^"]*)"', shown)[0]).removeprefix(f"/airflow{PREFIX}")
    done = op.post(f"/connections/{CONNECTION}/drop", data={"token": token_in(op.get(confirm))})
    assert done.status_code == 200
    assert [letter.key for letter in letters.dead_letters.list("orders")] == ["anna", "carl"]


def test_letters_of_an_error_are_selected(op: TestClient, letters: Store) -> None:
    die(letters, {"dora": 1}, TypeError)
    page = op.get(LETTERS, params={"reader": "orders", "error_class": "TypeError", "key": "", "drain_id": ""})
    assert re.findall(r"anna|dora", page.text) == ["dora"]
    asked = op.get(CONFIRM, params={"reader": "orders", "act": "drop", "error_class": "TypeError"})
    op.post(f"/connections/{CONNECTION}/drop", data={"token": token_in(asked)})
    assert {letter.error_class for letter in letters.dead_letters.list("orders")} == {"ValueError"}


def test_a_post_without_the_token_of_its_own_confirmation_changes_nothing(
    signed_in: Callable[[str], TestClient], letters: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from export_queue.page import access

    before = contents(letters)
    of_admin = token_in(signed_in("admin").get(CONFIRM, params={"reader": "orders", "act": "drop"}))
    op = signed_in("op")
    of_retry = token_in(op.get(CONFIRM, params={"reader": "orders", "act": "retry"}))
    mine = token_in(op.get(CONFIRM, params={"reader": "orders", "act": "drop"}))
    drop = f"/connections/{CONNECTION}/drop"
    for data in ({}, {"token": ""}, {"token": of_admin}, {"token": of_retry}, {"token": mine[:-1]}):
        assert op.post(drop, data=data).status_code == 403
    assert op.post(drop, params={"token": mine}).status_code == 403  # in the address, as a link could have it
    for method in ("GET", "PUT", "DELETE"):
        assert op.request(method, drop, params={"token": mine}).status_code in (404, 405)
    for length, status in ((1 << 18, 413), (100_000, 403)):
        answer = op.post(drop, data={"token": "x" * length})
        assert answer.status_code == status
    monkeypatch.setattr(access, "FORM_SECONDS", -1)
    assert op.post(drop, data={"token": mine}).status_code == 403
    assert contents(letters) == before


def test_a_retry_that_meets_a_drain_says_so(op: TestClient, letters: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from export_queue import Owner
    from export_queue.core.locks import claim
    from export_queue.page import app

    monkeypatch.setattr(app, "LOCK_SECONDS", 0.0)
    queue = letters.queue("orders")
    claim(letters.database, queue, queue.units(), owner=Owner("busy"), lease_seconds=60)
    asked = op.get(CONFIRM, params={"reader": "orders", "act": "retry"})
    answer = op.post(f"/connections/{CONNECTION}/retry", data={"token": token_in(asked)})
    assert (answer.status_code, "busy" in answer.text) == (409, True)
    assert contents(letters)[:2] == (3, 0)
    assert "busy" in op.get("/").text
    assert "its lease ends in" in op.get(READER, params={"reader": "orders"}).text


@pytest.mark.parametrize("act", ["drop", "retry"])
def test_a_form_that_is_sent_twice_changes_only_what_it_showed(
    op: TestClient, letters: Store, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    from export_queue.page import app

    monkeypatch.setattr(app, "MOST_CHANGED", 2)  # so that the form shows two of three
    token = token_in(op.get(CONFIRM, params={"reader": "orders", "act": act}))
    first, second = (op.post(f"/connections/{CONNECTION}/{act}", data={"token": token}) for _ in range(2))
    assert (first.status_code, second.status_code) == (200, 400)
    assert "it changes nothing" in second.text
    assert [letter.key for letter in letters.dead_letters.list("orders")] == ["carl"]


@pytest.mark.parametrize("act", ["drop", "retry"])
def test_letters_that_were_set_aside_after_the_form_was_shown_stay(op: TestClient, letters: Store, act: str) -> None:
    chosen = ({}, {"error_class": "ValueError"})
    tokens = [token_in(op.get(CONFIRM, params={"reader": "orders", "act": act, **which})) for which in chosen]
    d = schema.dead_letter
    for token in tokens:
        with letters.database.begin() as work:
            later = {"dead_since_ms": work.now() + 60_000}
            work.connection.execute(
                d.update().where(d.c.key == letters.queue("orders").encode_key("anna")).values(later)
            )
        op.post(f"/connections/{CONNECTION}/{act}", data={"token": token})
        assert [letter.key for letter in letters.dead_letters.list("orders")] == ["anna"]


# -- what the pages show -----------------------------------------------------------------------------------------------


def test_the_overview_shows_readers_with_their_figures(signed_in: Callable[[str], TestClient], letters: Store) -> None:
    letters.configure_queue("airports", subscriptions=["search", "cache"])
    with letters.transaction() as tx:
        tx.queue("airports").add("ham", {"name": "Hamburg"})
    letters.subscribe("airports", "late")
    page = plain(signed_in("viewer").get("/").text)
    assert re.search(r"airports/cache – 1 \d+ s 0 – – –", page), page
    assert "first load missing" in page
    assert re.search(r"orders memory 0 – 3 – – \S+ \S+ UTC: 3 dead", page), page


def test_a_reader_shows_its_drains_acts_and_backlog_over_time(op: TestClient, letters: Store) -> None:
    letters.dead_letters.drop("orders", DeadLetterFilter(key="ben"), who="anna <anna@example>")
    drain(letters, "orders", MemorySink(), sink_name="memory")
    page = op.get(READER, params={"reader": "orders"}).text
    (line,) = re.findall(r'<polyline points="([^"]*)"/>', page)
    assert line.startswith("0.0,0.0 ")  # three entries were found at first, and nothing was left
    assert line.endswith(" 1000.0,100.0")
    assert "anna &lt;anna@example&gt;" in page
    assert page.count("UTC:") == 2


def test_comparisons_with_the_sink_are_shown(op: TestClient, airflow_store: Store) -> None:
    sink = MemorySink()
    airflow_store.run(lambda tx: tx.queue("orders").add("<b>anna", {"total": 1}))
    drain(airflow_store, "orders", sink, sink_name="memory")

    def compare(*keys: str) -> None:
        expected = [(key, {"total": 1}) for key in keys]
        verify(airflow_store, "orders", sink, sink_name="memory", source=lambda: expected)

    page = op.get(READER, params={"reader": "orders"}).text
    assert "Last comparisons" not in page
    compare("<b>anna")
    assert re.search(r"orders memory 0 – 0 \d+ – \S+ \S+ UTC: ok \S+ \S+ UTC: equal", plain(op.get("/").text))
    compare()
    assert re.search(r"UTC: ok \S+ \S+ UTC: 1 difference", plain(op.get("/").text))
    page = op.get(READER, params={"reader": "orders"}).text
    assert "&lt;b&gt;anna" in page
    assert "<b>anna" not in page
    shown = plain(page)
    assert shown.index("1 difference") < shown.index("extra:") < shown.index("equal")


def test_a_rebuild_is_shown_until_it_is_finished(op: TestClient, airflow_store: Store, tmp_path: Path) -> None:
    sink = SinkSpec("sql", {"url": f"sqlite:///{tmp_path / 'copies.db'}"}, name="copies")
    airflow_store.configure_queue("products", state=True, subscriptions=["search"])
    airflow_store.run(lambda tx: tx.queue("products").add("7", {"name": "pear"}))
    drain(airflow_store, "products/search", sink)
    airflow_store.rebuilds.start("products/search", sink, pointer="now", new_options={"table": "$collection-2"})
    shown = r"Rebuild products/search → products/search-2 : \w+ since \S+ \S+ UTC, started by \S+"
    assert re.search(shown, plain(op.get("/").text))
    for reader in ("products/search", "products/search-2"):
        assert re.search(shown, plain(op.get(READER, params={"reader": reader}).text))
    airflow_store.rebuilds.cancel("products/search")
    assert "Rebuild" not in op.get("/").text


def plain(page: str) -> str:
    """A page without its markup."""
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_many_locks_are_counted_and_not_explained(
    op: TestClient, airflow_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from export_queue import Owner
    from export_queue.core.locks import claim
    from export_queue.page import figures

    queue = airflow_store.queue("orders")
    claim(airflow_store.database, queue, queue.units(), owner=Owner("nightly"), lease_seconds=60)
    monkeypatch.setattr(figures, "EXPLAINED", len(queue.units()) - 1)
    page = op.get(READER, params={"reader": "orders"}).text
    assert f"{len(queue.units())} by nightly: <code>export-queue locks</code> explains each" in " ".join(page.split())
    assert "its lease ends in" not in page


def test_times_beyond_the_calendar_are_shown(op: TestClient, letters: Store) -> None:
    from export_queue import Owner
    from export_queue.core.locks import claim

    queue = letters.queue("orders")
    claim(letters.database, queue, queue.units()[:1], owner=Owner("forever"), lease_seconds=1e15)
    with letters.database.begin() as work:
        work.connection.execute(schema.dead_letter.update().values(dead_since_ms=(1 << 63) - 1))
    for path in ("/", f"{READER}?reader=orders", f"{LETTERS}?reader=orders"):
        assert op.get(path).status_code == 200, path
    assert "after the year 9999" in op.get(f"{LETTERS}?reader=orders").text


def test_pages_continue_where_the_one_before_ended(
    op: TestClient, letters: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from export_queue.page import figures

    monkeypatch.setattr(figures, "LETTERS", 2)
    monkeypatch.setattr(figures, "SEARCHED", 2)
    monkeypatch.setattr(figures, "READERS", 1)
    letters.configure_queue("airports")
    die(letters, {"dora": 1}, TypeError)
    seen, path = [], f"{LETTERS}?reader=orders"
    while path:
        page = op.get(path).text
        seen.append(re.findall(r"anna|ben|carl|dora", page))
        path = next(iter(re.findall(r'href="([^"]*after=[^"]*)"', page)), "")
        path = html.unescape(path).removeprefix(f"/airflow{PREFIX}")
    assert seen == [["anna", "ben"], ["carl", "dora"], []]
    first = op.get(LETTERS, params={"reader": "orders", "error_class": "TypeError"}).text
    assert "among the 2 that were searched" in first
    more = html.unescape(re.findall(r'href="([^"]*after=[^"]*)"', first)[0]).removeprefix(f"/airflow{PREFIX}")
    assert "dora" in op.get(more).text
    assert (">orders<" in op.get("/").text, ">orders<" in op.get(f"/connections/{CONNECTION}?after=airports").text) == (
        False,
        True,
    )


def test_hostile_content_stays_text(op: TestClient, airflow_store: Store) -> None:
    name = "<b>&amp;\"'{{'xy'*4}}"  # no queue can be configured with it, but a row may have been written otherwise
    airflow_store.configure_queue("odd")
    with airflow_store.transaction() as tx:
        tx.queue("orders").add(HOSTILE, {"note": HOSTILE})
        tx.queue("odd").add("k", 1)
    with airflow_store.database.begin() as work:
        odd = schema.queue.c.id == "odd"
        work.connection.execute(schema.queue.update().where(odd).values(id=name, sink=f"sink {name}"))

    def refuse(entry: Any) -> Any:
        raise type(HOSTILE, (ValueError,), {})(HOSTILE)

    drain(airflow_store, "orders", MemorySink(), sink_name="memory", exporter=refuse, drain_id=HOSTILE)
    (letter,) = airflow_store.dead_letters.list("orders")
    airflow_store.dead_letters.retry("orders", who=HOSTILE)
    drain(airflow_store, "orders", MemorySink(), sink_name="memory", exporter=refuse, drain_id="again")
    one = {"reader": "orders", "seq": letter.position.seq, "key_hex": letter.position.key.hex()}
    answers = [
        op.get("/"),
        op.get(READER, params={"reader": name}),
        op.get(READER, params={"reader": "orders"}),
        op.get(READER, params={"reader": HOSTILE}),
        op.get(LETTERS, params={"reader": "orders"}),
        op.get(LETTERS, params={"reader": "orders", "key": HOSTILE, "error_class": HOSTILE, "drain_id": HOSTILE}),
        op.get(LETTERS, params={"reader": "orders", "after": HOSTILE}),
        op.get(LETTER, params=one),
        op.get(LETTER, params={**one, "seq": HOSTILE}),
        op.get(CONFIRM, params={**one, "act": "drop"}),
        op.get(CONFIRM, params={"reader": "orders", "act": "retry", "drain_id": HOSTILE}),
        op.get(CONFIRM, params={"reader": HOSTILE, "act": HOSTILE}),
        op.get(f"/connections/{quote(HOSTILE)}"),
    ]
    for answer in answers:
        assert answer.status_code < 500, answer.url
        assert not re.search(r"<script|<b>", answer.text), answer.url
        # fields of a form keep what a user has written; everywhere else controls are made visible
        assert not re.search("[\x1b\u202e]", re.sub(r' value="[^"]*"', "", answer.text)), answer.url
        assert "xyxyxyxy" not in answer.text  # a template in a value is not evaluated
    assert "&lt;script&gt;alert" in answers[7].text
    assert html.escape(f"sink {name}") in answers[0].text.replace("&#34;", "&quot;").replace("&#39;", "&#x27;")


# -- errors ------------------------------------------------------------------------------------------------------------


def test_a_store_that_does_not_answer_is_one_line_without_its_password(
    op: TestClient, connect: Callable[..., None]
) -> None:
    from tests.support.servers import free_port

    connect(
        CONNECTION,
        conn_type="export_queue",
        host=f"postgresql+psycopg://exports@127.0.0.1:{free_port()}/exports",
        password=PASSWORD,
    )
    answers = [op.get("/"), op.get(READER, params={"reader": "orders"})]
    assert [answer.status_code for answer in answers] == [200, 503]
    for answer in answers:
        assert PASSWORD not in answer.text
        assert 'class="problem"' in answer.text


def test_passwords_are_masked_in_whatever_an_error_says(
    op: TestClient, airflow_store: Store, connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from export_queue import StoreUnavailable
    from export_queue.page import figures

    def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailable(f"no answer from\n postgresql://exports:p%40{PASSWORD}@db/x, {PASSWORD!r}")

    connect(CONNECTION, conn_type="export_queue", host="postgresql+psycopg://exports@h/x", password=PASSWORD)
    monkeypatch.setattr(figures, "overview", fail)
    text = op.get("/").text
    assert PASSWORD not in text
    assert "no answer from postgresql://exports:***@db/x, &#39;***&#39;" in text


def test_an_error_that_nobody_expected_shows_nothing_of_itself(
    op: TestClient, airflow_store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from export_queue.page import figures

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError(PASSWORD)

    monkeypatch.setattr(figures, "details", fail)
    answer = op.get(READER, params={"reader": "orders"})
    assert (answer.status_code, PASSWORD in answer.text) == (500, False)
    assert "The page" in caplog.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("error", [RuntimeError(PASSWORD), KeyError(PASSWORD)])
def test_a_store_that_fails_unexpectedly_leaves_the_others_on_the_page(
    error: Exception,
    signed_in: Callable[[str], TestClient],
    airflow_store: Store,
    connect: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from export_queue.page import app, create_app, figures

    overview = figures.overview

    def fail_for_one(store: Store, **rest: Any) -> Any:
        if store.url_safe.endswith("other.db"):
            raise error
        return overview(store, **rest)

    connect("other", conn_type="export_queue", host="sqlite:////tmp/other.db")
    monkeypatch.setattr(figures, "overview", fail_for_one)
    monkeypatch.setattr(app, "opened", _open_without_file)
    token = signed_in("viewer").cookies["_token"]
    with TestClient(create_app(["other", CONNECTION]), cookies={"_token": token}) as browser:
        answer = browser.get("/")
    assert (answer.status_code, ">orders<" in answer.text, 'class="problem"' in answer.text) == (200, True, True)
    assert PASSWORD not in answer.text
    assert "other" in caplog.text


def test_stores_that_do_not_answer_cost_the_time_of_one(
    signed_in: Callable[[str], TestClient], airflow_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from export_queue.page import app, create_app
    from export_queue.page.stores import StoreProblem

    all_wait = threading.Barrier(3)

    def wait_for_all(conn_id: str) -> StoreProblem:
        all_wait.wait(timeout=10)
        return StoreProblem(f"no answer from {conn_id}", "", status=503)

    monkeypatch.setattr(app, "_overview_of", wait_for_all)
    token = signed_in("viewer").cookies["_token"]
    with TestClient(create_app(["one", "two", "three"]), cookies={"_token": token}) as browser:
        found = re.findall(r"no answer from (\w+)", browser.get("/").text)
    assert found == ["one", "two", "three"]


def test_postgresql_is_asked_for_no_nul_and_a_locked_table_does_not_keep_the_api_server_waiting(
    op: TestClient, connect: Callable[..., None], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    from export_queue.hooks import export_queue as hook

    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("orders")
    connect(CONNECTION, conn_type="export_queue", host=postgres_url)
    monkeypatch.setattr(hook, "HURRIED_SECONDS", 1)
    assert ">orders<" in op.get("/").text
    nul = "x%00y"  # PostgreSQL has no text with it
    asked = [f"{path}?reader={nul}" for path in (READER, LETTERS)] + [f"/connections/{CONNECTION}?after={nul}"]
    asked += [f"{LETTERS}?reader=orders&{name}={nul}" for name in ("key", "error_class", "drain_id")]
    asked += [f"{CONFIRM}?reader=orders&act=drop&{name}={nul}" for name in ("key", "error_class", "drain_id")]
    assert {path: op.get(path).status_code for path in asked} == dict.fromkeys(asked, 400)
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as other:
        other.execute("lock table export_queue.xq_queue in access exclusive mode")
        answers = [op.get("/"), op.get(READER, params={"reader": "orders"})]
    assert [answer.status_code for answer in answers] == [200, 503]
    assert all("has not answered for 1 s" in answer.text for answer in answers)


def test_pages_that_wait_for_a_store_leave_threads_to_airflow_and_to_other_stores(
    op: TestClient, letters: Store, connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from export_queue.page import stores

    connect("other", conn_type="export_queue", host=letters.url_safe)
    monkeypatch.setattr(stores, "PAGES_AT_ONCE", 1)
    monkeypatch.setattr(stores, "_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(stores, "_free", {})
    with stores.opened(CONNECTION):
        answer = op.get(READER, params={"reader": "orders"})
        assert (answer.status_code, "too many pages" in answer.text) == (503, True)
        with stores.opened("other") as store:
            assert [queue.id for queue in store.queues()] == ["orders"]
    for _ in range(2):  # also after an error
        assert op.get(READER, params={"reader": "nobody"}).status_code == 404


def test_pages_take_a_limited_number_of_connections_and_keep_none_of_them(
    op: TestClient, connect: Callable[..., None], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    from export_queue.hooks import export_queue as hook
    from export_queue.page import stores

    (row,) = [row for row in rows_of("production.md", "Connections of the database") if row[0] == "the page in the UI"]
    most = int(row[2].partition(" ")[0])
    with Store.open(postgres_url) as store:
        store.create()
        store.configure_queue("orders")
    connect(CONNECTION, conn_type="export_queue", host=postgres_url)
    monkeypatch.setattr(hook, "HURRIED_SECONDS", int(2 * PATIENCE))
    monkeypatch.setattr(stores, "_free", {})

    def status() -> int:
        return op.get(READER, params={"reader": "orders"}).status_code

    with sessions_counted(postgres_url) as sessions:
        with ThreadPoolExecutor(most + 1) as threads, psycopg.connect(postgres_url.replace("+psycopg", "")) as other:
            other.execute("lock table export_queue.xq_queue in access exclusive mode")
            answers = [threads.submit(status) for _ in range(most)]
            wait_until(lambda: sessions() == most, "a page has no connection, or more than one")
            refused = threads.submit(status)
            wait_until(refused.done, "more pages wait for the store")
            assert refused.result() == 503
            assert sessions() == most
            other.rollback()
            assert {answer.result() for answer in answers} == {200}
        wait_until(lambda: sessions() == 0, "a page has kept a connection")


def test_a_missing_connection_and_a_missing_store_say_what_to_do(
    op: TestClient, connect: Callable[..., None], tmp_path: Path
) -> None:
    assert "AIRFLOW_CONN_EXPORT_QUEUE_DEFAULT" in op.get("/").text
    connect(CONNECTION, conn_type="export_queue", host=f"sqlite:///{tmp_path / 'none.db'}")
    assert "export-queue init" in op.get("/").text
    assert not (tmp_path / "none.db").exists()


def test_a_question_that_has_no_answer_says_why(op: TestClient, letters: Store) -> None:
    letters.configure_queue("airports", subscriptions=["search"])
    letters.configure_queue("numbers", key="int")
    expected = {
        f"{READER}?reader=nobody": (404, "nobody"),
        f"{LETTERS}?reader=airports": (400, "airports/search"),
        f"{LETTERS}?reader=numbers&key=x": (200, "No letter"),
        f"{LETTERS}?reader=orders&after=x": (400, "sequence"),
        f"{LETTERS}?reader=orders&after=1:x": (400, "hexadecimal"),
        f"{LETTER}?reader=orders&seq=1&key_hex=00": (404, ""),
        f"{LETTER}?reader=orders&seq={1 << 70}&key_hex=00": (400, "sequence"),
        f"{LETTER}?reader=orders&seq={'0' * 30}{1 << 70}&key_hex=00": (400, "sequence"),
        f"{LETTERS}?reader=orders&after={'0' * 5000}1:00": (400, "sequence"),
        f"{CONFIRM}?reader=orders&act=steal": (400, ""),
        f"{CONFIRM}?reader=orders&act=drop&key=nobody": (200, "There is no such letter"),
        READER: (400, ""),
    }
    found = {path: op.get(path) for path in expected}
    assert {path: answer.status_code for path, answer in found.items()} == {
        path: status for path, (status, _) in expected.items()
    }
    assert [path for path, (_, text) in expected.items() if text not in found[path].text] == []


# -- large stores ------------------------------------------------------------------------------------------------------


def fill(store: Store, rows: int) -> None:
    """Give ``orders`` pending entries and dead letters; many units have some of them."""
    queue = store.queue("orders")
    numbers = f"(with recursive s(n) as (select 1 union all select n + 1 from s limit {rows}) select n from s)"
    position = "queue_number, layout, bucket, key, seq"
    of_n = f"{queue.number}, {queue.layout}, n % {queue.buckets}, cast(printf('%08d', n) as blob), {FIRST_SEQ} + n"
    of_letter = "error_class, reason, drain_id, dead_since_ms"
    letter = f"iif(n = {rows}, 'TypeError', 'ValueError'), 'not this', 'drain', 1"
    with store.database.begin() as work:
        for statement in (
            "delete from xq_entry",
            "delete from xq_dead_letter",
            f"insert into xq_entry ({position}, value) select {of_n}, x'31' from {numbers}",
            f"insert into xq_dead_letter ({position}, {of_letter}) select {of_n}, {letter} from {numbers}",
        ):
            work.connection.connection.driver_connection.execute(statement)


def dearer_with_more(op: TestClient, store: Store, sizes: tuple[int, int]) -> dict[str, list[int]]:
    """Return the pages that cost more if there are more entries and letters, with their steps in the database."""
    import sqlalchemy as sa

    steps = [0]

    def count(driver: Any, _: Any) -> None:
        driver.set_progress_handler(lambda: steps.__setitem__(0, steps[0] + 1), 10)

    paths = [path for method, path, _ in requests(f"seq={FIRST_SEQ + 1}&key_hex={b'00000001'.hex()}")]
    paths = [path for path in paths if "/confirm" in path or not path.endswith(("/retry", "/drop"))]
    paths += [f"{LETTERS}?reader=orders&error_class=TypeError", f"{LETTERS}?reader=orders&key=00000007"]
    costs: dict[str, list[int]] = {path: [] for path in paths}
    sa.event.listen(sa.Engine, "connect", count)
    try:
        for rows in sizes:
            fill(store, rows)
            for path in paths:
                steps[0] = 0
                assert op.get(path).status_code == 200, path
                costs[path].append(steps[0])
    finally:
        sa.event.remove(sa.Engine, "connect", count)
    assert min(before for path, (before, _) in costs.items() if not path.endswith((".css", ".svg"))) > 0
    print(costs)
    return {path: cost for path, cost in costs.items() if cost[1] > cost[0] + 5}


def test_pages_cost_the_same_however_many_entries_and_letters_there_are(
    op: TestClient, airflow_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from export_queue.page import app, figures

    for module, name in ((figures, "COUNTED"), (figures, "SEARCHED"), (app, "MOST_CHANGED")):
        monkeypatch.setattr(module, name, 200)
    assert dearer_with_more(op, airflow_store, (1000, 20_000)) == {}


@pytest.mark.full("a million letters; the test before has fewer, and lower limits")
def test_a_million_letters_in_ten_thousand_units_cost_what_few_do(op: TestClient, connect: Any, tmp_path: Path) -> None:
    connect(CONNECTION, conn_type="export_queue", host=f"sqlite:///{tmp_path / 'large.db'}")
    with Store.open(f"sqlite:///{tmp_path / 'large.db'}") as store:
        store.create()
        store.configure_queue("orders", buckets=10_000, buckets_per_range=1)
        assert len(store.queue("orders").units()) == 10_000
        assert dearer_with_more(op, store, (20_000, 1_000_000)) == {}
