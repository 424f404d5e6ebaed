"""Cooperative consumers: who gets which piece, what becomes of it, and who waits for whom."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import psycopg
import pytest

from tests.fix_db import Connect
from tests.sql.calls import (
    ack,
    bring_back,
    configure,
    drain,
    move_clock,
    nack,
    refused,
    rows,
    send,
    tick,
    value,
)


def join(conn: psycopg.Connection, queue: str, *members: str) -> None:
    for member in members:
        assert value(conn, "select pgque.subscribe_subconsumer(%s, 'g', %s)", queue, member) == 1


def ask(
    conn: psycopg.Connection, queue: str, member: str, limit: int = 100, dead: str | None = None
) -> list[Any]:
    """What one call of receive_coop hands out."""
    statement = "select * from pgque.receive_coop(%s, 'g', %s, %s, %s::interval)"
    return rows(conn, statement, queue, member, limit, dead)


def payloads(messages: list[Any]) -> list[str]:
    return [message.payload for message in messages]


@pytest.fixture
def group(conn: psycopg.Connection, queue: str) -> str:
    """A queue with the cooperative consumer "g" of members a and b."""
    join(conn, queue, "a", "b")
    return queue


def backlog(conn: psycopg.Connection, queue: str, count: int) -> list[str]:
    """So many messages, sent in one transaction and ticked."""
    sent = [f"{number:05}" for number in range(count)]
    value(conn, "select pgque.send_batch(%s, 't', %s::text[])", queue, sent)
    tick(conn, queue)
    return sent


def test_members_share_one_window(conn: psycopg.Connection, group: str) -> None:
    """Each message goes to one member, in pieces of what the member asked for."""
    sent = backlog(conn, group, 10)
    assert payloads(ask(conn, group, "a", 4)) == sent[:4]
    assert payloads(ask(conn, group, "b", 4)) == sent[4:8]
    assert payloads(ask(conn, group, "new one", 4)) == sent[8:]
    assert ask(conn, group, "another", 4) == []


def test_an_unacked_piece_comes_again_under_its_id(conn: psycopg.Connection, group: str) -> None:
    """Also with another limit; what is beyond it stays with this member."""
    sent = backlog(conn, group, 6)
    first = ask(conn, group, "a", 4)
    again = ask(conn, group, "a", 2)
    assert payloads(again) == sent[:2]
    assert again[0].batch_id == first[0].batch_id
    assert [message.delivery_count for message in again] == [2, 2]
    assert payloads(ask(conn, group, "b")) == sent[4:]
    assert ack(conn, again[0].batch_id) == 1
    assert payloads(ask(conn, group, "a")) == sent[2:4]


def test_nobody_waits_for_a_members_open_transaction(
    conn: psycopg.Connection, connect: Connect, group: str
) -> None:
    """While one acks in a transaction that stays open, the others receive and ack."""
    sent = backlog(conn, group, 6)
    slow = connect(autocommit=False)
    (first, *_) = ask(slow, group, "a", 2)
    slow.commit()
    assert ack(slow, first.batch_id) == 1
    conn.execute("set lock_timeout = '1s'")
    taken = ask(conn, group, "b", 2)
    assert payloads(taken) == sent[2:4]
    assert ack(conn, taken[0].batch_id) == 1
    slow.rollback()
    assert payloads(ask(slow, group, "a", 2)) == sent[:2]


def test_an_uncommitted_hand_out_gives_others_nothing_at_once(
    conn: psycopg.Connection, connect: Connect, group: str
) -> None:
    """They do not wait for it, and get the rest when it is committed."""
    sent = backlog(conn, group, 4)
    idle = connect(autocommit=False)
    assert payloads(ask(idle, group, "a", 2)) == sent[:2]
    conn.execute("set lock_timeout = '1s'")
    assert ask(conn, group, "b", 2) == []
    idle.rollback()
    assert payloads(ask(conn, group, "b", 2)) == sent[:2]


def test_a_dead_members_piece_is_taken_over(own: psycopg.Connection) -> None:
    """What it had settled stays settled; its batch id neither acks, nacks nor releases."""
    join(own, "q", "a", "b")
    sent = backlog(own, "q", 4)
    lost = ask(own, "q", "a")
    value(own, "select pgque.ack_to(%s, %s)", lost[0].batch_id, lost[0].msg_id)
    assert ask(own, "q", "b", dead="1 minute") == []
    move_clock(own, "2 minutes")
    taken = ask(own, "q", "b", dead="1 minute")
    assert payloads(taken) == sent[1:]
    assert taken[0].batch_id != lost[0].batch_id
    assert taken[0].delivery_count == 2
    assert ack(own, lost[0].batch_id) == 0
    assert value(own, "select pgque.release(%s)", lost[0].batch_id) == 0
    with refused("QU009", "lease lost"):
        nack(own, lost[1])
    with refused("QU009", "lease lost"):
        value(own, "select pgque.ack_to(%s, %s)", lost[0].batch_id, lost[1].msg_id)
    assert ack(own, taken[0].batch_id) == 1
    assert ask(own, "q", "a", dead="1 minute") == []


def test_a_heartbeat_keeps_the_piece(own: psycopg.Connection) -> None:
    """touch_subconsumer is a sign of life; without dead_interval nothing is taken at all."""
    join(own, "q", "a", "b")
    backlog(own, "q", 1)
    ask(own, "q", "a")
    move_clock(own, "2 minutes")
    assert ask(own, "q", "b") == []
    assert value(own, "select pgque.touch_subconsumer('q', 'g', 'a')") == 1
    assert ask(own, "q", "b", dead="1 minute") == []
    assert value(own, "select pgque.touch_subconsumer('q', 'g', 'nobody')") == 0


def test_what_is_released_goes_to_the_next_who_asks(conn: psycopg.Connection, group: str) -> None:
    """Undelivered: it counts no hand-out."""
    sent = backlog(conn, group, 3)
    piece = ask(conn, group, "a")
    value(conn, "select pgque.ack_to(%s, %s)", piece[0].batch_id, piece[0].msg_id)
    assert value(conn, "select pgque.release(%s)", piece[0].batch_id) == 1
    taken = ask(conn, group, "b")
    assert payloads(taken) == sent[1:]
    assert taken[0].delivery_count == 1


def test_a_nacked_message_comes_back_to_the_group(conn: psycopg.Connection, group: str) -> None:
    """Any member may get it, with the attempt counted."""
    backlog(conn, group, 1)
    (message,) = ask(conn, group, "a")
    nack(conn, message)
    assert ack(conn, message.batch_id) == 1
    bring_back(conn, group)
    (again,) = ask(conn, group, "b")
    assert (again.msg_id, again.retry_count) == (message.msg_id, 1)


def test_a_member_leaves(conn: psycopg.Connection, group: str) -> None:
    """0 refuses with an open batch; 1 gives its messages back through retry; the id is dead."""
    configure(conn, group, max_retries=1)
    sent = backlog(conn, group, 2)
    piece = ask(conn, group, "a")
    with refused("QU008", "open batch"):
        value(conn, "select pgque.unsubscribe_subconsumer(%s, 'g', 'a')", group)
    leave = "select pgque.unsubscribe_subconsumer(%s, 'g', %s, 1)"
    assert value(conn, leave, group, "a") == 1
    assert ack(conn, piece[0].batch_id) == 0
    bring_back(conn, group)
    again = ask(conn, group, "b")
    assert payloads(again) == sent
    assert [message.retry_count for message in again] == [1, 1]
    assert value(conn, leave, group, "b") == 1
    letters = rows(conn, "select * from pgque.dlq_inspect(%s)", group)
    assert [letter.dl_reason for letter in letters] == ["subconsumer left"] * 2
    assert value(conn, leave, group, "b") == 0


def test_leaving_after_a_release_loses_nothing(conn: psycopg.Connection, group: str) -> None:
    """What it gave back goes to the others, without an attempt."""
    sent = backlog(conn, group, 2)
    (first, _) = ask(conn, group, "a")
    value(conn, "select pgque.release(%s)", first.batch_id)
    assert value(conn, "select pgque.unsubscribe_subconsumer(%s, 'g', 'a')", group) == 1
    bring_back(conn, group)
    again = ask(conn, group, "b")
    assert payloads(again) == sent
    assert [message.retry_count for message in again] == [None, None]


def test_normal_and_cooperative_do_not_mix(conn: psycopg.Connection, queue: str) -> None:
    """Each call says which one to use; a normal consumer is converted on demand, in its place."""
    value(conn, "select pgque.subscribe(%s, 'g')", queue)
    sent = backlog(conn, queue, 3)
    (message,) = rows(conn, "select * from pgque.receive(%s, 'g', 1)", queue)
    with refused("QU008", "not cooperative"):
        ask(conn, queue, "a")
    convert = "select pgque.subscribe_subconsumer(%s, 'g', 'a', true)"
    with refused("QU008", "open batch"):
        value(conn, convert, queue)
    ack(conn, message.batch_id)
    assert value(conn, convert, queue) == 1
    with refused("QU008", "is cooperative"):
        rows(conn, "select * from pgque.receive(%s, 'g')", queue)
    with refused("QU008", "is cooperative"):
        value(conn, "select pgque.next_batch(%s, 'g')", queue)
    assert payloads(ask(conn, queue, "a")) == sent[1:]


def test_odd_arguments(conn: psycopg.Connection, group: str) -> None:
    """Refused with the name of the bad one; a far dead_interval is never."""
    for dead in ("0", "-1 minute"):
        with refused("QU013", "dead_interval"):
            ask(conn, group, "a", dead=dead)
    with refused("QU005", "subconsumer"):
        ask(conn, group, "")
    with refused("QU013", "batch_handling"):
        value(conn, "select pgque.unsubscribe_subconsumer(%s, 'g', 'a', 2)", group)
    backlog(conn, group, 1)
    ask(conn, group, "a")
    assert ask(conn, group, "b", dead="100000 years") == []


def test_the_group_and_its_members_are_shown(conn: psycopg.Connection, group: str) -> None:
    """The consumer as g, members as g.a and g.b, with their open batches."""
    backlog(conn, group, 5)
    piece = ask(conn, group, "a", 2)
    shown = rows(conn, "select * from pgque.get_consumer_info(%s)", group)
    assert [info.consumer_name for info in shown] == ["g", "g.a", "g.b"]
    assert [info.current_batch for info in shown] == [None, piece[0].batch_id, None]
    assert [info.pending_events for info in shown] == [3, 2, 0]
    assert all(info.lag is not None for info in shown)


def test_rotation_keeps_what_a_member_holds(own: psycopg.Connection) -> None:
    """A table is not truncated while a piece of it is unsettled, though the log is handed out."""
    join(own, "q", "a", "b")
    value(own, "select pgque.unsubscribe('q', 'c')")
    sent = backlog(own, "q", 2)
    held = ask(own, "q", "a", 1)
    value(own, "select pgque.ack(%s)", ask(own, "q", "b", 1)[0].batch_id)
    configure(own, "q", rotation_period="1 millisecond")
    for _ in range(4):
        value(own, "select pgque.maint_rotate_tables_step1('q')")
        send(own, "q", "more")
        tick(own, "q")
        value(own, "select pgque.ack(%s)", ask(own, "q", "b")[0].batch_id)
    assert payloads(ask(own, "q", "a", 1)) == sent[:1]
    assert ack(own, held[0].batch_id) == 1
    assert value(own, "select pgque.maint_rotate_tables_step1('q')") >= 1


def test_many_members_share_without_loss_or_duplicate(
    conn: psycopg.Connection, connect: Connect, queue: str
) -> None:
    """Six at once, acking, nacking, and giving back halves, settle each message once."""
    value(conn, "select pgque.subscribe_subconsumer(%s, 'g', 'm0')", queue)
    configure(conn, queue, max_retries=1000)
    sent = [text for _ in range(4) for text in backlog(conn, queue, 250)]
    settled: Counter[tuple[int, str]] = Counter()
    lock = threading.Lock()

    def work(number: int) -> None:
        chance = random.Random(number)
        session = connect()
        while True:
            messages = ask(session, queue, f"m{number}", chance.randint(1, 40))
            done = list(messages)
            if messages:
                batch = messages[0].batch_id
                kind = chance.random()
                if kind < 0.2:
                    done = messages[: chance.randint(1, len(messages))]
                    value(session, "select pgque.ack_to(%s, %s)", batch, done[-1].msg_id)
                    value(session, "select pgque.release(%s)", batch)
                else:
                    if kind < 0.4:
                        nack(session, done.pop(chance.randrange(len(done))))
                    assert ack(session, batch) == 1
                with lock:
                    settled.update((message.msg_id, message.payload) for message in done)
            elif settled.total() >= len(sent):
                return
            else:
                value(session, "select pgque.tick_if_new(%s)", queue)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(50)
        assert not worker.is_alive()
    assert sorted(text for _, text in settled.elements()) == sorted(sent)
    assert set(settled.values()) == {1}


def test_an_unused_group_misses_nothing(conn: psycopg.Connection, queue: str) -> None:
    """While it has no member, its messages are kept, and its lag is known."""
    join(conn, queue, "a")
    value(conn, "select pgque.unsubscribe_subconsumer(%s, 'g', 'a')", queue)
    sent = backlog(conn, queue, 3)
    (info,) = rows(conn, "select * from pgque.get_consumer_info(%s)", queue)
    assert info.lag is not None
    assert payloads(ask(conn, queue, "b")) == sent


def test_other_consumers_of_the_queue_get_everything(conn: psycopg.Connection, group: str) -> None:
    """Fan-out: the group is one consumer among others."""
    value(conn, "select pgque.subscribe(%s, 'c')", group)
    sent = backlog(conn, group, 3)
    ask(conn, group, "a", 2)
    assert drain(conn, group) == sent
