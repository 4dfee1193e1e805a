"""ProcessPoolExecutor of the standard library, chunksize 1: what the other pools are compared with."""

from concurrent.futures import ProcessPoolExecutor

from measure import measure, noop

if __name__ == "__main__":
    with ProcessPoolExecutor(max_workers=2) as pool:
        measure(lambda numbers: pool.map(noop, numbers), lambda number: pool.submit(noop, number).result())
