"""Dead letters: the whole message is kept, and can be looked at, replayed and purged."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.sql.calls import (
    ack,
    bring_back,
    configure,
    drain,
    nack,
    receive,
    refused,
    row,
    rows,
    send,
    subscribe,
    take,
    tick,
    value,
)


def bury(conn: psycopg.Connection, queue: str, *payloads: str, consumer: str = "c") -> list[Any]:
    """Send them, let `consumer` bury them; returns the letters, oldest first."""
    send(conn, queue, *payloads)
    tick(conn, queue)
    for message in receive(conn, queue, consumer):
        statement = "select pgque.event_dead(%s, %s, 'bad')"
        assert value(conn, statement, message.batch_id, message.msg_id) == 1
    assert ack(conn, message.batch_id) == 1
    return rows(conn, "select * from pgque.dlq_inspect(%s) order by dl_id", queue)


def test_a_letter_holds_queue_consumer_reason_time_and_the_message(
    conn: psycopg.Connection, topic: str
) -> None:
    """Every field of it."""
    value(conn, "select pgque.send(%s, 't', 'd'::text, 'k', '[1]')", topic)
    value(conn, "select pgque.insert_event(%s, 't', 'd', '1', '2', '3', '4')", topic)
    tick(conn, topic)
    first, second = receive(conn, topic)
    for message in (first, second):
        value(conn, "select pgque.event_dead(%s, %s, 'bad')", message.batch_id, message.msg_id)
    newest, oldest = rows(conn, "select * from pgque.dlq_inspect(%s)", topic)
    assert (oldest.queue_name, oldest.consumer_name, oldest.dl_reason) == (topic, "c", "bad")
    assert (oldest.ev_id, oldest.ev_time) == (first.msg_id, first.created_at)
    assert (oldest.ev_type, oldest.ev_data, oldest.ev_key) == ("t", "d", "k")
    assert oldest.ev_headers == [1]
    assert (newest.ev_extra1, newest.ev_extra2, newest.ev_extra3, newest.ev_extra4) == tuple("1234")
    assert oldest.dl_time >= oldest.ev_time
    assert newest.ev_id == second.msg_id


def test_twice_the_same_dead_message_is_one_letter(conn: psycopg.Connection, topic: str) -> None:
    """Field case 2: by nack, by event_dead, and mixed with a retry."""
    configure(conn, topic, max_retries=0)
    send(conn, topic, "1", "2")
    tick(conn, topic)
    first, second = receive(conn, topic)
    assert [nack(conn, first), nack(conn, first)] == [1, 1]
    bury_it = "select pgque.event_dead(%s, %s, 'x')"
    assert value(conn, bury_it, first.batch_id, first.msg_id) == 0
    assert value(conn, "select pgque.event_retry(%s, %s, 0)", second.batch_id, second.msg_id) == 1
    assert value(conn, bury_it, second.batch_id, second.msg_id) == 0
    assert nack(conn, second) == 1
    ack(conn, first.batch_id)
    letters = rows(conn, "select * from pgque.dlq_inspect(%s)", topic)
    assert [letter.ev_data for letter in letters] == ["1"]
    bring_back(conn, topic)
    assert take(conn, topic) == ["2"]


def test_inspect_shows_the_newest_first(conn: psycopg.Connection, topic: str) -> None:
    """At most limit_count of them."""
    bury(conn, topic, "1", "2", "3")
    statement = "select ev_data from pgque.dlq_inspect(%s, %s)"
    assert [r.ev_data for r in rows(conn, statement, topic, 2)] == ["3", "2"]
    assert rows(conn, statement, topic, 0) == []
    for limit in (-1, None):
        with refused("QU013", "limit_count"):
            rows(conn, "select * from pgque.dlq_inspect(%s, %s::int)", topic, limit)


def test_a_replay_goes_to_the_consumer_that_failed(conn: psycopg.Connection, topic: str) -> None:
    """As a new message with no attempts counted; the letter is gone; others see nothing."""
    subscribe(conn, topic, "d")
    (letter,) = bury(conn, topic, "x")
    assert take(conn, topic, "d") == ["x"]
    new_id = value(conn, "select pgque.dlq_replay(%s)", letter.dl_id)
    assert new_id > letter.ev_id
    tick(conn, topic)
    assert receive(conn, topic, "d") == []
    (message,) = receive(conn, topic)
    assert (message.msg_id, message.payload, message.retry_count) == (new_id, "x", None)
    assert rows(conn, "select * from pgque.dlq_inspect(%s)", topic) == []
    with refused("QU015", str(letter.dl_id)):
        value(conn, "select pgque.dlq_replay(%s)", letter.dl_id)


@pytest.mark.parametrize("dl_id", [0, -1, 2**31, 2**63 - 1])
def test_an_unknown_letter(conn: psycopg.Connection, dl_id: int) -> None:
    """QU015 quotes the id."""
    with refused("QU015", str(dl_id)):
        value(conn, "select pgque.dlq_replay(%s)", dl_id)


def test_a_letter_of_a_consumer_that_left_is_kept(conn: psycopg.Connection, topic: str) -> None:
    """QU002; it can be replayed when the consumer is back."""
    (letter,) = bury(conn, topic, "x")
    value(conn, "select pgque.unsubscribe(%s, 'c')", topic)
    with refused("QU002", "c", topic):
        value(conn, "select pgque.dlq_replay(%s)", letter.dl_id)
    subscribe(conn, topic)
    value(conn, "select pgque.dlq_replay(%s)", letter.dl_id)
    assert drain(conn, topic) == ["x"]


def test_a_replay_goes_to_a_group_once(conn: psycopg.Connection, queue: str) -> None:
    """However many members it has; one of them gets it."""
    for member in ("m", "n", "o"):
        value(conn, "select pgque.subscribe_subconsumer(%s, 'g', %s)", queue, member)
    send(conn, queue, "1", "2")
    tick(conn, queue)
    receive_coop = "select * from pgque.receive_coop(%s, 'g', %s)"
    messages = rows(conn, receive_coop, queue, "m")
    for message in messages:
        value(conn, "select pgque.event_dead(%s, %s, 'x')", message.batch_id, message.msg_id)
    ack(conn, messages[0].batch_id)
    letter = row(conn, "select * from pgque.dlq_inspect(%s, 1)", queue)
    value(conn, "select pgque.dlq_replay(%s)", letter.dl_id)
    assert row(conn, "select * from pgque.dlq_replay_all(%s)", queue) == (1, 0, None)
    tick(conn, queue)
    taken = [m.payload for member in "nom" for m in rows(conn, receive_coop, queue, member)]
    assert sorted(taken) == ["1", "2"]


def test_replay_all_says_what_could_not_be_replayed(conn: psycopg.Connection, topic: str) -> None:
    """(replayed, failed, first_error), oldest first; failed letters stay."""
    subscribe(conn, topic, "leaver")
    bury(conn, topic, "1", "2", "3")
    bury(conn, topic, consumer="leaver")
    value(conn, "select pgque.unsubscribe(%s, 'leaver')", topic)
    result = row(conn, "select * from pgque.dlq_replay_all(%s)", topic)
    assert (result.replayed, result.failed) == (3, 3)
    assert "leaver" in result.first_error
    assert drain(conn, topic) == ["1", "2", "3"]
    again = row(conn, "select * from pgque.dlq_replay_all(%s)", topic)
    assert (again.replayed, again.failed) == (0, 3)
    value(conn, "select pgque.dlq_purge(%s, '0')", topic)
    assert row(conn, "select * from pgque.dlq_replay_all(%s)", topic) == (0, 0, None)


def test_purge_deletes_letters_of_at_least_that_age(conn: psycopg.Connection, topic: str) -> None:
    """By default 30 days; interval 0 is all of them."""
    old, _ = bury(conn, topic, "1", "2")
    age = "update pgque.dead_letter set dl_time = dl_time - interval '31 days' where dl_id = %s"
    conn.execute(age.encode(), [old.dl_id])
    assert value(conn, "select pgque.dlq_purge(%s)", topic) == 1
    assert value(conn, "select pgque.dlq_purge(%s, '1 day')", topic) == 0
    with refused("QU013", "older_than"):
        value(conn, "select pgque.dlq_purge(%s, null)", topic)
    assert value(conn, "select pgque.dlq_purge(%s, '0')", topic) == 1


def test_letters_stay_when_their_consumer_leaves_and_go_with_their_queue(
    conn: psycopg.Connection,
) -> None:
    """drop_queue drops them."""
    value(conn, "select pgque.create_queue('doomed')")
    subscribe(conn, "doomed")
    bury(conn, "doomed", "x")
    value(conn, "select pgque.unsubscribe('doomed', 'c')")
    assert len(rows(conn, "select * from pgque.dlq_inspect('doomed')")) == 1
    value(conn, "select pgque.drop_queue('doomed')")
    statement = "select * from pgque.dead_letter where queue_name = 'doomed'"
    assert rows(conn, statement) == []
