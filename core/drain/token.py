"""Tokens of transactions: short texts by which other processes wait until what a transaction added is exported."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self
from uuid import UUID

import msgspec

from export_queue.core.errors import CommitOutcomeUnknown, InvalidArgument, TransactionEnded, clock_of
from export_queue.core.store import Snapshot, identity_of, pack_ids, unpack_ids
from export_queue.core.transactions import OpenTransaction, State, Transaction

MOST_HASHES = 32
"""Maximum number of keys of which a token has the hashes, so that it fits into a cookie: 450 characters at most."""
_MOST_QUEUES = 16
_PREFIX = "xq1_"
_CHECK_BYTES = 4

Hashes = Mapping[int, tuple[int, ...] | None]
"""By number of a queue, the hashes of the keys that were added to it; None if these are too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportToken:
    """A transaction whose entries are waited for. It holds no keys and no values."""

    store_id: str
    seq: int
    """The sequence of its entries; 0 if it added nothing."""
    added: Hashes | None
    """None if it is not known to which queues it added."""
    request: UUID | None = None
    """Identifies the commit, if it was not known when the token was made whether it takes effect."""
    is_bound: bool = False
    """Whether the user's SQL transaction decides that."""
    cut: Snapshot | None = None
    """Instead of one transaction: everything that a snapshot sees."""

    @classmethod
    def of_cut(cls, store_id: str, snapshot: Snapshot) -> Self:
        """Return the token of everything that a snapshot sees."""
        return cls(store_id=store_id, seq=snapshot.read_pointer, added=None, cut=snapshot)

    @property
    def name(self) -> str:
        """What the token stands for, for messages."""
        if self.cut is not None:
            return f"everything committed before {clock_of(self.seq)}"
        return f"transaction {self.seq} of {clock_of(self.seq)}"

    @property
    def text(self) -> str:
        """The token as text of letters, digits, ``-`` and ``_``."""
        request = None if self.request is None else self.request.bytes
        added = None if self.added is None else [[queue, hashes] for queue, hashes in sorted(self.added.items())]
        excluded = None if self.cut is None else pack_ids(self.cut.excluded)
        fields = [bytes.fromhex(self.store_id), self.seq, added, request, self.is_bound, excluded]
        return _text_of(msgspec.msgpack.encode(fields))

    @classmethod
    def parse(cls, text: Any, *, store_id: str) -> Self:
        """Read a token.

        :param store_id: identity of the store that is asked.
        :raises InvalidArgument: it is no token, or one of another store.
        """
        token = cls(**_fields_of(text))
        if token.store_id != store_id:
            raise InvalidArgument(
                f"token: expected one of store {store_id}, found one of store {token.store_id}",
                hint="ask the store in which the transaction has committed",
            )
        return token

    @property
    def is_empty(self) -> bool:
        """Whether the transaction added nothing."""
        return self.added is not None and not self.added


def _text_of(payload: bytes) -> str:
    return _PREFIX + base64.urlsafe_b64encode(_check_of(payload) + payload).decode().rstrip("=")


def _check_of(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_CHECK_BYTES).digest()


_Whole = Annotated[int, msgspec.Meta(le=(1 << 63) - 1)]
_Seq = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Fields = tuple[bytes, _Seq, list[tuple[_Whole, tuple[_Whole, ...] | None]] | None, bytes | None, bool, str | None]


def _fields_of(text: Any) -> dict[str, Any]:
    problem = "its form is wrong"
    if not isinstance(text, str):
        problem = f"found {type(text).__name__}"
    elif not text.startswith(_PREFIX):
        problem = f"it does not begin with {_PREFIX!r}"
    else:
        try:
            encoded = text.removeprefix(_PREFIX)
            raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
            check, payload = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:]
            if check == _check_of(payload) and text == _text_of(payload):
                store, seq, added, request, is_bound, excluded = msgspec.msgpack.decode(payload, type=_Fields)
                return {
                    "store_id": store.hex(),
                    "seq": seq,
                    "added": None if added is None else dict(added),
                    "request": None if request is None else UUID(bytes=request),
                    "is_bound": is_bound,
                    "cut": None if excluded is None else Snapshot(seq, unpack_ids(excluded)),
                }
            problem = "it was changed or cut off"
        except (ValueError, binascii.Error, msgspec.MsgspecError):
            pass
    raise InvalidArgument(
        f"token: expected a transaction's token as text, {problem}",
        hint="pass tx.token of a committed transaction, or store.token(…) of a long one, unchanged",
    )


def token_of(transaction: OpenTransaction) -> str:
    """Return the token of a transaction that has committed.

    :raises InvalidArgument: it has not committed yet.
    :raises TransactionEnded: it was aborted or refused.
    :raises CommitOutcomeUnknown: it is not known whether it has committed.
    """
    done = transaction.committed
    if done is None:
        raise _no_token(transaction)
    is_bound = transaction.kind == "bound"
    return ExportToken(
        store_id=identity_of(transaction.database).store_id,
        seq=done.id,
        added=None if done.entries is None else added_of((queue, hashed) for queue, hashed, _, _ in done.entries),
        request=transaction.request if is_bound and done.entries else None,
        is_bound=is_bound,
    ).text


def _no_token(transaction: OpenTransaction) -> Exception:
    if transaction.state is State.UNKNOWN:
        return CommitOutcomeUnknown(f"no token: the commit of request {transaction.request} got no answer")
    if transaction.state is State.ABORTED:
        return TransactionEnded("no token: the transaction was aborted, and has added nothing")
    if transaction.is_resumed:
        hint = "commit it with store.commit(transaction); store.token(transaction) returns the token"
    else:
        hint = "read tx.token after the block of the transaction"
    return InvalidArgument("no token: the transaction has not committed yet", hint=hint)


def token_of_long(store_id: str, transaction: Transaction) -> str:
    """Return the token of a long transaction, which may be in progress. What it adds is not known."""
    return ExportToken(store_id=store_id, seq=transaction.id, added=None, request=UUID(transaction.request)).text


def added_of(entries: Iterable[tuple[int, int]]) -> Hashes | None:
    """Return what a token says of entries, given as number of the queue and hash of the key."""
    found: dict[int, set[int]] = {}
    for queue, hashed in entries:
        found.setdefault(queue, set()).add(hashed)
    if len(found) > _MOST_QUEUES:
        return None
    left, added = MOST_HASHES, dict[int, tuple[int, ...] | None]()
    for queue, hashes in sorted(found.items(), key=lambda one: len(one[1])):
        added[queue] = tuple(sorted(hashes)) if len(hashes) <= left else None
        left -= len(hashes) if len(hashes) <= left else 0
    return added
