"""A model that divides its batch itself, by collectives of its own.

Its shape is that of Mesh TensorFlow and T5: each replica gets the whole batch
(BROADCAST), the context tells where replicas and hosts are, gradients are summed
without CrossShardOptimizer, a saver hook of the model's own has listeners, and
the host_call is made from the collection of summaries.

Params: "folder", where the saver saves and the host_call writes.
"""

from __future__ import annotations

import tensorflow as tf

from tests.estimator.tpu import replica_model
from tests.estimator.tpu.replica_model import train_fn  # noqa: F401 - the data
from tfembed.estimator import tpu

v1 = tf.compat.v1
BATCH, SAVE = 16, 10


class Listener(v1.train.CheckpointSaverListener):
    """Notes the steps that were saved."""

    steps: list[int] = []

    def after_save(self, session, global_step_value):
        self.steps.append(int(global_step_value))


def my_part(tensor, replicas):
    """The replica's part of a batch that all replicas have."""
    exchanged = tf.raw_ops.AllToAll(
        input=tensor,
        group_assignment=[list(range(replicas))],
        concat_dimension=0,
        split_dimension=0,
        split_count=replicas,
    )
    return exchanged[: BATCH // replicas]  # Each replica sent the same.


def saver_hook(folder):
    """A hook with a saver of its own, whose ops are outside of the replicas."""
    with tf.control_dependencies(None):
        saver = v1.train.Saver(v1.global_variables(), sharded=True)
        v1.add_to_collection(v1.GraphKeys.SAVERS, saver)
        return v1.train.CheckpointSaverHook(
            folder, save_steps=SAVE, saver=saver, listeners=[Listener()]
        )


def host_call_of_summaries(folder):
    """Writes on the host what model_fn put in the collection of summaries."""
    summaries = v1.get_collection(v1.GraphKeys.SUMMARIES)
    names = [summary.op.name for summary in summaries]
    values = [summary.op.inputs[1] for summary in summaries]
    step = v1.train.get_global_step()

    def write(step, *values):
        with (
            tf.summary.create_file_writer(folder).as_default(),
            tf.summary.record_if(True),
        ):
            for name, value in zip(names, values):
                tf.summary.scalar(name, tf.reduce_mean(value), step=step[0])
        return v1.summary.all_v2_summary_ops()

    return write, [tf.reshape(value, [1]) for value in (step, *values)]


def check(context):
    """Asks for the places of replicas, as a mesh over them does."""
    assignment = context.device_assignment
    assert assignment.num_replicas == context.num_replicas
    assert assignment.num_cores_per_replica == 1
    assert assignment.topology.mesh_shape.size in (3, 4)
    hosts = [
        context.tpu_host_placement_function(host_id=host)
        for host in range(context.num_hosts)
    ]
    assert len(set(hosts)) == context.num_hosts


def model_fn(features, labels, mode, params):
    context, folder = params["context"], params["folder"]
    replicas = context.num_replicas
    if params["use_tpu"]:
        check(context)
    x, y = my_part(features["x"], replicas), my_part(labels, replicas)
    loss = tf.reduce_mean((replica_model.linear({"x": x}) - y) ** 2)
    optimizer = v1.train.GradientDescentOptimizer(replica_model.RATE)
    pairs = [
        (v1.tpu.cross_replica_sum(gradient) / replicas, variable)
        for gradient, variable in optimizer.compute_gradients(loss)
    ]
    train_op = optimizer.apply_gradients(pairs, v1.train.get_global_step())
    loss = v1.tpu.cross_replica_sum(loss) / replicas
    v1.summary.scalar("cost", loss)
    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=train_op,
        training_hooks=[saver_hook(folder)],
        host_call=host_call_of_summaries(folder),
    )
