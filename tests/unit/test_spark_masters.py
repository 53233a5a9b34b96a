"""Masters of Spark that do not answer are named at once."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import Any

import pytest
from tests.support.servers import free_port

from export_queue import SparkJobFailed
from export_queue.core.spark import check_answers


@pytest.mark.parametrize("form", ["spark://127.0.0.1:%d", "k8s://https://127.0.0.1:%d", "k8s://127.0.0.1:%d"])
def test_a_master_that_does_not_answer_is_named(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export_queue.core.spark.masters.getproxies", dict)
    master = form % free_port()
    with pytest.raises(SparkJobFailed, match="does not answer") as raised:
        check_answers(master)
    assert master in str(raised.value)
    assert raised.value.transient
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        check_answers(form % server.getsockname()[1])


def test_one_answer_of_several_masters_is_enough() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        check_answers(f"spark://127.0.0.1:{free_port()},127.0.0.1:{server.getsockname()[1]}")
    one, other = free_port(), free_port()
    with pytest.raises(SparkJobFailed, match=rf"127.0.0.1:{one}: .*; 127.0.0.1:{other}: "):
        check_answers(f"spark://127.0.0.1:{one},127.0.0.1:{other}")


def test_a_master_whose_name_leads_nowhere_is_named() -> None:
    with pytest.raises(SparkJobFailed, match=r"spark://no-such-host.invalid:7077 does not answer"):
        check_answers("spark://no-such-host.invalid:7077")


def test_a_master_without_an_address_or_behind_a_proxy_is_left_to_spark(monkeypatch: Any) -> None:
    monkeypatch.setattr("export_queue.core.spark.masters.getproxies", lambda: {"https": "http://proxy.invalid:3128"})
    for master in ("local[2]", "yarn", "", f"k8s://https://127.0.0.1:{free_port()}", "spark://127.0.0.1"):
        check_answers(master)
