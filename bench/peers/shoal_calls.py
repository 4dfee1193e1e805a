"""Our own executor, through the same two calls as ProcessPoolExecutor."""

from measure import measure, noop

import shoal

if __name__ == "__main__":
    with shoal.Executor(max_workers=2) as pool:
        measure(lambda numbers: pool.map(noop, numbers), lambda number: pool.submit(noop, number).result())
