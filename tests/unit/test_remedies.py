"""Every remedy exists: commands, options, calls, arguments, pages and views in messages, docstrings and pages."""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
import re
import shlex
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest
import typer
from tests.support.command_line import without_connections
from typer.main import get_command

import export_queue
from export_queue import FirstLoad, Store, TransactionContext
from export_queue.core.cli.program import app
from export_queue.core.client.dead_letters import DeadLetters
from export_queue.core.drain import DrainOptions
from export_queue.core.segments import BulkWriter

ROOT = Path(__file__).parents[2]
CODE = ("core", "hooks", "operators", "provider", "sensors", "dags_examples", "demo")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAM: Any = get_command(app)
UsageError: Any = typer.BadParameter.__base__
GAP = "\ufffc"
"""Stands in a text for a value that is filled in later."""


@dataclass(frozen=True)
class Text:
    """A text of the tree, with gaps."""

    place: str
    text: str


def texts() -> Iterator[Text]:
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from strings(path.read_text("utf-8"), str(path.relative_to(ROOT)))
    for path in PAGES:
        yield Text(str(path.relative_to(ROOT)), without_connections(path.read_text("utf-8")))


def strings(source: str, name: str) -> Iterator[Text]:
    """Find the texts of a module: constants, docstrings, f-strings whose values are gaps."""
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found = "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)
            yield Text(f"{name}:{node.lineno}", found)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield Text(f"{name}:{node.lineno}", re.sub(r"%[sdr]", GAP, node.value))


TEXTS = list(texts())


def commands(text: str) -> Iterator[list[str]]:
    """Find the commands in a text, as words.

    In backticks and in blocks of code a command is all that stands there. In a sentence it is its names, options with
    their values, and words in capitals or to be filled in.
    """
    for found in re.finditer(r"(`?)export-queue +([^`\n]*)", text):
        quoted, rest = found[1], found[2]
        line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        if not quoted and not re.fullmatch(r"\s*(\d+ )?(\$ )?", line):
            yield in_sentence(rest)
        else:
            with contextlib.suppress(ValueError):  # half a quotation: code of another kind
                yield shlex.split(rest.split(" >> ")[0].split("](")[0])


def in_sentence(rest: str) -> list[str]:
    words: list[str] = []
    node: Any = PROGRAM
    for word in rest.split():
        bare = word.rstrip(",;:).'\"")
        if hasattr(node, "commands") and bare in node.commands:
            node = node.commands[bare]
        elif hasattr(node, "commands"):
            words.append(bare)
            break
        elif not (bare.startswith("--") or re.fullmatch(rf"[A-Z/_.]+(?:\.json)?|…|.*{GAP}.*", bare)):
            break
        words.append(bare)
        if bare != word:
            break
    return words


def parse(words: list[str]) -> None:
    """Parse a command as the program does.

    :raises UsageError: the program would refuse it.
    """
    node: Any = PROGRAM
    before: list[str] = []
    while words and hasattr(node, "commands"):
        if words[0].startswith("-") or not re.fullmatch(r"[a-z-]+", words[0]):
            break
        if words[0] not in node.commands:
            raise UsageError(f"no command {' '.join([*before, words[0]])}")
        node, before, words = node.commands[words[0]], [*before, words[0]], words[1:]
    if hasattr(node, "commands") or not words:
        return  # a name without arguments
    refusals = []
    for count in range(4):  # so many arguments may be left out where three dots stand for any
        try:
            make(node, words, left_out=count)
        except UsageError as error:
            refusals.append(error)
        else:
            return
    raise refusals[0]


def make(command: Any, words: list[str], *, left_out: int) -> None:
    """Let a command read its arguments.

    :param left_out: what stands for any number of arguments stands for so many.
    """
    filled: list[str] = []
    numbers = {
        one.metavar
        for one in command.params
        if one.param_type_name == "argument" and one.type_descriptor.annotation is int
    }
    for at, word in enumerate(words):
        option = takes_value(command, words[at - 1]) if at else None
        if option is not None:
            filled.append(value_of(option, word))
        elif word == "…" or (word == GAP and (at == len(words) - 1 or words[at + 1].startswith("--"))):
            filled += ["x"] * left_out
        else:
            filled.append("1" if word in numbers else re.sub(f"{GAP}|…", "x", word))
    if filled and (last := takes_value(command, filled[-1])) is not None:
        filled.append(value_of(last, GAP))
    with mock.patch.dict(os.environ, {"EXPORT_QUEUE_STORE": "sqlite:///x.db", "EXPORT_QUEUE_SINK": "sqlite:///y.db"}):
        command.make_context("command", filled)


def takes_value(command: Any, word: str) -> Any:
    """Return the option that a word names, if a value follows it."""
    name, equals, _ = word.partition("=")
    found = [one for one in command.params if name in getattr(one, "opts", ()) and word.startswith("--")]
    return found[0] if found and not equals and not getattr(found[0], "is_flag", False) else None


def value_of(option: Any, word: str) -> str:
    """Return the value that a text gives an option, or a fitting one where it stands for any."""
    annotation = option.type_descriptor.annotation
    stands_for_any = GAP in word or "…" in word or word.isupper()
    if choices := typing.get_args(annotation):
        return str(choices[0]) if stands_for_any else word
    return "1" if stands_for_any and annotation in (int, float) else re.sub(f"{GAP}|…", "x", word)


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("run `export-queue idempotency key --close NAME` and clear", False),
        ("run `export-queue idempotency NAME --close` and clear", True),
        ("see who holds it: export-queue locks", True),
        ("see them: export-queue dead list orders --drain-id x", True),
        ("see them: export-queue dead letters QUEUE", False),
        ("raise it (export-queue alter QUEUE --max-bytes …), or not", False),
        ("raise it (export-queue alter QUEUE --max-value-bytes …), or not", True),
        ("bind it: export-queue rebind QUEUE, then drain", False),
        ("`export-queue drain`", True),
        ("`export-queue dran`", False),
        ("`export-queue alter QUEUE …` says", True),
    ],
)
def test_a_command_that_the_program_refuses_is_found(text: str, is_right: bool) -> None:
    if is_right:
        for words in commands(text):
            parse(words)
    else:
        with pytest.raises(UsageError):
            for words in commands(text):
                parse(words)


def test_every_command_in_a_message_docstring_or_page_is_one_of_the_program() -> None:
    wrong, seen = [], 0
    for text in TEXTS:
        for words in commands(text.text):
            is_heading = text.place == "docs/command-line.md" and any("[" in word or "|" in word for word in words)
            if not words or is_heading:
                continue  # headings, which another test compares with the program
            seen += 1
            try:
                parse(words)
            except UsageError as error:
                wrong.append(f"{text.place}: export-queue {' '.join(words)}: {error.format_message()}")
    assert seen > 100
    assert wrong == []


HANDLES: dict[str, Any] = {
    "store": Store,
    "Store": Store,
    "store.dead_letters": DeadLetters,
    "tx": TransactionContext,
    "tx.queue()": BulkWriter,
    "load": FirstLoad,
    "export_queue": export_queue,
}
_CALL = re.compile(r"\b(store\.dead_letters|store|Store|export_queue|tx\.queue\([^()]*\)|tx|load)\.(\w+)\(")


def calls(text: str) -> Iterator[tuple[Any, str, ast.Call | None]]:
    """Find calls of the library's handles in a text."""
    for found in _CALL.finditer(text):
        handle = "tx.queue()" if found[1].startswith("tx.queue(") else found[1]
        end = closing(text, found.end())
        source = text[found.end() : end].replace("…", "...").replace(GAP, "gap")
        try:
            call = ast.parse(f"f({source})", mode="eval").body
        except SyntaxError:
            continue
        yield HANDLES[handle], found[2], call if isinstance(call, ast.Call) else None


def closing(text: str, start: int) -> int:
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return at
    return len(text)


def misfit(handle: Any, name: str, call: ast.Call | None) -> str | None:
    """Return why a call cannot be made."""
    method = inspect.getattr_static(handle, name, None) if inspect.isclass(handle) else getattr(handle, name, None)
    if method is None:
        return "there is no such name"
    if call is None or isinstance(method, property) or not (call.args or call.keywords):
        return None
    found = getattr(handle, name)
    signature = inspect.signature(found)
    has_self = inspect.isclass(handle) and not isinstance(method, classmethod)
    positional: list[Any] = [None] * has_self
    positional += [None for one in call.args if not (isinstance(one, ast.Constant) and one.value is Ellipsis)]
    is_partial = any(isinstance(one, ast.Constant) and one.value is Ellipsis for one in call.args)
    named = {one.arg: None for one in call.keywords if one.arg is not None}
    try:
        (signature.bind_partial if is_partial or any(one.arg is None for one in call.keywords) else signature.bind)(
            *positional, **named
        )
    except TypeError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("store.first_load('a/b')", True),
        ("store.first_load()", True),
        ("store.make_first_load('a/b')", False),
        ("store.run(function, time_out=5)", False),
        ("with store.transaction(long=True) as tx: …", True),
        ("export_queue.readmit(store, queue_id, sink)", True),
        ("export_queue.readmit(store, queue_id)", False),
        ("Store.open(url, limits=Limits(...))", True),
        ("store.configure_queue(...)", True),
        ("store.dead_letters.give_up_file(queue_id, file)", True),
        ("store.dead_letters.give_up(queue_id, file)", False),
    ],
)
def test_a_call_that_does_not_fit_is_found(text: str, is_right: bool) -> None:
    (one,) = calls(text)
    assert (misfit(*one) is None) is is_right


def test_every_call_in_a_message_docstring_or_page_fits_the_real_signature() -> None:
    wrong, seen = [], 0
    for text in TEXTS:
        for handle, name, call in calls(text.text):
            seen += 1
            reason = misfit(handle, name, call)
            if reason is not None:
                shown = name if call is None else f"{name}({', '.join(map(ast.unparse, [*call.args, *call.keywords]))})"
                wrong.append(f"{text.place}: {shown}: {reason}")
    assert seen > 100
    assert wrong == []


def parameters(found: Any) -> set[str]:
    """Return the names of a function's or class's arguments, those of a drain's options among them."""
    names = set(inspect.signature(found).parameters)
    return names | set(DrainOptions.__annotations__) if "options" in names else names


def known_arguments() -> set[str]:
    """Collect the arguments of all functions that have a public name, and of connections to PostgreSQL."""
    names: set[str] = set(DrainOptions.__annotations__)
    names |= {one.keyword.decode() for one in psycopg.pq.Conninfo.get_defaults()}
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name == "__init__"):
                    names |= {one.arg for one in [*node.args.args, *node.args.kwonlyargs]}
                elif isinstance(node, ast.ClassDef):  # the fields of a dataclass are arguments, too
                    fields = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
                    names |= {one.id for one in fields if isinstance(one, ast.Name) and not one.id.startswith("_")}
    return names


def hints() -> Iterator[Text]:
    """Find the texts of hints: arguments ``hint=``, and ``default_hint`` of classes."""
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text("utf-8"))
            for node in ast.walk(tree):
                value: ast.AST | None = None
                if (isinstance(node, ast.keyword) and node.arg == "hint") or (
                    isinstance(node, ast.Assign)
                    and any(isinstance(one, ast.Name) and one.id in ("hint", "default_hint") for one in node.targets)
                ):
                    value = node.value
                if value is not None:
                    yield from strings(ast.unparse(value), f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', '')}")


OF = re.compile(r"\b(\w+)= of ((?:[@\w.]+)(?: and [@\w.]+)*)")


def test_an_argument_of_something_that_a_hint_names_is_one() -> None:
    def found(name: str) -> Any:
        first, _, rest = name.partition(".")
        handle = HANDLES.get(first)
        if name == "@task.export_transaction":
            source = (ROOT / "provider" / "decorators.py").read_text("utf-8")
            (init,) = [
                n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == "__init__"
            ]
            return {one.arg for one in init.args.kwonlyargs}
        assert handle is not None, name
        return parameters(getattr(handle, rest))

    seen = 0
    for text in hints():
        for argument, owners in OF.findall(text.text):
            for owner in owners.split(" and "):
                seen += 1
                assert argument in found(owner), f"{text.place}: {owner} has no {argument}="
    assert seen >= 3


def test_every_argument_in_a_hint_is_one_of_a_public_function() -> None:
    known = known_arguments()
    for text in hints():
        for name in re.findall(r"(?<![\w.])([a-z_]+)=(?![=\w]*\w+://)", text.text):
            assert name in known, f"{text.place}: {name}= is no argument"


def test_every_page_that_a_text_names_is_there() -> None:
    for text in TEXTS:
        for page in re.findall(r"\bdocs/[\w./-]+\.md\b", text.text):
            assert (ROOT / page).is_file(), f"{text.place}: {page}"


def test_every_option_that_a_message_of_the_command_line_names_is_one() -> None:
    options = {
        name for command in every(PROGRAM) for one in command.params for name in [*one.opts, *one.secondary_opts]
    }
    for text in TEXTS:
        if text.place.startswith("core/cli/"):
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text.text):
                assert option in options | {"--help"}, f"{text.place}: {option}"


def every(node: Any) -> Iterator[Any]:
    yield node
    for inner in getattr(node, "commands", {}).values():
        yield from every(inner)
