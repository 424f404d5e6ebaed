"""Errors, and the one place where the driver's become ours.

::

    PgqueError
    ├── PgqueConnectionError           no connection, or it was lost
    ├── PgquePayloadError              also ValueError: JSON can't hold it; nothing was sent
    ├── PgqueInvalidArgument           QU013, also ValueError: NULL, negative, out of range
    ├── PgqueQueueNotFound             QU001
    ├── PgqueConsumerNotFound          QU002
    ├── PgqueBatchNotFound             QU003
    ├── PgqueMessageNotInBatch         QU004
    ├── PgqueInvalidName               QU005
    ├── PgqueQueueDisabled             QU006
    ├── PgqueInvalidConfig             QU007
    ├── PgqueCooperativeMisuse         QU008
    ├── PgqueLeaseLost                 QU009
    ├── PgqueConsumerFellBehind        QU010
    ├── PgqueWrongIsolationLevel       QU011
    ├── PgqueSchemaVersion             QU012
    │   └── PgqueNotInstalled          3F000, 42883, 42P01: the schema or a function is missing
    ├── PgqueQueueInUse                QU014
    ├── PgqueDeadLetterNotFound        QU015
    ├── PgqueReadOnlyServer            QU016, 25006: a standby, or a read-only transaction
    └── PgqueSchedulerMissing          QU017: pg_cron is not in this database

The class is chosen by SQLSTATE, never by the text of a message. What has no class of its own
(permission denied, a deadlock, …) is a `PgqueError` with its SQLSTATE.
"""

# ruff: noqa: N818  (the names are those of PgQue's driver)

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg


class PgqueError(Exception):
    """Base of this package's errors; `sqlstate` and `hint` are None unless the server gave them."""

    def __init__(
        self, message: str, *, sqlstate: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.hint = hint


class PgqueConnectionError(PgqueError):
    """No connection could be made, or it was lost: whether the last statement ran is unknown."""


class PgquePayloadError(PgqueError, ValueError):
    """JSON can't hold the payload, or would change it; the message names the path to the value."""


class PgqueInvalidArgument(PgqueError, ValueError):
    """An argument is NULL, negative, or out of range."""


class PgqueQueueNotFound(PgqueError):
    """There is no queue of that name."""


class PgqueConsumerNotFound(PgqueError):
    """That consumer is not subscribed to the queue."""


class PgqueBatchNotFound(PgqueError):
    """That batch is not open: never was, or is settled already."""


class PgqueMessageNotInBatch(PgqueError):
    """The message does not belong to what is open of that batch."""


class PgqueInvalidName(PgqueError):
    """A queue's or consumer's name is empty or too long."""


class PgqueQueueDisabled(PgqueError):
    """The queue is paused, or sending to it is disabled."""


class PgqueInvalidConfig(PgqueError):
    """There is no such queue setting, or the value is out of its range."""


class PgqueCooperativeMisuse(PgqueError):
    """A plain call on a cooperative consumer, or the other way round."""


class PgqueLeaseLost(PgqueError):
    """Another worker has taken the batch over: it can't be settled here any more."""


class PgqueConsumerFellBehind(PgqueError):
    """What the consumer had not read yet is gone."""


class PgqueWrongIsolationLevel(PgqueError):
    """The call needs READ COMMITTED."""


class PgqueSchemaVersion(PgqueError):
    """Server or installed schema don't fit this release."""


class PgqueNotInstalled(PgqueSchemaVersion):
    """The schema, or a function of it, is missing: run `pgque install`."""


class PgqueQueueInUse(PgqueError):
    """The queue still has consumers."""


class PgqueDeadLetterNotFound(PgqueError):
    """There is no such dead letter: never was, replayed, or purged."""


class PgqueReadOnlyServer(PgqueError):
    """The server, or the transaction, does not write."""


class PgqueSchedulerMissing(PgqueError):
    """pg_cron is not installed in this database; the hint says what to do instead."""


_BY_SQLSTATE: dict[str, type[PgqueError]] = {
    "QU001": PgqueQueueNotFound,
    "QU002": PgqueConsumerNotFound,
    "QU003": PgqueBatchNotFound,
    "QU004": PgqueMessageNotInBatch,
    "QU005": PgqueInvalidName,
    "QU006": PgqueQueueDisabled,
    "QU007": PgqueInvalidConfig,
    "QU008": PgqueCooperativeMisuse,
    "QU009": PgqueLeaseLost,
    "QU010": PgqueConsumerFellBehind,
    "QU011": PgqueWrongIsolationLevel,
    "QU012": PgqueSchemaVersion,
    "QU013": PgqueInvalidArgument,
    "QU014": PgqueQueueInUse,
    "QU015": PgqueDeadLetterNotFound,
    "QU016": PgqueReadOnlyServer,
    "QU017": PgqueSchedulerMissing,
    "25006": PgqueReadOnlyServer,
    "3F000": PgqueNotInstalled,  # schema does not exist
    "42883": PgqueNotInstalled,  # function does not exist
    "42P01": PgqueNotInstalled,  # relation does not exist
    "25P03": PgqueConnectionError,  # idle in transaction for too long: the session is ended
    "25P04": PgqueConnectionError,  # transaction timeout: the session is ended
    "53300": PgqueConnectionError,  # too many connections
    "57P01": PgqueConnectionError,  # shutdown, or pg_terminate_backend
    "57P02": PgqueConnectionError,  # another backend crashed
    "57P03": PgqueConnectionError,  # starting up, shutting down
    "57P04": PgqueConnectionError,  # database dropped
    "57P05": PgqueConnectionError,  # idle session timeout
}
_BY_CLASS: dict[str, type[PgqueError]] = {"08": PgqueConnectionError, "22": PgqueInvalidArgument}

# Conflicts and timeouts, lack of resources, a plan that an upgrade made stale, a sick server.
_PASSING_CLASSES = frozenset({"0A", "40", "53", "55", "57", "58", "XX"})
_INSTALL_HINT = "Run `pgque install`, or sql/pgque.sql, in this database."


@contextmanager
def translated() -> Iterator[None]:
    """Turn psycopg's errors within the block into this package's."""
    try:
        yield
    except psycopg.Error as error:
        raise from_psycopg(error) from error
    except UnicodeEncodeError as error:
        # a lone surrogate in a name; the text itself could be anything, so it is not repeated
        raise PgqueInvalidArgument(f"text that can't be encoded: {error.reason}") from error


def from_psycopg(error: psycopg.Error) -> PgqueError:
    """Return our error for one of psycopg's."""
    kind = _class_of(error)
    hint = _INSTALL_HINT if kind is PgqueNotInstalled else error.diag.message_hint
    message = error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
    return kind(message, sqlstate=error.sqlstate, hint=hint)


def is_passing(error: PgqueError) -> bool:
    """Say whether a new connection and a new try may succeed without anybody's doing."""
    if isinstance(error, PgqueConnectionError | PgqueReadOnlyServer):
        return True
    return error.sqlstate is not None and error.sqlstate[:2] in _PASSING_CLASSES


def _class_of(error: psycopg.Error) -> type[PgqueError]:
    code = error.sqlstate
    if code is not None:
        return _BY_SQLSTATE.get(code) or _BY_CLASS.get(code[:2], PgqueError)
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return PgqueConnectionError
    if isinstance(error, psycopg.DataError):  # found by the driver, such as NUL in a name
        return PgqueInvalidArgument
    return PgqueError
