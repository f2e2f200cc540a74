"""
A program: a Ray cluster of several nodes on this machine, each with one CPU, until its standard
input ends.

It prints one line of JSON: the cluster's address, the processes of the head, and that of every
other node.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}

from ray import cluster_utils

SHARED_MEMORY = 80 * 2**20  # bytes a node; the least that Ray takes is 75 MiB
NODE: dict[str, Any] = {
    "num_cpus": 1,
    "object_store_memory": SHARED_MEMORY,
    "include_dashboard": False,
}

if __name__ == "__main__":
    cluster: Any = cluster_utils.Cluster(initialize_head=True, head_node_args=NODE)
    try:
        others = [cluster.add_node(**NODE) for _ in range(int(sys.argv[1]) - 1)]
        raylets = [node.all_processes["raylet"][0].process.pid for node in others]
        head = [
            each.process.pid for kind in cluster.head_node.all_processes.values() for each in kind
        ]
        print(
            json.dumps({"address": cluster.address, "head": head, "raylets": raylets}), flush=True
        )
        sys.stdin.read()
    finally:
        cluster.shutdown()
