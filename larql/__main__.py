"""``python -m larql``: the same entry as the ``larql`` command."""

from __future__ import annotations

import sys

from larql.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
