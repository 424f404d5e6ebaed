"""Settling: ack, ack_to, release, and who may name which message."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.fix_db import Connect
from tests.sql.calls import (
    ack,
    bring_back,
    drain,
    nack,
    receive,
    refused,
    row,
    send,
    subscribe,
    take,
    tick,
    value,
)

NO_BATCH = [0, 1, -1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)]


def ack_to(conn: psycopg.Connection, message: Any) -> int:
    """Settle up to and including this message."""
    statement = "select pgque.ack_to(%s, %s)"
    return int(value(conn, statement, message.batch_id, message.msg_id))


def release(conn: psycopg.Connection, batch_id: int) -> int:
    """Give the batch back."""
    return int(value(conn, "select pgque.release(%s)", batch_id))


@pytest.fixture
def batch(conn: psycopg.Connection, topic: str) -> list[Any]:
    """Four messages handed out of the five that were sent."""
    value(conn, "select pgque.send_batch(%s, '{1,2,3,4,5}'::text[])", topic)
    tick(conn, topic)
    return receive(conn, topic, limit=4)


@pytest.mark.parametrize("batch_id", NO_BATCH)
def test_a_batch_that_is_not_open(
    conn: psycopg.Connection, batch: list[Any], batch_id: int
) -> None:
    """ack, ack_to and release return 0; what gives messages back is an error."""
    assert ack(conn, batch_id) == 0
    assert value(conn, "select pgque.ack_to(%s::bigint, 1)", batch_id) == 0
    assert release(conn, batch_id) == 0
    for call in (
        "nack(%s::bigint, 1)",
        "event_dead(%s::bigint, 1, 'x')",
        "event_retry(%s::bigint, 1, 0)",
        "event_retry(%s::bigint, 1, now())",
        "batch_retry(%s::bigint, 0)",
        "get_batch_events(%s::bigint)",
    ):
        with refused("QU003", str(batch_id)):
            conn.execute(f"select pgque.{call}".encode(), [batch_id])


@pytest.mark.parametrize("msg_id", [0, -1, 10, 2**31, 2**63 - 1, -(2**63)])
def test_a_message_that_is_not_in_the_batch(
    conn: psycopg.Connection, batch: list[Any], msg_id: int
) -> None:
    """QU004 names both, in every function that takes a message."""
    batch_id = batch[0].batch_id
    for call in (
        "ack_to(%s, %s::bigint)",
        "nack(%s, %s::bigint)",
        "event_dead(%s, %s::bigint, 'x')",
        "event_retry(%s, %s::bigint, 0)",
    ):
        with refused("QU004", str(batch_id), str(msg_id)):
            conn.execute(f"select pgque.{call}".encode(), [batch_id, msg_id])


def test_what_was_not_handed_out_cannot_be_settled(
    conn: psycopg.Connection, topic: str, batch: list[Any]
) -> None:
    """The fifth message is in the window and not in the batch."""
    fifth = batch[3]._replace(msg_id=batch[3].msg_id + 1)
    with refused("QU004"):
        ack_to(conn, fifth)
    with refused("QU004"):
        nack(conn, fifth)
    ack(conn, fifth.batch_id)
    (message,) = receive(conn, topic)
    assert (message.msg_id, message.payload) == (fifth.msg_id, "5")


def test_ack_to_settles_up_to_the_message(
    conn: psycopg.Connection, topic: str, batch: list[Any]
) -> None:
    """The rest stays in the batch, under its id; going back has no effect."""
    assert ack_to(conn, batch[1]) == 1
    assert ack_to(conn, batch[0]) == 1
    with refused("QU004"):
        nack(conn, batch[1])
    again = receive(conn, topic, limit=2)
    assert [(m.batch_id, m.payload) for m in again] == [
        (batch[0].batch_id, "3"),
        (batch[0].batch_id, "4"),
    ]
    assert ack(conn, batch[0].batch_id) == 1
    assert ack_to(conn, batch[3]) == 0
    assert take(conn, topic) == ["5"]


def test_ack_to_the_last_message_leaves_the_batch_open(
    conn: psycopg.Connection, topic: str, batch: list[Any]
) -> None:
    """It may still be acked; if it is not, receive goes on with what comes next."""
    assert ack_to(conn, batch[3]) == 1
    with conn.transaction(force_rollback=True):
        assert ack(conn, batch[0].batch_id) == 1
    assert [message.payload for message in receive(conn, topic)] == ["5"]


def test_release_gives_back_uncounted(
    conn: psycopg.Connection, topic: str, batch: list[Any]
) -> None:
    """A new batch id, delivery_count 1; what was settled before stays settled."""
    ack_to(conn, batch[0])
    assert release(conn, batch[0].batch_id) == 1
    assert release(conn, batch[0].batch_id) == 0
    assert ack(conn, batch[0].batch_id) == 0
    with refused("QU003"):
        nack(conn, batch[1])
    again = receive(conn, topic)
    assert [message.payload for message in again] == ["2", "3", "4", "5"]
    assert {message.delivery_count for message in again} == {1}
    assert again[0].batch_id != batch[0].batch_id


def test_what_was_nacked_before_a_release_is_only_retried(
    conn: psycopg.Connection, topic: str, batch: list[Any]
) -> None:
    """As an ordinary consumer stops: nack one, settle up to it, give back the rest."""
    nack(conn, batch[1])
    ack_to(conn, batch[1])
    release(conn, batch[0].batch_id)
    assert take(conn, topic) == ["3", "4", "5"]
    value(conn, "select pgque.maint_retry_events()")
    assert drain(conn, topic) == ["2"]


def test_two_copies_of_a_message_are_settled_one_after_the_other(
    conn: psycopg.Connection, topic: str, batch: list[Any]
) -> None:
    """Nacked, given back, and nacked once more in the next batch, it comes twice; the second copy
    can be nacked and acked though the first one is settled."""
    nack(conn, batch[0])
    release(conn, batch[0].batch_id)
    again = receive(conn, topic)
    nack(conn, again[0])
    ack(conn, again[0].batch_id)
    bring_back(conn, topic)
    for retries in (1, 1):
        (copy,) = receive(conn, topic, limit=1)
        assert (copy.msg_id, copy.retry_count) == (batch[0].msg_id, retries)
        assert nack(conn, copy) == 1
        assert ack_to(conn, copy) == 1
        ack(conn, copy.batch_id)
    assert receive(conn, topic) == []


def test_one_consumers_batch_is_not_anothers(
    conn: psycopg.Connection, topic: str, batch: list[Any]
) -> None:
    """Positions are kept for each subscription alone."""
    subscribe(conn, topic, "d")
    send(conn, topic, "6")
    tick(conn, topic)
    (other,) = receive(conn, topic, "d")
    with refused("QU004"):
        ack_to(conn, batch[0]._replace(msg_id=other.msg_id))
    with refused("QU004"):
        nack(conn, other._replace(msg_id=batch[0].msg_id))
    assert ack(conn, other.batch_id) == 1
    assert ack(conn, batch[0].batch_id) == 1
    assert take(conn, topic) == ["5", "6"]
    assert take(conn, topic, "d") == []


def test_two_processes_under_one_name_lose_nothing(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Field case 6: both get the batch; the second ack returns 0, and the next batch is whole."""
    other = connect()
    send(conn, topic, "1", "2")
    tick(conn, topic)
    mine, theirs = receive(conn, topic), receive(other, topic)
    assert [m.payload for m in mine] == [m.payload for m in theirs]
    send(conn, topic, "3")
    tick(conn, topic)
    assert ack(other, theirs[0].batch_id) == 1
    assert ack(conn, mine[0].batch_id) == 0
    assert take(conn, topic) == ["3"]


def test_the_larger_piece_of_a_second_process_is_not_acked_by_the_first(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Under one name, one asks for 2 and the other for all: an ack settles what its caller saw."""
    value(conn, "select pgque.send_batch(%s, '{1,2,3,4}'::text[])", topic)
    tick(conn, topic)
    first = receive(conn, topic, limit=2)
    receive(connect(), topic, limit=100)  # its process then dies
    assert ack(conn, first[0].batch_id) == 1
    assert take(conn, topic) == ["3", "4"]


def test_the_open_batch_can_be_looked_at(
    conn: psycopg.Connection, topic: str, batch: list[Any]
) -> None:
    """get_batch_info and get_consumer_info show it until it is settled."""
    batch_id = batch[0].batch_id
    info = row(conn, "select * from pgque.get_batch_info(%s)", batch_id)
    assert (info.queue_name, info.consumer_name) == (topic, "c")
    assert info.tick_id > info.prev_tick_id
    assert info.seq_start < batch[0].msg_id <= batch[3].msg_id <= info.seq_end
    found = row(conn, "select * from pgque.get_consumer_info(%s, 'c')", topic)
    assert found.current_batch == batch_id
    ack(conn, batch_id)
    assert conn.execute("select pgque.get_batch_info(%s)", [batch_id]).fetchall() == []
