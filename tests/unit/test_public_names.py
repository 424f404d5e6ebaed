"""What `import pgque` offers."""

from __future__ import annotations

import subprocess
import sys

import pgque


def test_all_lists_what_is_public() -> None:
    """Neither more nor less than the names without underscore that are no modules of ours."""
    names = {
        name
        for name, value in vars(pgque).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("pgque.")
    }
    assert set(pgque.__all__) == names | {"__version__"}


def test_every_error_is_public() -> None:
    """Whoever catches an error by name finds that name in the package."""

    def below(kind: type[Exception]) -> set[str]:
        return {kind.__name__}.union(*(below(k) for k in kind.__subclasses__()))

    assert below(pgque.PgqueError) <= set(pgque.__all__)


def test_import_does_no_work() -> None:
    """No connection, no thread, no log handler, no signal handler, no warning."""
    code = (
        "import signal, threading, logging; before = signal.getsignal(signal.SIGTERM);"
        "import pgque; assert threading.active_count() == 1; "
        "assert not logging.getLogger('pgque').handlers;"
        "assert signal.getsignal(signal.SIGTERM) == before"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
