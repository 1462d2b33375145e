"""Private TensorFlow symbols of `tfembed.estimator.tpu`, each tried."""

from __future__ import annotations

import pytest
import tensorflow as tf

from proof.paper_tpu import paper_metadata
from tfembed.estimator.private import tpu_programs


def test_a_system_is_asked_for_its_cores():
    found = tpu_programs.query_system("", None, with_topology=False)
    assert found.num_cores == 0
    assert any("CPU" in device.name for device in found.devices)


def test_a_local_master_has_no_job_and_a_remote_one_has():
    assert tpu_programs.master_job("", None) is None
    assert tpu_programs.master_job("grpc://10.0.0.2:8470", None) == "tpu_worker"


def test_a_mesh_is_assigned_to_replicas():
    mesh = tpu_programs.topology(
        [1, 2, 1, 2], [[[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0], [0, 1, 0, 1]]]
    )
    assigned = tpu_programs.device_assignment(mesh, [1, 1, 1, 2], 2)
    assert assigned.num_replicas == 2


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_mesh_tells_which_embedding_engine_its_cores_have(version):
    query = paper_metadata(1, embedding_engine=version)
    assert tpu_programs.embedding_engine(query("").topology) == version
    assert tpu_programs.embedding_engine(None) == 0


def test_a_computation_is_put_on_a_core():
    with tf.Graph().as_default() as graph, tpu_programs.inference_context():
        x = tf.compat.v1.placeholder(tf.float32, [2])
        found = tpu_programs.partitioned_call(
            lambda: tpu_programs.rewrite(lambda: [x + 1.0])
        )
    assert graph._get_control_flow_context() is None
    assert found[0].op.type == "TPUPartitionedCall"
