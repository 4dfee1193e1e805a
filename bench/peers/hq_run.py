"""HyperQueue through its Python package: server and one worker of two cores in this process, processes as tasks.

The package holds no `hq` binary, so this is the only way to run it from PyPI. The first argument names a file with
one JSON list per task: the numbers of the tasks it needs. The clock runs from before the submission to the end of one
more task that comes after all others and touches a file: the package itself looks for the end only once a second.
Tasks write no output files.
"""

import json
import os
import sys
import time

from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig


def build(needs: list[list[int]], mark: str) -> Job:
    """One task per line of the file, and the one that marks the end."""
    job = Job()
    tasks = []
    for parents in needs:
        deps = [tasks[parent] for parent in parents]
        tasks.append(job.program(["/bin/true"], stdout=None, stderr=None, deps=deps))
    job.program(["/usr/bin/touch", mark], stdout=None, stderr=None, deps=tasks)
    return job


if __name__ == "__main__":
    with open(sys.argv[1]) as lines:
        needs = [json.loads(line) for line in lines]
    mark = os.path.abspath("mark")
    with LocalCluster(worker_config=WorkerConfig(cores=2)) as cluster:
        client = cluster.client()
        client.wait_for_jobs([client.submit(build([[]], mark))])
        started = time.time()
        client.wait_for_jobs([client.submit(build(needs, mark))])
        print(json.dumps({"seconds": os.stat(mark).st_mtime - started}), flush=True)
