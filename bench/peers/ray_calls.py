"""Ray on two CPUs, no dashboard, no usage statistics sent anywhere."""

import os
import shutil
import tempfile

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from measure import measure, noop

if __name__ == "__main__":
    # A short path: Ray's sockets live below it and the kernel allows them 107 characters.
    directory = tempfile.mkdtemp(prefix="ray-")
    try:
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=directory,
            log_to_driver=False,
            object_store_memory=100 * 2**20,
        )
        remote = ray.remote(noop)
        measure(
            lambda numbers: ray.get([remote.remote(number) for number in numbers]),
            lambda number: ray.get(remote.remote(number)),
        )
        ray.shutdown()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
