"""Hazard: between a look and a wait. Who begins to wait, who sends, and what is heard of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql

from pgque import Message, Retry
from tests.client.consuming import recording, running, sessions, wait_for
from tests.fix_db import Connect
from tests.fix_wait import wait_activity, wait_until
from tests.race.sessions import rewrite, stopped_at
from tests.sql.calls import refused, send, take, value

LOCK = 1346851159  # of the pairs (LOCK, queue_id): waiters share it, senders try to take it


class Waiter:
    """A session that does what a consumer's listening one does, a step at a time."""

    def __init__(self, conn: psycopg.Connection, queue: str) -> None:
        self.conn = conn
        self._queue = queue
        self._channel = sql.Identifier(f"pgque_{queue}")
        self._payloads: list[str] = []
        conn.add_notify_handler(lambda notify: self._payloads.append(notify.payload))
        conn.execute(sql.SQL("listen {}").format(self._channel))

    def mark(self) -> None:
        value(self.conn, "select pgque.mark_waiting(%s, true)", self._queue)

    def heard(self) -> list[str]:
        """What was notified since the last call, '' by sends; all that was committed by now."""
        end = sql.SQL("notify {}, 'end'").format(self._channel)
        self.conn.execute(end)  # it comes after what was committed before
        wait_until(lambda: self.conn.execute("select") and "end" in self._payloads)
        heard, self._payloads = self._payloads[:-1], []
        return heard


@pytest.fixture
def waiter(connect: Connect, topic: str) -> Waiter:
    """It listens, and has not said that it waits."""
    return Waiter(connect(), topic)


def look(conn: psycopg.Connection, queue: str) -> list[str]:
    """One poll of a consumer without a ticker."""
    value(conn, "select pgque.tick_if_new(%s)", queue)
    return take(conn, queue)


def test_a_mark_before_the_senders_look_brings_a_notification(
    conn: psycopg.Connection, topic: str, connect: Connect, waiter: Waiter
) -> None:
    """With the commit, when the message can be found, and one for each queue and transaction."""
    sender = connect(autocommit=False)
    assert look(conn, topic) == []
    waiter.mark()
    assert look(conn, topic) == []
    send(sender, topic, "1", "2")
    waiter.heard()  # of the looks' ticks
    assert look(conn, topic) == []
    assert "" not in waiter.heard()
    sender.commit()
    assert waiter.heard() == [""]
    assert look(conn, topic) == ["1", "2"]


def test_a_mark_between_the_senders_look_and_its_commit_makes_it_late(
    conn: psycopg.Connection, topic: str, connect: Connect, waiter: Waiter
) -> None:
    """Nobody notifies, and the look after marking sees nothing yet. The next poll finds it."""
    sender = connect(autocommit=False)
    assert look(conn, topic) == []
    send(sender, topic, "late")
    waiter.mark()
    assert look(conn, topic) == []
    waiter.heard()  # of the look's tick
    sender.commit()
    assert waiter.heard() == []
    assert value(conn, "select pgque.next_retry_at(%s) <= clock_timestamp()", topic)
    assert look(conn, topic) == ["late"]
    assert value(conn, "select pgque.next_retry_at(%s)", topic) is None


def test_a_commit_between_the_look_and_the_mark_is_found_by_the_look_after_it(
    conn: psycopg.Connection, topic: str, waiter: Waiter
) -> None:
    """That is what the second look is for: nobody notifies."""
    assert look(conn, topic) == []
    waiter.heard()
    send(conn, topic, "between")
    waiter.mark()
    assert waiter.heard() == []
    assert look(conn, topic) == ["between"]


def test_the_sender_looks_after_it_has_inserted(
    conn: psycopg.Connection, topic: str, connect: Connect, waiter: Waiter
) -> None:
    """A mark that is set while a send stands before its look is seen by it."""
    conn.execute(
        """
        create function public.stop_after_insert() returns trigger language plpgsql as
        $$ begin perform public.stop(1); return null; end $$;
        create trigger stop after insert on pgque.event
        for each row execute function public.stop_after_insert()
        """
    )
    with stopped_at(conn, 1, connect(), "select pgque.send(%s, 'x'::text)", topic):
        waiter.mark()
        assert look(conn, topic) == []
        waiter.heard()
    assert waiter.heard() == [""]
    assert look(conn, topic) == ["x"]


def test_nobody_is_told_where_nobody_waits(
    conn: psycopg.Connection, topic: str, waiter: Waiter
) -> None:
    """Listening alone costs the senders nothing; nor does a mark that was taken away."""
    send(conn, topic, "1")
    assert waiter.heard() == []
    waiter.mark()
    send(conn, topic, "2")
    assert waiter.heard() == [""]
    value(waiter.conn, "select pgque.mark_waiting(%s, false)", topic)
    send(conn, topic, "3")
    assert waiter.heard() == []
    assert look(conn, topic) == ["1", "2", "3"]


def test_a_mark_is_for_one_queue(conn: psycopg.Connection, topic: str, waiter: Waiter) -> None:
    """A sender to another queue does not see it."""
    value(conn, "select pgque.create_queue('other')")
    other = sql.Identifier("pgque_other")
    waiter.conn.execute(sql.SQL("listen {}").format(other))
    waiter.mark()
    send(conn, "other", "x")
    assert waiter.heard() == []


@contextlib.contextmanager
def looking(conn: psycopg.Connection, queue: str) -> Iterator[None]:
    """Inside the block this session stands in the middle of a sender's look."""
    lock = "from pgque.queue where queue_name = %s"
    assert value(conn, f"select pg_try_advisory_lock({LOCK}, queue_id) {lock}", queue)
    yield
    assert value(conn, f"select pg_advisory_unlock({LOCK}, queue_id) {lock}", queue)


def test_two_senders_that_look_at_once_do_not_take_each_other_for_a_waiter(
    conn: psycopg.Connection, topic: str, connect: Connect, waiter: Waiter
) -> None:
    """The second one's try fails because of the first one's; its second try succeeds."""
    rewrite(conn, "_wake", "begin\n", "begin\nperform public.stop(1);\n")
    with contextlib.ExitStack() as first:
        first.enter_context(looking(connect(), topic))
        with stopped_at(conn, 1, connect(), "select pgque.send(%s, 'x'::text)", topic):
            first.close()
    assert waiter.heard() == []
    assert look(conn, topic) == ["x"]


def test_a_sender_that_is_mistaken_notifies_needlessly(
    conn: psycopg.Connection, topic: str, connect: Connect, waiter: Waiter
) -> None:
    """Where another one's look takes as long as both tries; that is all the harm."""
    with looking(connect(), topic):
        send(conn, topic, "1")
        assert waiter.heard() == [""]
    send(conn, topic, "2")
    assert waiter.heard() == []
    assert look(conn, topic) == ["1", "2"]


def test_notifications_can_be_switched_off(
    conn: psycopg.Connection, topic: str, waiter: Waiter
) -> None:
    """Then a transaction that sent can be prepared, though somebody waits; else it cannot."""
    waiter.mark()
    conn.execute("set pgque.notify = 'off'")
    send(conn, topic, "quiet")
    value(conn, "select pgque.send_batch(%s, '{quiet}'::text[])", topic)
    with conn.transaction():
        send(conn, topic, "prepared")
        conn.execute("prepare transaction 'quiet'")
    conn.execute("commit prepared 'quiet'")
    assert waiter.heard() == []
    assert look(conn, topic) == ["quiet", "quiet", "prepared"]

    conn.execute("reset pgque.notify")
    conn.execute("begin")
    send(conn, topic, "loud")
    with refused("0A000", "NOTIFY"):
        conn.execute("prepare transaction 'loud'")
    conn.execute("rollback")
    send(conn, topic, "loud")
    assert "" in waiter.heard()
    assert look(conn, topic) == ["loud"]


@pytest.mark.parametrize("how", ["closed", "terminated"])
def test_the_end_of_a_session_takes_its_mark_away(
    conn: psycopg.Connection, topic: str, connect: Connect, waiter: Waiter, how: str
) -> None:
    """However it ends; another one that waits keeps its own."""
    gone, stays = Waiter(connect(), topic), Waiter(connect(), topic)
    gone.mark()
    stays.mark()
    pid, last = gone.conn.info.backend_pid, stays.conn.info.backend_pid
    if how == "closed":
        gone.conn.close()
    else:
        value(conn, "select pg_terminate_backend(%s)", pid)
    wait_activity(conn, pid, state="gone")
    send(conn, topic, "x")
    assert waiter.heard() == [""]
    stays.conn.close()
    wait_activity(conn, last, state="gone")
    send(conn, topic, "x")
    assert waiter.heard() == []


def once_again() -> tuple[list[float], Callable[[Message], None]]:
    """A handler that wants its first message again after 0.2 s, and when it was called."""
    called: list[float] = []

    def handle(_: Message) -> None:
        called.append(time.monotonic())
        if len(called) == 1:
            raise Retry(after=0.2)

    return called, handle


@pytest.mark.parametrize("listen", [True, False], ids=["listening", "polling"])
def test_a_retry_is_back_when_it_is_due(
    dsn: str, conn: psycopg.Connection, topic: str, listen: bool
) -> None:
    """With a consumer alone, which would poll in ten minutes only; and not before its time."""
    called, handle = once_again()
    send(conn, topic, "1")
    consumer, _ = recording(dsn, topic, handle, listen=listen, poll_interval=600)
    with running(consumer):
        wait_until(lambda: len(called) == 2, timeout=10)
    assert called[1] - called[0] >= 0.2


def test_a_consumer_that_does_not_listen_only_polls(
    dsn: str, conn: psycopg.Connection, topic: str, waiter: Waiter
) -> None:
    """It leaves no mark, so nobody notifies it, and it misses nothing."""
    consumer, seen = recording(dsn, topic, listen=False, poll_interval=0.02)
    with running(consumer):
        for number in range(5):
            send(conn, topic, str(number))
            wait_for(seen, number)
            assert "" not in waiter.heard()
        assert sessions(conn, listening=True) == []
    assert seen == list(range(5))
    assert look(conn, topic) == []
