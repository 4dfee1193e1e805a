"""Dask distributed: two worker processes of one thread each. A third argument sets `worker-saturation`."""

import sys

import dask
from distributed import Client, LocalCluster
from measure import measure, noop

if __name__ == "__main__":
    if len(sys.argv) > 3:
        dask.config.set({"distributed.scheduler.worker-saturation": float(sys.argv[3])})
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        measure(
            lambda numbers: client.gather(client.map(noop, numbers, pure=False)),
            lambda number: client.submit(noop, number, pure=False).result(),
        )
