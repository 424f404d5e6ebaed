"""``python -m pgque``: the ``pgque`` command."""

from __future__ import annotations

import sys

from pgque.cli import main

if __name__ == "__main__":
    sys.exit(main())
