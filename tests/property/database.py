"""The database of a machine: its clock stands still, its state tables turn when asked."""

from __future__ import annotations

import datetime as dt

from tests.property.model import START
from tests.property.sessions import Session
from tests.property.steps import Script

CLOCK = """
create table public.clock (now timestamptz not null);
insert into public.clock values ('{}');
create or replace function pgque._now() returns timestamptz language sql volatile as $$
    select now from public.clock
$$;
"""

QUEUES = ("q1", "q2")
CONSUMERS = ("c1", "c2", "c3")


class Database:
    """Four sessions that the rules use, and one for the clock and what has no transaction."""

    def __init__(self, dsn: str) -> None:
        self.admin = Session(dsn, "s0")
        self.sessions = [Session(dsn, f"s{n}") for n in range(1, 5)]
        self.script = Script()
        self.examples = 0
        self.steps = 0
        self.admin.conn.execute(CLOCK.format(START.isoformat()).encode())
        self.patch("_has_grown(pgque.state_slot)", "greatest(8 * 1024 * 1024, 4 *", "least(0,")
        for consumer in CONSUMERS:
            self.admin.ask("insert into pgque.consumer (co_name) values (%s)", [consumer])

    @property
    def statements(self) -> int:
        """How many statements were run on all sessions."""
        return sum(session.statements for session in [self.admin, *self.sessions])

    def patch(self, function: str, old: str, new: str) -> None:
        """Replace a piece of an engine function; it must be there."""
        [(source,)] = self.admin.ask(
            "select pg_get_functiondef(('pgque.' || %s)::regprocedure)", [function]
        )
        assert old in source, f"{function} has no {old!r} any more: adapt the test"
        self.admin.conn.execute(source.replace(old, new).encode())

    def begin(self, script: Script) -> None:
        """New queues, and the clock at its start."""
        self.examples += 1
        self.steps += len(self.script.steps)
        self.script = script
        for session in [self.admin, *self.sessions]:
            session.script = script
        self.clear()
        self.set_clock(START)
        for queue in QUEUES:
            self.admin.run("select pgque.create_queue(%s)", [queue])
            self.admin.run(
                "select pgque.set_queue_config(%s, 'rotation_period', '1 millisecond')", [queue]
            )

    def clear(self) -> None:
        """End what is open, drop the queues."""
        for session in self.sessions:
            session.tx = None
            session.ask("rollback")
        query = "select gid from pg_prepared_xacts where database = current_database()"
        for (gid,) in self.admin.ask(query):
            self.admin.prepare("rollback prepared %s", gid)
        self.admin.ask("select pgque.drop_queue(queue_name, true) from pgque.queue")

    def set_clock(self, now: dt.datetime) -> None:
        """What the engine takes for the time from now on."""
        self.admin.ask("update public.clock set now = %s", [now])

    def close(self) -> None:
        """Close all sessions."""
        for session in [self.admin, *self.sessions]:
            session.close()
