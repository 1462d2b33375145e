"""Programs of the shapes that old users have, on a CPU and on replicas."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.programs import (
    broadcast,
    columns,
    images,
    recommender,
    residual,
    running,
    transformer,
    volumes,
)
from tests.estimator.tpu import replica_model
from tfembed.estimator import tpu

v1 = tf.compat.v1
pytestmark = pytest.mark.slow
STEPS = 20


def options(program, folder, replicas):
    """What a program's estimator is made with."""
    if program is recommender:
        return {"embedding_config_spec": recommender.spec()}
    if program is broadcast:
        way = tpu.InputPipelineConfig.BROADCAST
        return {
            "tpu_config": {
                "per_host_input_for_training": way,
                "num_cores_per_replica": 1 if replicas else None,
            },
            "params": {"folder": f"{folder}/{replicas}"},
        }
    if program is volumes and replicas:
        return {"tpu_config": volumes.PARTITION}
    return {}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("TFEMBED_SIMULATED_CORES", raising=False)
    monkeypatch.delenv("TFEMBED_SIMULATED_HOSTS", raising=False)


@pytest.mark.parametrize(
    "program", [images, transformer, recommender, broadcast, volumes]
)
def test_losses_of_replicas_are_those_of_the_whole_batch(tmp_path, program):
    alone = running.losses(
        program, tmp_path / "0", 0, **options(program, tmp_path, 0)
    )
    assert alone[-1] < alone[0]

    for replicas in (1, 2, 8):
        found = running.losses(
            program,
            tmp_path / str(replicas),
            replicas,
            **options(program, tmp_path, replicas),
        )
        np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("replicas", [0, 1, 2, 8])
def test_gradients_clipped_per_replica_are_those_of_a_loop_over_towers(
    tmp_path, replicas
):
    found = running.losses(
        transformer, tmp_path, replicas, params={"clip": transformer.CLIP}
    )

    np.testing.assert_allclose(
        found,
        transformer.losses_of_towers(replicas or 1, STEPS),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("replicas", [0, 1, 2, 8])
def test_statistics_per_replica_are_those_of_a_loop_over_towers(
    tmp_path, replicas
):
    residual.FOLDERS.append(str(tmp_path / "host"))
    model = running.make(residual, tmp_path / "model", replicas)
    found = running.losses_of(model, residual)
    towers = residual.Towers(replicas or 1)
    expected = [towers.train() for _ in range(STEPS)]

    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    # Through the averages of weights, and of replica 0's statistics.
    np.testing.assert_allclose(
        model.evaluate(residual.eval_fn)["loss"], towers.evaluate(), rtol=1e-4
    )
    # The host writes in a CPU's training too; a plain Estimator had none.
    values = running.scalars(tmp_path / "host")
    assert [step for step, _ in values["epoch"]] == list(range(STEPS))
    assert [value for _, value in values["epoch"]] == [
        step / 4 for step in range(STEPS)
    ]


def test_a_program_trained_on_replicas_is_served_by_its_plain_spec(tmp_path):
    residual.FOLDERS.append(str(tmp_path / "host"))
    on_replicas, on_cpu = (
        running.make(
            residual, tmp_path / "model", replicas, export_to_tpu=False
        )
        for replicas in (2, 0)
    )
    on_replicas.train(residual.train_fn, steps=5)
    folder = on_replicas.export_saved_model(
        str(tmp_path / "export"), residual.receiver
    )
    predicted = [p["class"] for p in on_cpu.predict(residual.predict_fn)]
    signature = tf.saved_model.load(tf.compat.as_str(folder)).signatures
    served = signature["classify"](image=tf.constant(residual.IMAGES[:10]))

    assert len(predicted) == 10
    np.testing.assert_array_equal(served["class"], predicted)


def test_an_image_program_trains_evaluates_and_predicts(tmp_path):
    model = running.make(images, tmp_path, 2, iterations=10)
    model.train(images.train_fn, steps=60)

    assert model.evaluate(images.eval_fn, steps=4)["accuracy"] > 0.9
    classes = [p["class"] for p in model.predict(images.predict_fn)]
    assert len(classes) == 10
    assert np.mean(classes == images.LABELS[:10]) > 0.8


def test_a_fine_tuned_model_starts_from_a_checkpoint(tmp_path):
    first = running.make(transformer, tmp_path / "first", 0)
    first.train(transformer.train_fn, steps=5)
    params = {"init_checkpoint": first.latest_checkpoint()}
    expected = transformer.scores_of(first)

    for replicas in (0, 2):
        model = running.make(
            transformer, tmp_path / str(replicas), replicas, params=params
        )
        before = model.evaluate(transformer.eval_fn)
        model.train(transformer.train_fn, steps=1)
        again = model.evaluate(transformer.eval_fn)

        for name, value in expected.items():
            assert before[name] == pytest.approx(value, rel=1e-5)
        # The checkpoint of this training, not the first one's.
        assert again == pytest.approx(
            {
                **transformer.scores_of(model),
                "loss": again["loss"],
                "global_step": 1,
            },
            rel=1e-5,
        )


def test_rows_of_weight_zero_do_not_count(tmp_path):
    model = running.make(transformer, tmp_path, 2, iterations=2)
    model.train(transformer.train_fn, steps=20)
    expected = transformer.scores_of(model)

    for input_fn in (transformer.padded_fn, transformer.eval_fn):
        found = model.evaluate(input_fn, steps=4)
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-5)


def test_a_classifier_predicts_each_example_once(tmp_path):
    rows = []
    for replicas in (0, 2, 8):
        model = running.make(transformer, tmp_path, replicas)
        if not replicas:
            model.train(transformer.train_fn, steps=2)
        rows.append(
            [p["probabilities"] for p in model.predict(transformer.eval_fn)]
        )
    assert np.shape(rows[0]) == (transformer.REAL, 2)
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-6)
    np.testing.assert_allclose(rows[2], rows[0], atol=1e-6)


def test_tables_train_evaluate_and_predict(tmp_path):
    results = []
    for replicas in (0, 2):
        model = running.make(
            recommender,
            tmp_path / str(replicas),
            replicas,
            iterations=10,
            **options(recommender, tmp_path, replicas),
        )
        model.train(recommender.train_fn, steps=80)
        results.append(model.evaluate(recommender.eval_fn))
        assert len(list(model.predict(recommender.eval_fn))) == 50
    assert results[0]["hits"] > 0.8
    for name in ("hits", "losses"):
        np.testing.assert_allclose(
            results[0][name], results[1][name], rtol=1e-4
        )


@pytest.mark.parametrize("replicas", [0, 2])
def test_a_mesh_has_savers_and_summaries_of_its_own(tmp_path, replicas):
    broadcast.Listener.steps.clear()
    given = options(broadcast, tmp_path, replicas)
    found = running.losses(
        broadcast,
        tmp_path / "model",
        replicas,
        run_config={"save_checkpoints_secs": None},
        **given,
    )
    folder = tmp_path / str(replicas)
    written = running.scalars(folder)["cost"]
    weight, bias = replica_model.trained(STEPS, broadcast.BATCH)
    checkpoint = tf.train.load_checkpoint(str(folder))

    assert sorted(set(broadcast.Listener.steps)) == [0, 10, 20]
    np.testing.assert_allclose(
        checkpoint.get_tensor("w"), weight, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        checkpoint.get_tensor("b"), bias, rtol=1e-5, atol=1e-5
    )
    assert [step for step, _ in written] == list(range(STEPS))
    np.testing.assert_allclose([v for _, v in written], found, rtol=1e-5)


def test_columns_that_share_a_table_train_alike_on_replicas(tmp_path):
    pytest.importorskip("tf_keras", reason="the model's layers need tf_keras")
    losses = {}
    for replicas in (0, 1, 2, 8):
        columns.FOLDERS.append(str(tmp_path / f"host{replicas}"))
        losses[replicas] = running.losses(
            columns,
            tmp_path / str(replicas),
            replicas,
            embedding_config_spec=columns.spec(),
        )
    written = running.scalars(tmp_path / "host2")["loss"]

    assert losses[0][-1] < losses[0][0]
    for replicas in (1, 2, 8):
        np.testing.assert_allclose(
            losses[replicas], losses[0], rtol=1e-5, atol=1e-5
        )
    assert [step for step, _ in written] == [0, 5, 10, 15]
    np.testing.assert_allclose(
        [value for _, value in written], losses[2][::5], rtol=1e-5
    )


def test_a_segmentation_evaluates_on_replicas_of_two_cores(tmp_path):
    cut = running.make(
        volumes, tmp_path, 2, iterations=20, tpu_config=volumes.PARTITION
    )
    cut.train(volumes.train_fn, steps=40)
    alone = running.make(volumes, tmp_path, 0).evaluate(volumes.eval_fn)
    found = cut.evaluate(volumes.eval_fn)

    assert found["accuracy"] > 0.8
    assert found == pytest.approx(alone, rel=1e-5)


def test_a_replica_of_two_cores_trains_what_one_core_would(tmp_path):
    config = {
        "num_cores_per_replica": 2,
        "per_host_input_for_training": 3,
        "input_partition_dims": [{"image": [1, 2, 1, 1]}, None],
    }
    alone = running.losses(images, tmp_path / "0", 0)
    cut = running.losses(images, tmp_path / "2", 2, tpu_config=config)

    np.testing.assert_allclose(cut, alone, rtol=1e-5, atol=1e-5)


def test_a_dropout_mask_is_another_one_on_each_replica(tmp_path):
    class Dropout:
        BATCH = 16

        @staticmethod
        def model_fn(features, labels, mode, params):
            spec = replica_model.model_fn(features, labels, mode, params)
            mask = tf.nn.dropout(tf.ones([1, 64]), rate=0.5)
            return spec._replace(
                loss=spec.loss * 0 + tf.reduce_sum(mask),
                eval_metrics=(
                    lambda masks: {
                        "spread": v1.metrics.mean(
                            tf.math.reduce_variance(masks, 0)
                        )
                    },
                    [mask],
                ),
            )

    model = running.make(Dropout, tmp_path, 4)
    assert model.evaluate(replica_model.train_fn, steps=2)["spread"] > 0.1
