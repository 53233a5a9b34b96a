"""References to secrets: what they lead to, and that nothing shows what was found."""

from __future__ import annotations

import sys
import traceback
import types

import pytest

from export_queue import InvalidArgument, SecretNotFound
from export_queue.core.references import is_reference, resolve_secret


@pytest.fixture
def vault(monkeypatch):
    module = types.ModuleType("a_vault")
    monkeypatch.setitem(sys.modules, "a_vault", module)
    return module


@pytest.mark.parametrize("text", ["env:A_B1", "file:/run/secrets/x", "a_vault:password", "a.b.c:d.e"])
def test_references_are_recognised(text):
    assert is_reference(text)


@pytest.mark.parametrize(
    "text", ["", "hunter2", "env:", "env:1A", "env:A-B", "file:relative", "file:", ":x", "a:b:c", "a b:c", None, 5]
)
def test_other_texts_are_no_references(text):
    assert not is_reference(text)


def test_a_variable_of_the_environment_is_read(monkeypatch):
    monkeypatch.setenv("XQ_TEST", "hunter2\n")
    assert resolve_secret("env:XQ_TEST") == "hunter2\n"


@pytest.mark.parametrize("content", [b"hunter2", b"hunter2\n", b"hunter2\r\n"])
def test_a_file_is_read_without_its_last_line_break(tmp_path, content):
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    assert resolve_secret(f"file:{path}") == "hunter2"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o601])
def test_a_file_that_is_open_to_others_is_refused(tmp_path, mode):
    path = tmp_path / "secret"
    path.write_text("hunter2")
    path.chmod(mode)
    with pytest.raises(SecretNotFound, match=f"mode {mode:04o}") as caught:
        resolve_secret(f"file:{path}")
    assert "hunter2" not in str(caught.value)


def test_a_callable_is_called_each_time(vault):
    answers = iter(["first", "second"])
    vault.password = lambda: next(answers)
    assert [resolve_secret("a_vault:password") for _ in range(2)] == ["first", "second"]


@pytest.mark.parametrize(
    "reference",
    [
        "env:XQ_NOT_SET",
        "file:/nowhere/at/all",
        "file:/tmp",
        "no_such_module:f",
        "a_vault:absent",
        "a_vault:text",
        "a_vault:number",
        "a_vault:empty",
    ],
)
def test_a_reference_that_leads_nowhere_is_named(vault, reference):
    vault.text, vault.number, vault.empty = "x", lambda: 5, lambda: ""
    with pytest.raises(SecretNotFound) as caught:
        resolve_secret(reference)
    assert reference in str(caught.value)


def test_files_that_are_no_secrets_are_refused(tmp_path):
    path = tmp_path / "secret"
    path.touch(0o600)
    for content, reason in [(b"", "is empty"), (b"\xff", "UTF-8"), (b"x" * 70_000, "hardly a secret")]:
        path.write_bytes(content)
        with pytest.raises(SecretNotFound, match=reason):
            resolve_secret(f"file:{path}")


def test_no_error_shows_what_a_vault_said(vault):
    def password():
        raise RuntimeError("the answer was hunter2")

    vault.password = password
    with pytest.raises(SecretNotFound) as caught:
        resolve_secret("a_vault:password")
    shown = "".join(traceback.format_exception(caught.value, chain=True))
    assert "RuntimeError" in shown
    assert "the answer was hunter2" not in shown


def test_a_text_that_is_no_reference_is_not_repeated():
    with pytest.raises(InvalidArgument) as caught:
        resolve_secret("hunter2")
    assert "hunter2" not in str(caught.value)
