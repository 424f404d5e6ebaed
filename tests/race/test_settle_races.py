"""Sessions that settle the same batch, or take its subscription or queue away, at the same time."""

from __future__ import annotations

from functools import partial

import psycopg
import pytest

from tests.fix_db import Connect
from tests.fix_wait import wait_blocked, wait_until
from tests.race.sessions import (
    at_once,
    in_background,
    replace_body,
    rewrite,
    start,
    stopped_at,
)
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


def test_two_receivers_get_the_same_batch(
    conn: psycopg.Connection, topic: str, connect: Connect, guarded: bool
) -> None:
    """The second waits for the first one's transaction and gets the batch under its id. Without
    the subscription's lock both open one, and acking them in turn settles what nobody has seen."""
    if not guarded:
        replace_body(conn, "_lock_subscription", "begin end")
    value(conn, "select pgque.send_batch(%s, '{1,2,3}'::text[])", topic)
    tick(conn, topic)
    first, second = connect(autocommit=False), connect()
    mine = receive(first, topic, limit=1)
    other = start(second, "select * from pgque.receive(%s, 'c', 1)", topic)
    if guarded:
        assert wait_blocked(conn, second) == [first.info.backend_pid]
    else:
        other.result(10)
    first.commit()
    (theirs,) = other.result(10)
    assert (theirs.batch_id, theirs.payload) == (mine[0].batch_id, "1")
    assert theirs.delivery_count == (2 if guarded else 1)


def test_an_ack_and_a_nack_at_once(
    conn: psycopg.Connection, topic: str, connect: Connect, guarded: bool
) -> None:
    """The nack waits, and then says that the batch is not open any more. Without the lock it is
    taken for good beside the ack, as if the message were still in hand."""
    if not guarded:
        replace_body(conn, "_lock_subscription", "begin end")
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    acker, nacker = connect(autocommit=False), connect()
    ack(acker, message.batch_id)
    nacked = start(nacker, "select pgque.nack(%s, %s, '0')", message.batch_id, message.msg_id)
    if guarded:
        wait_blocked(conn, nacker)
        acker.commit()
        with refused("QU003"):
            nacked.result(10)
    else:
        nacked.result(10)
        acker.commit()
    bring_back(conn, topic)
    assert take(conn, topic) == ([] if guarded else ["x"])


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_two_acks_at_once_settle_once(
    conn: psycopg.Connection, topic: str, connect: Connect, outcome: str
) -> None:
    """The second returns 0 if the first commits, and 1 if it rolls back."""
    send(conn, topic, "1")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    send(conn, topic, "2")
    tick(conn, topic)
    first, second = connect(autocommit=False), connect()
    assert ack(first, message.batch_id) == 1
    other = start(second, "select pgque.ack(%s) as acked", message.batch_id)
    wait_blocked(conn, second)
    first.execute(outcome.encode())
    assert other.result(10)[0].acked == (0 if outcome == "commit" else 1)
    assert take(conn, topic) == ["2"]


def test_two_nacks_at_once_are_one_retry(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Field case 2, by two processes."""
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    sessions = [connect() for _ in range(4)]
    done = at_once([partial(nack, session, message) for session in sessions])
    assert done == [1, 1, 1, 1]
    ack(conn, message.batch_id)
    bring_back(conn, topic)
    assert take(conn, topic) == ["x"]


def test_two_movers_bring_each_retry_back_once(
    conn: psycopg.Connection, topic: str, connect: Connect, guarded: bool
) -> None:
    """While one moves due retries, another leaves them to it. Both moving at once would be seen to
    bring each back twice."""
    if not guarded:
        lock = "pg_try_advisory_xact_lock(1346851154, p_queue.queue_id)"
        rewrite(conn, "_move_due", f"not {lock}", "false")
    send(conn, topic, "1", "2")
    tick(conn, topic)
    messages = receive(conn, topic)
    for message in messages:
        nack(conn, message)
    ack(conn, messages[0].batch_id)
    first, second = connect(autocommit=False), connect()
    assert value(first, "select pgque.maint_retry_events()") == 2
    assert value(second, "select pgque.maint_retry_events()") == (0 if guarded else 2)
    first.commit()
    value(conn, "select pgque.maint_retry_events()")
    assert drain(conn, topic) == (["1", "2"] if guarded else ["1", "2", "1", "2"])


@pytest.mark.parametrize("call", ["ack", "ack_to", "nack", "event_dead", "release", "receive"])
def test_the_subscription_goes_while_a_call_waits_for_it(
    conn: psycopg.Connection, topic: str, connect: Connect, call: str
) -> None:
    """0, QU002 or QU003, as if the call had come afterwards; nothing is left behind."""
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    calls = {
        "ack": f"ack({message.batch_id})",
        "ack_to": f"ack_to({message.batch_id}, {message.msg_id})",
        "nack": f"nack({message.batch_id}, {message.msg_id})",
        "event_dead": f"event_dead({message.batch_id}, {message.msg_id}, 'x')",
        "release": f"release({message.batch_id})",
        "receive": f"receive('{topic}', 'c')",
    }
    leaver, settler = connect(autocommit=False), connect()
    value(leaver, "select pgque.unsubscribe(%s, 'c')", topic)
    late = start(settler, f"select pgque.{calls[call]} as result")
    wait_blocked(conn, settler)
    leaver.commit()
    if call in ("ack", "ack_to", "release"):
        assert late.result(10)[0].result == 0
    else:
        with refused("QU002" if call == "receive" else "QU003"):
            late.result(10)


def test_a_group_goes_while_a_member_joins(
    conn: psycopg.Connection, topic: str, connect: Connect, guarded: bool
) -> None:
    """Whoever removes the group waits until the member is in, and removes it too. Without the lock
    on the group's row the member is seen to fail with a foreign key of ours."""
    join = "select pgque.subscribe_subconsumer(%s, 'g', %s)"
    value(conn, join, topic, "first")
    name = "    perform pgque._require_name('subconsumer', p_member);"
    rewrite(conn, "_register_member", name, f"    perform public.stop(7); {name}")
    if not guarded:
        rewrite(conn, "_make_cooperative", "v_group_id for key share", "v_group_id")
    leaver, joiner, observer = connect(autocommit=False), connect(), connect()
    with stopped_at(conn, 7, joiner, join, topic, "second") as late:
        left = start(leaver, "select pgque.unsubscribe(%s, 'g')", topic)
        if guarded:
            assert wait_blocked(observer, leaver) == [joiner.info.backend_pid]
        else:
            left.result(10)
            in_background(lambda: commit_when_blocking(observer, leaver, joiner))
    if guarded:
        late.result(10)
        left.result(10)
        leaver.commit()
        assert value(conn, "select pgque.touch_subconsumer(%s, 'g', 'second')", topic) == 0
    else:
        with refused("23503"):
            late.result(10)


def commit_when_blocking(
    observer: psycopg.Connection, blocker: psycopg.Connection, blocked: psycopg.Connection
) -> None:
    """Wait until the one waits for the other, and let it go on."""
    pids = "select pg_blocking_pids(%s)"
    wanted = [blocker.info.backend_pid]
    wait_until(lambda: value(observer, pids, blocked.info.backend_pid) == wanted)
    blocker.commit()


@pytest.mark.parametrize("call", ["ack", "nack", "receive", "send", "subscribe", "dead", "drop"])
def test_the_queue_is_dropped_in_the_middle(
    conn: psycopg.Connection, topic: str, connect: Connect, call: str
) -> None:
    """Field case 10: a forced drop that is not committed yet, beside every other call: they go on,
    or wait and end in a clean error of ours; never in one of PostgreSQL's."""
    configure(conn, topic, max_retries=0 if call == "dead" else 5)
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    calls = {
        "ack": f"ack({message.batch_id})",
        "nack": f"nack({message.batch_id}, {message.msg_id})",
        "dead": f"nack({message.batch_id}, {message.msg_id})",
        "receive": f"receive('{topic}', 'c')",
        "send": f"send('{topic}', 'y'::text)",
        "subscribe": f"subscribe('{topic}', 'd')",
        "drop": f"drop_queue('{topic}', true)",
    }
    dropper, other = connect(autocommit=False), connect()
    value(dropper, "select pgque.drop_queue(%s, true)", topic)
    late = start(other, f"select pgque.{calls[call]}")
    if call in ("subscribe", "dead", "drop"):
        wait_blocked(conn, other)
    else:
        late.result(10)
    dropper.commit()
    error = late.exception(10)
    if error is not None:
        assert isinstance(error, psycopg.Error)
        assert str(error.sqlstate).startswith("QU"), error
    for again in calls.values():
        code = "QU001" if "'" in again.split(",")[0] else ("QU003" if "nack" in again else None)
        if code is not None:
            with refused(code):
                rows(conn, f"select pgque.{again}")
    assert ack(conn, message.batch_id) == 0


@pytest.mark.parametrize("call", ["nack({b}, {m})", "ack_to({b}, {m})", "event_retry({b}, {m}, 0)"])
def test_the_queue_is_gone_when_its_batch_was_found(
    conn: psycopg.Connection, topic: str, connect: Connect, call: str
) -> None:
    """A drop that commits in the middle of a call, after the batch was seen to be open: QU003."""
    rewrite(conn, "_open_state", "        return", "        perform public.stop(6); return")
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    statement = call.format(b=message.batch_id, m=message.msg_id)
    with stopped_at(conn, 6, connect(), f"select pgque.{statement}") as late:
        value(conn, "select pgque.drop_queue(%s, true)", topic)
    with refused("QU003"):
        late.result(10)


def test_two_replays_replay_once(conn: psycopg.Connection, topic: str, connect: Connect) -> None:
    """Field case 9: dlq_replay_all by two sessions, and dlq_replay of a letter in the middle."""
    sent = [str(number) for number in range(50)]
    send(conn, topic, *sent)
    tick(conn, topic)
    messages = receive(conn, topic)
    for message in messages:
        value(conn, "select pgque.event_dead(%s, %s, 'x')", message.batch_id, message.msg_id)
    ack(conn, messages[0].batch_id)
    letter = row(conn, "select * from pgque.dlq_inspect(%s, 1)", topic)
    first, second, third = connect(autocommit=False), connect(), connect()
    replayed = row(first, "select * from pgque.dlq_replay_all(%s)", topic)
    assert (replayed.replayed, replayed.failed) == (50, 0)
    again = row(second, "select * from pgque.dlq_replay_all(%s)", topic)
    assert (again.replayed, again.failed) == (0, 0)
    single = start(third, "select pgque.dlq_replay(%s)", letter.dl_id)
    wait_blocked(conn, third)
    first.commit()
    with refused("QU015"):
        single.result(10)
    assert drain(conn, topic) == sent


def test_a_replay_while_the_queue_is_dropped(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Field case 9: one waits for the other, and what comes second finds nothing."""
    send(conn, topic, "x")
    tick(conn, topic)
    (message,) = receive(conn, topic)
    value(conn, "select pgque.event_dead(%s, %s, 'x')", message.batch_id, message.msg_id)
    letter = row(conn, "select * from pgque.dlq_inspect(%s)", topic)
    replayer, dropper = connect(autocommit=False), connect()
    value(replayer, "select pgque.dlq_replay(%s)", letter.dl_id)
    dropped = start(dropper, "select pgque.drop_queue(%s, true) as done", topic)
    wait_blocked(conn, dropper)
    replayer.commit()
    assert dropped.result(10)[0].done == 1
    with refused("QU015"):
        value(conn, "select pgque.dlq_replay(%s)", letter.dl_id)


def test_a_drop_waits_for_no_sender_and_no_sender_for_it(
    conn: psycopg.Connection, topic: str, connect: Connect
) -> None:
    """Of this queue or another one; an open producer of the dropped queue just ends."""
    value(conn, "select pgque.create_queue('other')")
    subscribe(conn, "other")
    producer, dropper, sender = connect(autocommit=False), connect(autocommit=False), connect()
    sender.execute("set lock_timeout = '1s'")
    dropper.execute("set lock_timeout = '1s'")
    send(producer, topic, "x")
    value(dropper, "select pgque.drop_queue(%s, true)", topic)
    send(sender, "other", "y")
    value(sender, "select pgque.create_queue('third')")
    send(producer, topic, "z")
    producer.commit()
    dropper.commit()
    assert drain(conn, "other") == ["y"]
