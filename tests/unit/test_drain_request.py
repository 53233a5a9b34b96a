"""The one list of a drain's parameters: what is refused, what templates may give, what travels."""

from __future__ import annotations

import typing
from dataclasses import fields

import msgspec
import pytest
from typer.main import get_command

from export_queue import InvalidArgument, Owner, Retry
from export_queue.core.cli.program import app
from export_queue.core.drain import DRAIN_RETRY, TASK_OPTIONS, DrainOptions, DrainRequest, described_options


def request(**options):
    return DrainRequest.of("orders", "cache", options)


def test_options_and_request_name_the_same_parameters_with_the_same_types():
    options = typing.get_type_hints(DrainOptions)
    expected = typing.get_type_hints(DrainRequest)
    assert [f.name for f in fields(DrainRequest)] == ["queue_id", "sink_name", *options]
    assert {name: kind | None for name, kind in expected.items() if name in options} == options


def test_none_stands_for_the_default():
    made = request(owner=None, drain_id=None, retry=None, exporter=None, if_locked=None)
    assert (made.retry, made.if_locked, made.exporter) == (DRAIN_RETRY, "wait", None)
    assert made.drain_id
    assert request().owner != request().owner


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"if_locked": "stay"}, "if_locked: expected one of wait, skip, fail, found 'stay'"),
        ({"on_error": "ignore"}, "on_error: expected one of dead_letter, fail, found 'ignore'"),
        ({"max_dead": -1}, "max_dead: expected a whole number from 0, found -1"),
        ({"max_dead": True}, "max_dead: expected a whole number from 0, found True"),
        ({"chunk_rows": 0}, "chunk_rows: expected a whole number from 1, found 0"),
        ({"lock_timeout": -1}, "lock_timeout: expected seconds from 0, found -1"),
        ({"time_limit": 0}, "time_limit: expected seconds above 0, found 0"),
        ({"lease_seconds": 0}, "lease_seconds: expected seconds above 0, found 0"),
        ({"drain_id": ""}, "drain_id: expected a name, found nothing"),
        ({"ranges": [[0]]}, "range: expected two integers such as"),
        ({"ranges": 5}, "ranges: expected pairs of whole numbers, found 5"),
        ({"max_deaed": 3}, "a drain has no option max_deaed; it has: exporter, ranges, if_locked"),
    ],
)
def test_what_is_not_allowed_is_refused_with_what_was_expected(options, message):
    with pytest.raises(InvalidArgument) as caught:
        request(**options)
    assert message in str(caught.value)


def test_a_request_survives_json():
    made = request(exporter="m:f", ranges=[[0, 5]], owner=Owner("a/b", "1"), retry=Retry(attempts=None, seconds=3))
    assert msgspec.json.decode(made.to_json(), type=DrainRequest) == made


def test_every_option_has_a_help_which_the_command_line_prints():
    described = described_options()
    assert list(described) == list(DrainOptions.__annotations__)
    printed = {one.name: one.help for one in get_command(app).commands["drain"].params}
    for name in TASK_OPTIONS:
        default = next(one.default for one in fields(DrainRequest) if one.name == name)
        assert printed[name] == described[name][1] + ("" if default is None else f"; by default {default}")


def test_an_exporter_that_is_an_object_cannot_travel():
    with pytest.raises(InvalidArgument, match="import path"):
        request(exporter=print).to_json()


def test_another_attempt_is_of_the_same_task():
    made = request(owner=Owner("a/b", "1"))
    again = made.another_attempt()
    assert (again.owner.task, again.drain_id) == ("a/b", made.drain_id)
    assert again.owner.attempt != "1"
