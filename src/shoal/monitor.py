"""`python -m shoal.monitor [OPTION...] -- COMMAND...` measures one command, as `shoal monitor` does."""

from __future__ import annotations

import sys

from shoal.compat.resource_monitor import start as launch

sys.modules["shoal.monitor.launch"] = launch

if __name__ == "__main__":
    from shoal.compat.resource_monitor.run import main

    sys.exit(main(sys.argv[1:]))
