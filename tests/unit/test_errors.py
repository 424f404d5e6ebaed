"""psycopg's errors become ours, by SQLSTATE."""

from __future__ import annotations

import pickle

import psycopg
import pytest
from psycopg import errors as pg

import pgque
from pgque.errors import is_passing, translated


def translate(error: Exception) -> pgque.PgqueError:
    with pytest.raises(pgque.PgqueError) as caught, translated():
        raise error
    assert caught.value.__cause__ is error
    return caught.value


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.OperationalError("the connection is closed"), pgque.PgqueConnectionError),
        (psycopg.InterfaceError("the cursor is closed"), pgque.PgqueConnectionError),
        (pg.AdminShutdown("terminating"), pgque.PgqueConnectionError),
        (pg.TooManyConnections("no slot"), pgque.PgqueConnectionError),
        (pg.ConnectionFailure("gone"), pgque.PgqueConnectionError),
        (pg.IdleInTransactionSessionTimeout("slow"), pgque.PgqueConnectionError),
        (pg.ReadOnlySqlTransaction("standby"), pgque.PgqueReadOnlyServer),
        (pg.UndefinedFunction("no such function"), pgque.PgqueNotInstalled),
        (pg.InvalidSchemaName("no such schema"), pgque.PgqueNotInstalled),
        (pg.NumericValueOutOfRange("too big"), pgque.PgqueInvalidArgument),
        (psycopg.DataError("found by the driver"), pgque.PgqueInvalidArgument),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate"), pgque.PgqueInvalidArgument),
        (pg.DeadlockDetected("deadlock"), pgque.PgqueError),
        (pg.InsufficientPrivilege("no"), pgque.PgqueError),
        (psycopg.ProgrammingError("misuse"), pgque.PgqueError),
    ],
)
def test_the_class_follows_the_sqlstate(error: Exception, kind: type[Exception]) -> None:
    """And, where the server gave none, psycopg's own class."""
    ours = translate(error)
    assert type(ours) is kind
    assert ours.sqlstate == getattr(error, "sqlstate", None)


def test_codes_of_ours_have_classes_of_ours() -> None:
    """What psycopg knows only as a database error."""

    class Raised(psycopg.DatabaseError):
        sqlstate = "QU017"

    assert type(translate(Raised("pg_cron is not installed"))) is pgque.PgqueSchedulerMissing


def test_message_does_not_decide() -> None:
    """A text that looks like another error changes nothing."""
    assert type(translate(pg.InternalError_("queue not found"))) is pgque.PgqueError


def test_a_missing_schema_says_what_to_do() -> None:
    """In the hint, which is kept apart from the message."""
    assert "pgque install" in str(translate(pg.UndefinedFunction("no such function")).hint)


def test_other_exceptions_pass() -> None:
    """Only the driver's are ours to name."""
    with pytest.raises(KeyError), translated():
        raise KeyError


def test_errors_can_be_pickled() -> None:
    """With what they know; multiprocessing does it."""
    error = pgque.PgqueQueueNotFound("no", sqlstate="QU001", hint="create it")
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.sqlstate, back.hint) == ("no", "QU001", "create it")


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (psycopg.OperationalError("gone"), True),
        (pg.ReadOnlySqlTransaction("standby"), True),
        (pg.DeadlockDetected("deadlock"), True),
        (pg.QueryCanceled("statement timeout"), True),
        (pg.DiskFull("full"), True),
        (pg.InternalError_("sick"), True),
        (pg.InsufficientPrivilege("no"), False),
        (pg.UndefinedFunction("no such function"), False),
        (psycopg.ProgrammingError("misuse"), False),
    ],
)
def test_what_time_may_heal_is_tried_again(error: Exception, passing: bool) -> None:
    """What is wrong with the call is not."""
    assert is_passing(translate(error)) is passing


def test_what_the_queue_says_is_not_tried_again() -> None:
    """An unknown queue stays unknown."""
    assert not is_passing(pgque.PgqueQueueNotFound("no", sqlstate="QU001"))
