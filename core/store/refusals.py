"""Errors of refused commits and changes, for both databases; no I/O."""

from __future__ import annotations

from export_queue.core.errors import CommitRefused, InvalidArgument, LayoutClosed, UnknownQueue


def layout_closed(named: str) -> LayoutClosed:
    """Build the error of files that were written for a layout that is closed now."""
    return LayoutClosed(f"files for {named} were written in a layout that was closed meanwhile")


def removed_subscription(named: str) -> UnknownQueue:
    """Build the error of work for a subscription that was removed meanwhile."""
    return UnknownQueue(
        f"{named} was removed meanwhile",
        hint="start again if there is a new subscription of this name: it is another one",
    )


def removed_while_loading() -> UnknownQueue:
    """Build the error of a first load whose subscription was removed."""
    return removed_subscription("the subscription of this first load")


def added_to_subscription(subscription: str) -> InvalidArgument:
    """Build the error of an entry that was added to a subscription instead of its queue."""
    queue = subscription.partition("/")[0]
    return InvalidArgument(
        f"expected the id of a queue, found subscription {subscription!r}, which gets what is added to {queue!r}",
        hint=f"add to {queue!r}; a first load alone adds to one subscription: store.first_load({subscription!r})",
    )


def first_load_not_missing() -> InvalidArgument:
    """Build the error of a first load that another one has completed meanwhile."""
    return InvalidArgument(
        "first load: expected a subscription whose first load is missing or waived, found that it was made meanwhile"
    )


class StagedMeanwhile(CommitRefused):
    """Entries were staged since the transaction was checked for keys with two entries; it must be checked again."""

    def __init__(self) -> None:
        super().__init__(
            "the transaction adds entries in other processes at the same time",
            hint="commit it after all of them have ended",
        )
