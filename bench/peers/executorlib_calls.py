"""executorlib's SingleNodeExecutor with two workers that stay alive (block allocation)."""

from executorlib import SingleNodeExecutor
from measure import measure, noop

if __name__ == "__main__":
    with SingleNodeExecutor(max_workers=2, block_allocation=True, hostname_localhost=True) as pool:
        measure(
            lambda numbers: [future.result() for future in [pool.submit(noop, number) for number in numbers]],
            lambda number: pool.submit(noop, number).result(),
        )
