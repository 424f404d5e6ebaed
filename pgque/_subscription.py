"""Whose messages a consumer handles: those of a subscription, or of one member of it. No I/O."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass

from pgque import _consumer_statements as statements
from pgque._statements import Call
from pgque.messages import Message

_LONGEST_HOST = 30


@dataclass(frozen=True, slots=True)
class Subscription:
    """The consumer, and as which member of it if it is cooperative; how eagerly it looks.

    `passing`: the member leaves at the end. `dead_interval`: seconds after which a silent
    member's piece is taken over.
    """

    queue: str
    consumer: str
    poll_interval: float
    max_messages: int
    member: str | None = None
    passing: bool = False
    dead_interval: float | None = None

    def __str__(self) -> str:
        name = f"consumer {self.consumer!r} of queue {self.queue!r}"
        return name if self.member is None else f"{name}, member {self.member!r}"

    @property
    def session_name(self) -> str:
        """What the server shows as the application's name."""
        name = f"pgque {self.consumer}"
        return name if self.member is None else f"{name}.{self.member}"

    @property
    def longest_wait(self) -> float:
        """Seconds; that another member is dead is told by nobody."""
        return min(self.poll_interval, self.dead_interval or self.poll_interval)

    @property
    def lost(self) -> str:
        """What to log of a batch that turns out not to be ours any more."""
        if self.member is None:
            return "batch %s has been settled elsewhere: %s"
        return "batch %s was taken over by another member: %s"

    def receive(self, most: int) -> Call[list[Message]]:
        if self.member is None:
            return statements.receive(self.queue, self.consumer, most)
        return statements.receive_coop(
            self.queue, self.consumer, self.member, most, self.dead_interval
        )


def new_member_name() -> str:
    """Return a name that says where the member runs, and that nobody else has."""
    host = socket.gethostname().encode("ascii", "replace").decode()[:_LONGEST_HOST]
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"
