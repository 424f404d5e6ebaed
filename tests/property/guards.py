"""Engines with one guard taken out: the machine has to find each of them out."""

from __future__ import annotations

from typing import NamedTuple


class Guard(NamedTuple):
    """A piece of an engine function, and what stands there instead when the guard is gone."""

    function: str
    old: str
    new: str


POSITION = "p_state.next_snapshot, p_state.last_low, p_state.next_seq, p_state.position,"

GUARDS = {
    "ack settles the whole window": Guard(
        "ack(bigint)", "if v_state.handed_all then", "if true then"
    ),
    "any batch id is the open one": Guard(
        "_open_state(bigint)", "pgque._batch_id(v_state) = p_batch_id", "true"
    ),
    "nothing is pending at a tick": Guard(
        "_pending(pgque.tick, pgque.tick, xid8)", "array_agg(x)", "(array_agg(x))[1:0]"
    ),
    "our own transaction is not pending": Guard(
        "_snapshot()", "if v_own < pg_snapshot_xmax(v_snapshot) then", "if false then"
    ),
    "ticks in an old snapshot": Guard(
        "_require_read_committed()", "'read uncommitted')", "'repeatable read')"
    ),
    "stragglers are not looked for": Guard(
        "_window_query(pgque.queue, pgque.subscription_state, text)",
        "cardinality(p_state.last_pending) = 0",
        "true",
    ),
    "position is ignored": Guard(
        "_hand_out(pgque.queue, pgque.subscription_state, integer, boolean)",
        POSITION,
        POSITION.replace("p_state.position", "0::bigint"),
    ),
    "nothing is unread when a table is truncated": Guard(
        "_has_unread(pgque.queue, text)", "if v_unread then", "if false then"
    ),
    "a message is put back twice": Guard(
        "_was_put_back(bigint, bigint)", "exists", "false and exists"
    ),
    "the mover forgets where it was": Guard(
        "_move_due(pgque.queue)", "perform pgque._append_pass(v_pass);", "null;"
    ),
    "a retry goes to everybody": Guard(
        "_move_due(pgque.queue)",
        "p_queue.queue_slot, d.ev_queue, d.ev_owner,",
        "p_queue.queue_slot, d.ev_queue, null,",
    ),
    "a subscription is not locked": Guard(
        "_lock_subscription(integer)",
        "perform pg_advisory_xact_lock(1346851155, p_sub_id);",
        "null;",
    ),
    "the mover misses what came late": Guard(
        "_due_events(pgque.delayed_pass, pgque.delayed_pass)",
        "and d.ev_retry_after <= p_last.pass_time",
        "and false",
    ),
    "what was nacked is forgotten in the turn": Guard(
        "_kept_delayed_event(integer)", "or o.batch_id is not null", "or false"
    ),
}
