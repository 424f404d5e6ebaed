"""What of a piece may start, and what is written for it. No server needed."""

from __future__ import annotations

import datetime as dt

from pgque import Message
from pgque import _consumer_statements as statements
from pgque._dispatch import Nack
from pgque._piece import Piece, PieceSize, Schedule

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def message(msg_id: int = 1, key: str | None = None) -> Message:
    return Message(msg_id, 9, "t", None, None, NOW, key=key)


def queries(piece: Piece, *, leaving: bool) -> list[str]:
    calls = statements.settle(piece.pending(leaving=leaving))
    return [call.query.split("pgque.")[1].split("(")[0] for call in calls]


def test_a_piece_that_is_done_is_acked() -> None:
    """Nacks and dead letters first, in the same transaction."""
    piece = Piece([message(1), message(2), message(3)])
    piece.record(0, None)
    piece.record(1, Nack(2, 60, "x"))
    piece.record(2, Nack(3, None, "y"))
    assert queries(piece, leaving=True) == ["nack", "event_dead", "ack"]


def test_a_piece_left_in_the_middle_is_acked_so_far_and_the_rest_given_back() -> None:
    """What was done is never run again."""
    piece = Piece([message(5), message(4), message(6)])  # a retried one has its old id
    piece.record(0, None)
    piece.record(1, None)
    assert piece.pending(leaving=True).ack_to == 4
    assert queries(piece, leaving=True) == ["ack_to", "release"]


def test_a_piece_not_begun_is_given_back() -> None:
    """Undelivered."""
    assert queries(Piece([message()]), leaving=True) == ["release"]


def test_nothing_is_written_twice() -> None:
    """What was settled on the way is not settled again at the end."""
    piece = Piece([message(1), message(2)])
    piece.record(0, Nack(1, 60, "x"))
    assert queries(piece, leaving=False) == ["nack", "ack_to"]
    piece.settled()
    assert queries(piece, leaving=False) == []
    piece.record(1, None)
    assert queries(piece, leaving=False) == ["ack"]
    piece.settled()
    assert queries(piece, leaving=True) == []


def test_pieces_grow_while_messages_are_small() -> None:
    """Up to a thousand, or to what the user allows."""
    size = PieceSize(2_147_483_647)
    for _ in range(20):
        size.learn(size.value, size.value * 100)
    assert size.value == 1000
    assert PieceSize(3).value == 3


def test_pieces_shrink_where_messages_are_large() -> None:
    """Down to single messages, and back again."""
    size = PieceSize(1000)
    size.learn(16, 16 * 50_000_000)
    assert size.value == 1
    size.learn(1, 10)
    assert size.value == 2


def test_what_is_done_out_of_order_is_acked_up_to_the_first_gap() -> None:
    """Nacks are written as they come; the last gap filled, all is acked."""
    piece = Piece([message(1), message(2), message(3)])
    piece.record(2, None)
    piece.record(1, Nack(2, 60, "x"))
    assert queries(piece, leaving=False) == ["nack"]
    piece.settled()
    assert queries(piece, leaving=False) == []
    piece.record(0, None)
    assert queries(piece, leaving=False) == ["ack"]


def test_a_nack_behind_a_gap_is_not_written_when_the_rest_is_given_back() -> None:
    """The message comes again anyway: it would come twice."""
    piece = Piece([message(1), message(2), message(3)])
    piece.record(0, None)
    piece.record(2, Nack(3, 60, "x"))
    assert queries(piece, leaving=True) == ["ack_to", "release"]


def taken(schedule: Schedule, *, only_gaps: bool = False) -> list[int]:
    found = []
    while (index := schedule.next(only_gaps=only_gaps)) is not None:
        found.append(index)
    return found


def test_messages_of_a_key_start_one_after_the_other() -> None:
    """What has no key starts at once; an empty key is a key."""
    keys = ["a", "a", None, "b", "a", "", ""]
    schedule = Schedule([message(key=key) for key in keys])
    assert taken(schedule) == [0, 2, 3, 5]
    schedule.done(3)
    assert taken(schedule) == []
    schedule.done(0)
    assert taken(schedule) == [1]
    schedule.done(5)
    schedule.done(1)
    assert taken(schedule) == [4, 6]


def test_after_a_stop_only_gaps_are_filled() -> None:
    """What stands before something that has started, not what stands behind it."""
    schedule = Schedule([message(key=key) for key in ["a", "a", "b", "a"]])
    assert [schedule.next(), schedule.next()] == [0, 2]
    schedule.done(0)
    assert taken(schedule, only_gaps=True) == [1]
    schedule.done(1)
    assert taken(schedule, only_gaps=True) == []


def test_pieces_keep_all_slots_busy() -> None:
    """Also with slow handlers; shared ones stay small, so that others get some."""
    alone = PieceSize(1000, slots=8)
    assert alone.value == 32
    alone.learn(32, 10)
    alone.took(32, 100.0)
    assert alone.value == 32
    shared = PieceSize(1000, shared=True)
    for _ in range(5):
        shared.learn(shared.value, 10)
        shared.took(shared.value, shared.value * 0.05)
    assert shared.value == 5
    for _ in range(20):
        shared.learn(shared.value, 10)
        shared.took(shared.value, shared.value * 1e-6)
    assert shared.value == 1000
