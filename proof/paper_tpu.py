"""A TPUStrategy of TPUs that are not there, to trace programs under.

The strategy asks its resolver alone what the system looks like. In graph mode
nothing is placed on a device before a session runs, so a description is enough.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.tpu import topology_pb2
from tensorflow.python.client import session
from tensorflow.python.tpu import topology, tpu_system_metadata
from tensorflow.python.tpu.ops import tpu_ops

__all__ = [
    "PaperTPUResolver",
    "eager_on_paper",
    "paper_metadata",
    "paper_strategy",
    "traced_on_paper",
]


class PaperTPUResolver(tf.distribute.cluster_resolver.ClusterResolver):
    """Describes TPU hosts.

    Args:
      hosts: how many.
      cores_per_host: TPU cores of each.
      embedding_engine: 0: it has none; 1 or 2: its version.
    """

    environment = ""
    rpc_layer = None
    task_type = "worker"
    task_id = 0
    _tpu = "paper"

    def __init__(
        self, hosts: int, cores_per_host: int = 8, *, embedding_engine: int = 0
    ) -> None:
        self._hosts, self._cores = hosts, cores_per_host
        self.tpu_hardware_feature = topology_pb2.TPUHardwareFeature(
            embedding_feature=embedding_engine
        )

    def get_tpu_system_metadata(self) -> tpu_system_metadata.TPUSystemMetadata:
        """The devices."""

        def device(host: int, kind: str, index: int) -> object:
            name = f"/job:worker/replica:0/task:{host}/device:{kind}:{index}"
            return session._DeviceAttributes(name, kind, 0, 0)

        hosts = range(self._hosts)
        devices = [device(host, "CPU", 0) for host in hosts]
        devices += [
            device(host, "TPU", core)
            for host in hosts
            for core in range(self._cores)
        ]
        return tpu_system_metadata.TPUSystemMetadata(
            self._hosts * self._cores,
            self._hosts,
            self._cores,
            None,
            tuple(devices),
        )

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """None: nothing is connected to."""
        return tf.train.ClusterSpec({})

    def get_job_name(self) -> str:
        """That of the devices."""
        return "worker"

    def get_master(self) -> str:
        """None."""
        return ""

    def master(self, *arguments: object, **options: object) -> str:
        """None."""
        del arguments, options
        return ""

    def num_accelerators(
        self, *arguments: object, **options: object
    ) -> dict[str, int]:
        """Of a host."""
        del arguments, options
        return {"TPU": self._cores}


def paper_strategy(
    hosts: int,
    cores_per_host: int = 8,
    *,
    embedding_engine: int = 0,
    cores_per_replica: int = 1,
) -> tf.distribute.TPUStrategy:
    """A TPUStrategy; call it, and all that uses it, inside of a tf.Graph."""
    resolver = PaperTPUResolver(
        hosts, cores_per_host, embedding_engine=embedding_engine
    )
    assignment = None
    if cores_per_replica > 1:
        assignment = _assignment(hosts, cores_per_host, cores_per_replica)
    return tf.distribute.TPUStrategy(
        resolver, experimental_device_assignment=assignment
    )


def _assignment(hosts: int, cores: int, per_replica: int) -> object:
    """Neighbours are a replica; the cores of all hosts lie in a row."""
    return tf.tpu.experimental.DeviceAssignment(
        tf.tpu.experimental.Topology(
            mesh_shape=[hosts * cores, 1, 1, 1],
            device_coordinates=[
                [[host * cores + core, 0, 0, 0] for core in range(cores)]
                for host in range(hosts)
            ],
        ),
        np.array([[core, 0, 0, 0] for core in range(hosts * cores)]).reshape(
            [-1, per_replica, 4]
        ),
    )


@contextlib.contextmanager
def traced_on_paper(
    hosts: int,
    cores_per_host: int = 8,
    *,
    embedding_engine: int = 0,
    cores_per_replica: int = 1,
) -> Iterator[tuple[tf.Graph, tf.distribute.TPUStrategy]]:
    """A graph and a TPUStrategy in scope, to trace a program in.

    The one thing that TensorFlow asks the hardware while it traces is whether
    its embedding engine is set up for another program: on paper it is not.
    """
    with (
        mock.patch.object(
            tpu_ops, "is_tpu_embedding_initialized", lambda: False
        ),
        tf.Graph().as_default() as graph,
    ):
        strategy = paper_strategy(
            hosts,
            cores_per_host,
            embedding_engine=embedding_engine,
            cores_per_replica=cores_per_replica,
        )
        with strategy.scope():
            yield graph, strategy


def eager_on_paper(replicas: int) -> tf.distribute.TPUStrategy:
    """A TPUStrategy whose replicas have their variables in host memory.

    In eager mode variables are made, assigned and saved as on TPUs, and functions
    that call strategy.run are traced; nothing can run them.
    """
    strategy = paper_strategy(1, replicas)
    host = "/job:localhost/replica:0/task:0/device:CPU:0"
    strategy.extended._tpu_devices = np.array([[host]] * replicas)
    strategy.extended._host_device = host
    # There is one device to pack variables of.
    strategy._enable_packed_variable_in_eager_mode = False
    return strategy


def paper_metadata(
    hosts: int, cores_per_host: int = 8, *, embedding_engine: int = 0
) -> Callable[..., tpu_system_metadata.TPUSystemMetadata]:
    """Stands in for the question that TPUEstimator asks a TPU's master.

    Args:
      hosts: how many.
      cores_per_host: a multiple of 4.
      embedding_engine: 0: it has none; 1 or 2: its version.
    """
    rows = cores_per_host // 4
    found = topology_pb2.TopologyProto(
        mesh_shape=[2, rows * hosts, 1, 2],
        num_tasks=hosts,
        num_tpu_devices_per_task=cores_per_host,
        device_coordinates=[
            place
            for host in range(hosts)
            for x in range(2)
            for y in range(rows)
            for core in range(2)
            for place in (x, rows * host + y, 0, core)
        ],
        tpu_hardware_feature=topology_pb2.TPUHardwareFeature(
            embedding_feature=embedding_engine
        ),
    )

    def device(host: int, kind: str, index: int) -> object:
        name = f"/job:tpu_worker/task:{host}/device:{kind}:{index}"
        return session._DeviceAttributes(name, kind, 0, 0)

    def query(
        master_address: str,
        cluster_def: object = None,
        query_topology: bool = False,
    ) -> tpu_system_metadata.TPUSystemMetadata:
        del master_address, cluster_def, query_topology
        return tpu_system_metadata.TPUSystemMetadata(
            num_cores=hosts * cores_per_host,
            num_hosts=hosts,
            num_of_cores_per_host=cores_per_host,
            topology=topology.Topology(serialized=found.SerializeToString()),
            devices=[
                device(host, "TPU", core)
                for host in range(hosts)
                for core in range(cores_per_host)
            ],
        )

    return query
