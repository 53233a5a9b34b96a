"""The one list of a drain's parameters: what is refused, what templates may give, what travels."""

from __future__ import annotations

import typing
from dataclasses import fields

import pytest

from export_queue import InvalidArgument, Owner, Retry
from export_queue.core.drain import DRAIN_RETRY, DrainOptions, DrainRequest


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
        ({"lock_timeout": -1}, "lock_timeout: expected seconds, 0 or more, found -1"),
        ({"lease_seconds": 0}, "lease_seconds: expected more than 0 seconds, found 0"),
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
    assert DrainRequest.from_json(made.to_json()) == made


def test_an_exporter_that_is_an_object_cannot_travel():
    with pytest.raises(InvalidArgument, match="import path"):
        request(exporter=print).to_json()


def test_another_attempt_is_of_the_same_task():
    made = request(owner=Owner("a/b", "1"))
    again = made.another_attempt()
    assert (again.owner.task, again.drain_id) == ("a/b", made.drain_id)
    assert again.owner.attempt != "1"
