"""Parsl's HighThroughputExecutor with two workers on loopback."""

import parsl
from measure import measure, noop
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider

if __name__ == "__main__":
    executor = HighThroughputExecutor(
        label="bench",
        address="127.0.0.1",
        loopback_address="127.0.0.1",
        max_workers_per_node=2,
        provider=LocalProvider(init_blocks=1, max_blocks=1),
    )
    with parsl.load(Config(executors=[executor], strategy="none", usage_tracking=0, initialize_logging=False)):
        app = parsl.python_app(noop)
        measure(
            lambda numbers: [future.result() for future in [app(number) for number in numbers]],
            lambda number: app(number).result(),
        )
