"""Servers of TensorFlow 1's clusters, in this process or in others."""

from __future__ import annotations

import socket

import tensorflow as tf

v1 = tf.compat.v1


def free_ports(count):
    """Ports of this machine that nobody listens at."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("localhost", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Servers:
    """Parameter servers and one worker, all in this process.

    Args:
      count: how many parameter servers.
    """

    def __init__(self, count):
        addresses = [f"localhost:{port}" for port in free_ports(count + 1)]
        self.cluster = tf.train.ClusterSpec(
            {"ps": addresses[:-1], "worker": addresses[-1:]}
        )
        tasks = [("ps", i) for i in range(count)] + [("worker", 0)]
        self._servers = [
            tf.distribute.Server(self.cluster, job_name=job, task_index=index)
            for job, index in tasks
        ]

    @property
    def target(self):
        """Where sessions of the worker are made."""
        return self._servers[-1].target

    def setter(self):
        """A device function that puts variables on the parameter servers."""
        return v1.train.replica_device_setter(
            worker_device="/job:worker/task:0", cluster=self.cluster
        )

    def strategy(self):
        """A strategy whose coordinator is this process, from now on.

        It is for a program of its own: ops run by default on the coordinator.
        """
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            self.cluster, rpc_layer="grpc"
        )
        return tf.distribute.ParameterServerStrategy(resolver)
