"""The private TensorFlow symbols that `tfembed.estimator.tpu` uses.

tests/estimator/tpu/test_tpu_private.py tries each of them. Tests of other people
replace functions in these modules, so modules are named here where they do.
"""

from __future__ import annotations

from typing import Any

from tensorflow.python.tpu import device_assignment as assignments
from tensorflow.python.tpu import topology as topologies
from tensorflow.python.tpu import tpu_system_metadata


def query_system(master: str, cluster_def: Any, *, with_topology: bool) -> Any:
    """The cores, hosts and devices that TensorFlow finds behind a master."""
    return tpu_system_metadata._query_tpu_system_metadata(
        master, cluster_def=cluster_def, query_topology=with_topology
    )


def master_job(master: str, cluster_def: Any) -> str | None:
    """The job of the TPU's hosts; None in this process."""
    job: str | None = tpu_system_metadata.master_job(master, cluster_def)
    return job


def topology(mesh_shape: Any, device_coordinates: Any) -> Any:
    """A mesh of cores."""
    return topologies.Topology(
        mesh_shape=mesh_shape, device_coordinates=device_coordinates
    )


def device_assignment(
    of: Any, computation_shape: Any, num_replicas: int
) -> Any:
    """Which cores of a mesh each replica has."""
    return assignments.device_assignment(
        of, computation_shape=computation_shape, num_replicas=num_replicas
    )
