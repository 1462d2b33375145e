"""tf.train.Checkpoint of models with hash tables."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fresh_process
import tfembed.checkpoint
from saved_models import (
    DIM,
    assert_same_content,
    content,
    model_of,
    trained_model,
)
from tfembed import errors, optimizers
from tfembed.initializers import RowInitializer

ADAGRAD = optimizers.Adagrad(0.1)


def save(model, directory) -> str:
    return tf.train.Checkpoint(model=model).save(str(directory / "ckpt"))


def restore(model, path):
    return tf.train.Checkpoint(model=model).restore(path)


@pytest.mark.parametrize("shards", [(1, 1), (1, 3), (3, 1), (2, 3), (3, 3)])
@pytest.mark.parametrize("optimizer", [None, ADAGRAD])
def test_any_number_of_shards_restores_all_of_it(tmp_path, shards, optimizer):
    saved = trained_model(num_shards=shards[0], optimizer=optimizer)
    restored = trained_model(
        77, num_shards=shards[1], first_key=400, optimizer=optimizer
    )

    restore(restored, save(saved, tmp_path)).assert_consumed()

    assert_same_content(content(restored.table), content(saved.table))
    assert restored.bias.numpy() == -500.0
    values, exists = restored.table.lookup(np.arange(-500, 500))
    assert exists.numpy().all()
    np.testing.assert_array_equal(values, content(saved.table)["values"])


def test_a_table_that_is_not_in_the_checkpoint_is_no_match(tmp_path):
    path = save(trained_model(10), tmp_path)
    checkpoint = tf.train.Checkpoint(model=model_of(), other=model_of())

    status = checkpoint.restore(path)

    for fails in (
        status.assert_consumed,
        status.assert_existing_objects_matched,
    ):
        with pytest.raises(AssertionError, match="HashTable"):
            fails()
    status.expect_partial()


def test_rows_that_no_table_takes_are_not_consumed(tmp_path):
    table = trained_model(10).table
    saved = tf.train.Checkpoint(a=trained_model(10), b=table)
    path = saved.save(str(tmp_path / "ckpt"))

    status = tf.train.Checkpoint(a=model_of()).restore(path)

    status.assert_existing_objects_matched()
    with pytest.raises(AssertionError, match=r"\.b\.mark"):
        status.assert_consumed()
    status.expect_partial()


def test_content_is_replaced_and_not_merged(tmp_path):
    path = save(trained_model(10, first_key=0), tmp_path)
    model = trained_model(10, first_key=100)

    restore(model, path)

    np.testing.assert_array_equal(content(model.table)["keys"], np.arange(10))


def test_an_empty_table_is_saved_and_restored(tmp_path):
    path = save(model_of(2, optimizer=ADAGRAD), tmp_path)
    model = trained_model(num_shards=3, optimizer=ADAGRAD)

    restore(model, path).assert_consumed()

    assert int(model.table.size()) == 0


@pytest.mark.parametrize("num_shards", [2, 3])
def test_a_partitioner_deals_restored_rows(tmp_path, num_shards):
    saved = trained_model(num_shards=2, optimizer=ADAGRAD)
    restored = model_of(
        num_shards,
        optimizer=ADAGRAD,
        partitioner=lambda keys, n: (keys // 10) % n,
    )

    restore(restored, save(saved, tmp_path))

    assert_same_content(content(restored.table), content(saved.table))
    assert restored.table.lookup(np.arange(-500, 500))[1].numpy().all()


def test_a_partitioner_that_fails_leaves_the_old_content(tmp_path):
    path = save(trained_model(), tmp_path)
    model = trained_model(
        50,
        first_key=1000,
        num_shards=2,
        partitioner=lambda keys, n: tf.where(
            keys == 499, tf.constant(5, tf.int64), keys % 2
        ),
    )
    before = content(model.table)

    with pytest.raises(tf.errors.InvalidArgumentError, match="'user'"):
        restore(model, path)

    assert_same_content(content(model.table), before)


def test_a_table_without_an_optimizer_takes_over_the_saved_slots(tmp_path):
    saved = trained_model(optimizer=ADAGRAD)
    restored = model_of(2)

    restore(restored, save(saved, tmp_path))

    assert restored.table.slot_names == ("accumulators",)
    assert_same_content(content(restored.table), content(saved.table))
    restored.table.attach(optimizers.Adagrad(0.7))
    assert_same_content(content(restored.table), content(saved.table))


def test_saved_slots_of_another_rule_are_refused(tmp_path):
    path = save(trained_model(optimizer=ADAGRAD), tmp_path)
    model = trained_model(10, optimizer=optimizers.Adam(0.1))
    before = content(model.table)

    with pytest.raises(
        tf.errors.InvalidArgumentError, match="'user'.*'adagrad'.*'adam'"
    ):
        restore(model, path)

    assert_same_content(content(model.table), before)


def test_another_optimizer_after_a_restore_is_refused(tmp_path):
    path = save(trained_model(optimizer=ADAGRAD), tmp_path)
    model = model_of()
    restore(model, path)

    with pytest.raises(errors.ArgumentError, match="'user'.*adam.*adagrad"):
        model.table.attach(optimizers.Adam(0.1))


def test_rows_saved_without_slots_get_initial_ones(tmp_path):
    path = save(trained_model(20), tmp_path)
    model = trained_model(
        10, optimizer=optimizers.Adagrad(0.1, initial_accumulator_value=0.75)
    )

    restore(model, path)

    np.testing.assert_array_equal(
        content(model.table)["accumulators"], np.full([20, DIM], 0.75)
    )


def test_a_table_is_restored_when_it_is_made(tmp_path):
    saved = trained_model(optimizer=ADAGRAD)
    path = save(saved, tmp_path)
    later = tf.Module()

    status = tf.train.Checkpoint(model=later).restore(path)
    made = model_of(2, optimizer=ADAGRAD)
    later.table = made.table

    assert_same_content(content(made.table), content(saved.table))
    later.bias = made.bias
    status.assert_consumed()


def test_write_and_read_leave_out_the_save_counter(tmp_path):
    saved, restored = trained_model(), model_of()
    path = tf.train.Checkpoint(model=saved).write(str(tmp_path / "plain"))

    tf.train.Checkpoint(model=restored).read(path).assert_consumed()

    assert_same_content(content(restored.table), content(saved.table))


def test_a_checkpoint_manager_keeps_the_last_ones(tmp_path):
    model = model_of()
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model), str(tmp_path), max_to_keep=2
    )
    for i in range(4):
        model.table.upsert([i], np.full([1, DIM], i))
        manager.save()

    restored = model_of()
    restore(restored, manager.checkpoints[0])

    np.testing.assert_array_equal(content(restored.table)["keys"], [0, 1, 2])
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"checkpoint"} | {
        f"ckpt-{i}.{end}"
        for i in (3, 4)
        for end in (
            "index",
            "data-00000-of-00002",
            "data-00001-of-00002",
        )
    }


def test_many_tables_of_one_model_keep_their_own_content(tmp_path):
    def models():
        model = tf.Module()
        model.a = model_of(2, name="a").table
        model.b = [model_of(1, name="b", dim=5).table]
        return model

    saved, restored = models(), models()
    saved.a.upsert([1, 2], np.ones([2, DIM]))
    saved.b[0].upsert([3], np.ones([1, 5]))

    restore(restored, save(saved, tmp_path)).assert_consumed()

    assert_same_content(content(restored.a), content(saved.a))
    assert_same_content(content(restored.b[0]), content(saved.b[0]))


def test_tensorflow_reads_the_tensors_of_a_table(tmp_path):
    saved = trained_model(num_shards=2, optimizer=ADAGRAD)
    path = save(saved, tmp_path)

    reader = tf.train.load_checkpoint(path)

    prefix = tfembed.checkpoint.tensor_prefix("model/table")
    keys = reader.get_tensor(f"{prefix}/keys")
    order, expected = np.argsort(keys), content(saved.table)
    for name in ("values", "slots/accumulators"):
        np.testing.assert_array_equal(
            reader.get_tensor(f"{prefix}/{name}")[order],
            expected[name.split("/")[-1]],
        )
    shapes = reader.get_variable_to_shape_map()
    assert shapes[f"{prefix}/keys"] == [1000]
    assert shapes[f"{prefix}/values"] == [1000, DIM]


def test_the_seed_of_initial_rows_is_restored(tmp_path):
    uniform = {"initializer": RowInitializer("uniform", (-1.0, 1.0))}
    tf.random.set_seed(1)
    saved = model_of(**uniform)
    path = save(saved, tmp_path)
    tf.random.set_seed(2)
    restored, given = model_of(2, **uniform), model_of(seed=3, **uniform)
    before = given.table.lookup([1, 2])[0].numpy()

    restore(restored, path)
    restore(given, path)

    assert restored.table.seed == saved.table.seed
    np.testing.assert_array_equal(
        restored.table.lookup([1, 2])[0], saved.table.lookup([1, 2])[0]
    )
    np.testing.assert_array_equal(given.table.lookup([1, 2])[0], before)


def test_an_asynchronous_checkpoint_is_refused(tmp_path):
    options = tf.train.CheckpointOptions(
        experimental_enable_async_checkpoint=True
    )

    with pytest.raises(errors.StateError, match="'user'.*asynchronous"):
        tf.train.Checkpoint(model=trained_model()).save(
            str(tmp_path / "ckpt"), options
        )


def test_a_fresh_process_goes_on_from_a_checkpoint(tmp_path):
    saved = trained_model(optimizer=ADAGRAD)
    path = save(saved, tmp_path)

    fresh_process.output_of(
        """
        import sys
        import numpy as np
        import tensorflow as tf
        from saved_models import content, model_of
        from tfembed import optimizers

        model = model_of(2, optimizer=optimizers.Adagrad(0.1))
        tf.train.Checkpoint(model=model).restore(sys.argv[1]).assert_consumed()
        model.table.apply_gradients([3, 10**6], np.ones([2, 3]))
        np.savez(sys.argv[2], **content(model.table))
        """,
        path,
        tmp_path / "resumed.npz",
    )

    saved.table.apply_gradients([3, 10**6], np.ones([2, DIM]))
    with np.load(tmp_path / "resumed.npz") as resumed:
        assert_same_content(dict(resumed), content(saved.table))
