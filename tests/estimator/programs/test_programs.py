"""Programs of the shapes that old users have, on a CPU and on replicas."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.programs import (
    broadcast,
    images,
    recommender,
    residual,
    running,
    transformer,
)
from tests.estimator.tpu import replica_model

v1 = tf.compat.v1
pytestmark = pytest.mark.slow

OPTIONS = {
    recommender: lambda: {"embedding_config_spec": recommender.spec()},
    broadcast: lambda: {"tpu_config": {"per_host_input_for_training": 4}},
}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("TFEMBED_SIMULATED_CORES", raising=False)
    monkeypatch.delenv("TFEMBED_SIMULATED_HOSTS", raising=False)


def options(program):
    return OPTIONS.get(program, dict)()


@pytest.mark.parametrize(
    "program", [images, transformer, recommender, broadcast]
)
def test_losses_of_replicas_are_those_of_the_whole_batch(tmp_path, program):
    alone = running.losses(program, tmp_path / "0", 0, **options(program))
    assert alone[-1] < alone[0]

    for replicas in (1, 2, 8):
        found = running.losses(
            program, tmp_path / str(replicas), replicas, **options(program)
        )
        np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("replicas", [1, 2, 8])
def test_statistics_per_replica_are_those_of_a_loop_over_towers(
    tmp_path, replicas
):
    residual.FOLDERS.append(str(tmp_path / "host"))
    found = running.losses(residual, tmp_path / "model", replicas)

    np.testing.assert_allclose(
        found, residual.losses_of_towers(replicas, 20), rtol=1e-4, atol=1e-5
    )
    assert list((tmp_path / "host").glob("events*"))


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

    class FineTuned:
        BATCH = transformer.BATCH

        @staticmethod
        def model_fn(features, labels, mode, params):
            spec = transformer.model_fn(features, labels, mode, params)

            def scaffold_fn():
                v1.train.init_from_checkpoint(
                    first.latest_checkpoint(),
                    {
                        variable.op.name: variable
                        for variable in v1.trainable_variables()
                    },
                )
                return v1.train.Scaffold()

            return spec._replace(scaffold_fn=scaffold_fn)

    second = running.make(FineTuned, tmp_path / "second", 2)
    before = first.evaluate(transformer.eval_fn)
    after = second.evaluate(transformer.eval_fn)

    assert after["accuracy"] == pytest.approx(before["accuracy"], abs=1e-6)
    assert after["mean_loss"] == pytest.approx(before["mean_loss"], rel=1e-5)


def test_tables_train_evaluate_and_predict(tmp_path):
    results = []
    for replicas in (0, 2):
        model = running.make(
            recommender,
            tmp_path / str(replicas),
            replicas,
            iterations=10,
            **options(recommender),
        )
        model.train(recommender.train_fn, steps=80)
        results.append(model.evaluate(recommender.eval_fn))
        assert len(list(model.predict(recommender.eval_fn))) == 50
    assert results[0]["hits"] > 0.8
    for name in ("hits", "losses"):
        np.testing.assert_allclose(
            results[0][name], results[1][name], rtol=1e-4
        )


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
