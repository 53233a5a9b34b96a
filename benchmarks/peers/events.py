"""What becomes of records when things go wrong: each event is brought about, and its cell is written from what is seen.

Late: all records in version 1, then in version 2, then those of version 1 again, as a task brings them that lives on
from before. Of a drain it is a task of the drain that brought version 1, with its seq and its claim.
Retried: the process of each task is killed when several batches have gone through; Spark repeats the task.
Delete: the records' values are null, or the connector's own delete where it has one; then version 1 comes late.
Refused: the target takes no further write, or refuses one record; where that passes, the same delivery is made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measuring import Outcome
from benchmarks.peers.environment import OWN
from benchmarks.peers.session import Session, SessionFailed
from benchmarks.peers.targets import Found, Target
from benchmarks.peers.ways import Way, ways_to


class Deliveries:
    """Delivers records in one way, into a target that was emptied for it.

    :param rows: how many records each delivery has.
    :param store: description of the store, for drains.
    :param queue: name of the queue, for drains.
    :param deaths: the folder where tasks note their deaths.
    """

    def __init__(
        self,
        way: Way,
        target: Target,
        sessions: Mapping[str, Session],
        store: Mapping[str, Any],
        rows: int,
        queue: str,
        deaths: Path,
    ) -> None:
        self.way, self.target, self.rows = way, target, rows
        self.session = sessions[way.spark]
        self.store, self.queue, self.deaths = store, queue, deaths
        self.first: tuple[str, list[Any]] | None = None
        """Seq and claims of the first delivery, if that was a drain's."""
        target.empty(way.guard)

    def deliver(self, version: int, *, deletes: bool = False, dies: bool = False, anew: bool = True) -> str:
        """Deliver all records.

        :param deletes: that they are gone.
        :param dies: whether the process of each task is killed in the midst of the first attempt.
        :param anew: whether there is something new; else what is left of before is delivered again.
        :returns: the problem, if there was one.
        """
        if not self.way.is_drain:
            how, to = self.way.how, {**self.target.address(), **self.way.options}
            answer = self.session.attempt(
                "write", how=how, to=to, rows=self.rows, version=version, deletes=deletes, dies=dies
            )
            return str(answer.get("error", ""))
        seq = None
        if anew:
            what = {"rows": self.rows, "version": version, "deletes": deletes}
            seq = self.session.ask("load", store=self.store, queue=self.queue, **what)["seq"]
        assert self.way.guard is not None
        self.sink = self.target.sink(self.way.guard)
        answer = self.session.ask(
            "drain", store=self.store, queue=self.queue, sink=self.sink, dies=dies, impatient=True
        )
        if self.first is None:
            self.first = seq, answer["claims"]
        self.dead, self.waiting = answer["dead"], answer["waiting"]
        return str(answer["problem"])

    def begin(self) -> None:
        """Deliver all records for the first time, when nothing is wrong yet.

        :raises SessionFailed: they did not arrive; what follows would say nothing of the way.
        """
        problem = self.deliver(1)
        if problem or share(self.found(), 1) != self.rows:
            raise SessionFailed(f"{self.way.name} does not deliver: {problem or versions(self)}")

    def deliver_late(self, version: int) -> str:
        """Deliver all records as something does that lives on from before the last delivery.

        :returns: what the way says to it.
        """
        if not self.way.is_drain:
            return "job fails" if self.deliver(version) else ""
        assert self.first is not None
        seq, claims = self.first
        answer = self.session.ask(
            "late", rows=self.rows, version=version, queue=self.queue, sink=self.sink, seq=seq, claims=claims
        )
        if answer["problem"]:
            return f"late task refused: `{answer['problem']}`"
        return f"{answer['stale']} counted as stale" if answer["stale"] else ""

    def found(self) -> Found:
        return self.target.found()


def late(at: Deliveries) -> str:
    at.begin()
    second = at.deliver(2)
    if share(at.found(), 2) != at.rows:
        return f"cannot update: job of the newer value {failed(second)}, {versions(at)}"
    said = at.deliver_late(1)
    newer = share(at.found(), 2)
    if newer == at.rows:
        return with_more("newer value stays", said)
    return with_more("older value wins" if newer == 0 else f"older value wins in {at.rows - newer} of {at.rows}", said)


def retried(at: Deliveries) -> str:
    for death in at.deaths.iterdir():
        death.unlink()  # of another way
    problem = at.deliver(1, dies=True)
    assert list(at.deaths.iterdir()), "no task has died"
    there = there_of(at, at.found())
    return f"job {failed(problem)}, {there}" if problem else there


def deleted(at: Deliveries) -> str:
    at.begin()
    problem = at.deliver(2, deletes=True)
    found = at.found()
    if found:
        empty = share(found, 0)
        stay = "records stay, without a value" if empty == at.rows else f"{versions(at)}"
        return f"cannot delete: job {failed(problem)}, {stay}"
    at.deliver_late(1)
    back = len(at.found())
    return "gone, and stays gone" if not back else f"gone; a late delivery brings {back} of {at.rows} back"


def refused(at: Deliveries) -> str:
    with at.target.refusing():
        problem = at.deliver(1)
        if not at.target.passes:
            became = f"job {failed(problem)}, {there_of(at, at.found())}"
            return with_more(became, waiting(at))
        # while the target is full it can be read; what is there is what was written
        became = with_more(f"job {failed(problem)}, {there_of(at, at.found())}", waiting(at))
    again = at.deliver(1, anew=False)
    return f"{became}; again, with room: job {failed(again)}, {there_of(at, at.found())}"


EVENTS: dict[str, Callable[[Deliveries], str]] = {
    "late delivery": late,
    "retried task": retried,
    "delete": deleted,
    "refusal": refused,
}


def outcomes(
    target: Target, sessions: Mapping[str, Session], store: Mapping[str, Any], rows: int, deaths: Path, *, each: bool
) -> Iterator[Outcome]:
    """Bring about events in every way to a target.

    :param each: whether every event; else one a way, another one each time.
    """
    ways = [way for way in ways_to(target.name) if way.how != "sink"]  # the sinks are those of the drains
    for number, way in enumerate(ways):
        for event in EVENTS if each else [list(EVENTS)[number % len(EVENTS)]]:
            queue = f"{target.name.lower()}-{number}-{event.replace(' ', '-')}"
            became = EVENTS[event](Deliveries(way, target, sessions, store, rows, queue, deaths))
            named = f"refusal ({target.refusal})" if event == "refusal" else event
            spark = "" if way.spark == OWN else f" (Spark {way.spark})"
            yield Outcome(bench="peers", target=target.name, way=way.name + spark, event=named, became=became)


def failed(problem: str) -> str:
    return "fails" if problem else "succeeds"


def share(found: Found, version: int) -> int:
    """Count the records that are there once, in a version."""
    return sum(versions == [version] for versions in found.values())


def versions(at: Deliveries) -> str:
    """Say which versions are there."""
    counted = Counter(version for found in at.found().values() for version in found)
    if counted == {1: at.rows}:
        return "older value stays"
    return (
        ", ".join(f"{count} in version {version}" for version, count in sorted(counted.items())) or "nothing is there"
    )


def there_of(at: Deliveries, found: Found) -> str:
    """Say how many records are there, and whether some are more than once."""
    total = sum(map(len, found.values()))
    if total == len(found) == share(found, 1) == at.rows:
        return "all there, none twice"
    twice = f", {total - len(found)} more than once" if total > len(found) else ""
    return f"{len(found)} of {at.rows} there{twice}"


def waiting(at: Deliveries) -> str:
    """Say what a drain has kept."""
    if not at.way.is_drain:
        return ""
    dead = f"{at.dead} set aside as a dead letter" if at.dead == 1 else f"{at.dead} set aside as dead letters"
    kept = [dead if at.dead else "", f"{at.waiting} wait in the queue" if at.waiting else ""]
    return ", ".join(filter(None, kept))


def with_more(text: str, more: str) -> str:
    return f"{text}; {more}" if more else text
