"""`python -m shoal.monitor [OPTION...] -- COMMAND...` measures one command, as `shoal monitor` does."""

from __future__ import annotations

import sys

__path__: list[str] = []  # lets the former names of its modules be found

if __name__ == "__main__":
    from shoal.compat.resource_monitor.run import main

    sys.exit(main(sys.argv[1:]))
