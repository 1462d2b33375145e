"""TFRA's public names, as of 0.8.1, are all here."""

from __future__ import annotations

import inspect
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfembed.dynamic_embedding as de
from tfembed import errors, policies

# By module under `dynamic_embedding`. Written down from TFRA's sources: what
# they list in __all__, import into these modules for users, or document.
NAMES = {
    "": """
        CuckooHashTable CuckooHashTableConfig CuckooHashTableCreator
        DEResourceVariable DistributedVariableWrapper DynamicEmbeddingOptimizer
        FileSystemSaver FrequencyRestrictPolicy GraphKeys HkvEvictStrategy
        HkvHashTable HkvHashTableConfig HkvHashTableCreator KVCreator ModelMode
        RedisTable RedisTableConfig RedisTableCreator RestrictPolicy
        TimestampRestrictPolicy TrainableWrapper Variable WarmStartHook
        create_slots data_flow embedding_lookup embedding_lookup_sparse
        embedding_lookup_unique enable_inference_mode enable_train_mode
        get_model_mode get_variable keras math patch_on_tf
        patch_on_tf_save_restore ragged_embedding_ops
        safe_embedding_lookup_sparse shadow_ops train trainable_wrapper_filter
        warm_start
    """,
    "data_flow": "dynamic_partition dynamic_stitch",
    "keras": "callbacks layers models",
    "keras.callbacks": """
        DEHvdBroadcastGlobalVariablesCallback DEHvdModelCheckpoint
        ModelCheckpoint
    """,
    "keras.layers": """
        BasicEmbedding Embedding FieldWiseEmbedding HvdAllToAllEmbedding
        LayerNormalization SquashedEmbedding embedding reduce_pooling
    """,
    "keras.models": "de_hvd_save_model de_save_model save_model",
    "keras.layers.embedding": """
        BasicEmbedding Embedding FieldWiseEmbedding HvdAllToAllEmbedding
        SquashedEmbedding reduce_pooling
    """,
    "math": "sparse_fill_empty_rows sparse_reshape sparse_segment_sum",
    "ragged_embedding_ops": """
        embedding_lookup_sparse safe_embedding_lookup_sparse
    """,
    "shadow_ops": """
        DEResourceVariable HvdVariable ShadowVariable embedding_lookup
        embedding_lookup_unique embedding_lookup_unique_base
    """,
    "train": "Checkpoint DECheckpoint DEHvdSaver",
}

MEMBERS = {
    "Variable": """
        accum bp_v2 checkpoint clear devices dim embedding_lookup export
        export_keys_and_scores get_slot_variables get_trainable_by_name
        init_size initializer key_dtype kv_creator load_from_file_system
        load_from_file_system_with_restore_function lookup name partition_fn
        remove restrict restrict_policy save_to_file_system saveable shard_num
        shared_name short_file_name size size_ops tables trainable
        trainable_store upsert value_dtype verify_embedding_weights
    """,
    "TrainableWrapper": """
        prefetch_values read_value size transform update_op
    """,
    "CuckooHashTable": """
        accum clear export insert load_from_file_system lookup remove
        save_to_file_system size
    """,
    "KVCreator": "create get_config",
    "RestrictPolicy": "apply_restriction apply_update status",
    "ModelMode": "CURRENT_SETTING INFERENCE TRAIN",
    "HkvEvictStrategy": "CUSTOMIZED EPOCHLFU EPOCHLRU LFU LRU",
    "GraphKeys": """
        DYNAMIC_EMBEDDING_VARIABLES TRAINABLE_DYNAMIC_EMBEDDING_VARIABLES
    """,
}

# The order of arguments that programs may give by position.
ARGUMENTS = {
    "Variable": """
        key_dtype value_dtype dim devices partitioner shared_name name
        initializer trainable checkpoint init_size kv_creator restrict_policy
        bp_v2 short_file_name
    """,
    "get_variable": """
        name key_dtype value_dtype dim devices partitioner shared_name
        initializer trainable checkpoint init_size kv_creator restrict_policy
        bp_v2 short_file_name
    """,
    "Variable.save_to_file_system": """
        self dirpath proc_size proc_rank file_name_list dirpath_env
        append_to_file buffer_size name
    """,
    "Variable.load_from_file_system": """
        self dirpath proc_size proc_rank file_name_list dirpath_env
        load_entire_dir buffer_size name
    """,
    "Variable.load_from_file_system_with_restore_function": """
        self dirpath proc_size proc_rank buffer_size
    """,
    "Variable.lookup": "self keys return_exists name",
    "Variable.accum": "self keys old_values new_values exists name",
    "embedding_lookup": """
        params ids partition_strategy name validate_indices max_norm
        return_trainable
    """,
    "embedding_lookup_sparse": """
        params sp_ids sp_weights partition_strategy name combiner max_norm
        return_trainable
    """,
    "safe_embedding_lookup_sparse": """
        embedding_weights sparse_ids sparse_weights combiner default_id name
        partition_strategy max_norm return_trainable
    """,
    "DynamicEmbeddingOptimizer": "opt bp_v2 synchronous",
    "create_slots": "variable init slot_name op_name bp_v2",
    "keras.layers.Embedding": """
        embedding_size key_dtype value_dtype combiner initializer devices name
        with_unique short_file_name
    """,
    "keras.models.save_model": """
        model filepath overwrite include_optimizer signatures options
        save_traces
    """,
}

# What needs Horovod, Redis, a GPU's table or a strategy.
ELSEWHERE = [
    "DistributedVariableWrapper",
    "HkvHashTable",
    "HkvHashTableConfig",
    "HkvHashTableCreator",
    "RedisTable",
    "RedisTableConfig",
    "RedisTableCreator",
    "keras.callbacks.DEHvdBroadcastGlobalVariablesCallback",
    "keras.layers.HvdAllToAllEmbedding",
    "shadow_ops.HvdVariable",
    "train.DEHvdSaver",
]


def _get(path):
    found = de
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("module", NAMES)
def test_the_names_of_a_module(module):
    found = _get(module) if module else de
    missing = [n for n in NAMES[module].split() if not hasattr(found, n)]
    assert missing == []


@pytest.mark.parametrize("owner", MEMBERS)
def test_the_members_of_a_class(owner):
    known = set(dir(_get(owner)))
    if owner == "Variable":
        known |= set(vars(de.Variable(name="members")))
    assert set(MEMBERS[owner].split()) - known == set()


@pytest.mark.parametrize("path", ARGUMENTS)
def test_the_order_of_arguments(path):
    expected = ARGUMENTS[path].split()
    parameters = inspect.signature(_get(path)).parameters
    assert list(parameters)[: len(expected)] == expected


@pytest.mark.parametrize("path", ELSEWHERE)
def test_what_one_machine_cannot_do_says_what_to_do(path):
    with pytest.raises(errors.UnsupportedError) as caught:
        _get(path)()
    text = str(caught.value)
    assert path.rpartition(".")[2] in text
    assert any(word in text for word in ("se ", "Leave", "leave", "Save"))


def test_trainable_store_has_the_lookups_that_live():
    v = de.Variable(name="store")
    _, wrapper = de.embedding_lookup(
        v, tf.constant([1], tf.int64), name="one", return_trainable=True
    )
    assert v.trainable_store == {"one": wrapper}


def test_size_ops_count_each_shard():
    v = de.Variable(name="sizes", devices=["/CPU:0"] * 2)
    v.upsert([1, 2, 3], [[1.0]] * 3)
    assert [int(size) for size in v.size_ops] == [1, 2]


def test_keys_and_scores_are_those_of_the_eviction_policy():
    v = de.Variable(
        name="scored",
        devices=["/CPU:0"] * 2,
        eviction=policies.LeastFrequent(),
    )
    for keys in ([1, 2], [2, 3], [2]):
        v.upsert(keys, [[1.0]] * len(keys))

    keys, scores = (x.numpy() for x in v.export_keys_and_scores(1024))

    assert dict(zip(keys, scores, strict=True)) == {1: 1.0, 2: 3.0, 3: 1.0}
    with pytest.raises(TypeError, match="`eviction`"):
        de.Variable(name="plain").export_keys_and_scores(1024)


def test_a_layer_s_optimizer_vars_are_the_slots_beside_its_rows():
    layer = de.keras.layers.Embedding(2, name="layer")
    assert layer.optimizer_vars == []
    optimizer = de.DynamicEmbeddingOptimizer(keras.optimizers.Adam(0.1))
    ids = tf.constant([4, 5], tf.int64)

    optimizer.minimize(
        lambda: tf.reduce_sum(layer(ids)), layer.trainable_weights
    )

    names = [slot.name for slot in layer.optimizer_vars]
    assert names == [
        f"layer-parameter/adam/{m}" for m in ("momentum", "velocity")
    ]
    np.testing.assert_allclose(
        layer.optimizer_vars[0].lookup(ids), 0.1, rtol=1e-6
    )


def test_one_process_saves_a_model_under_horovod_s_name(tmp_path):
    inputs = keras.Input((2,), dtype="int64")
    rows = de.keras.layers.SquashedEmbedding(2, name="users")(inputs)
    model = keras.Model(inputs, rows)
    model.get_layer("users").params.upsert([7], [[1.0, 2.0]])

    de.keras.models.de_hvd_save_model(model, tmp_path / "m.keras")

    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert int(loaded.get_layer("users").params.size()) == 1


def test_several_processes_of_horovod_are_refused(tmp_path, monkeypatch):
    class Horovod:
        @staticmethod
        def is_initialized():
            return True

        @staticmethod
        def size():
            return 3

    monkeypatch.setitem(sys.modules, "horovod.tensorflow", Horovod)
    with pytest.raises(errors.UnsupportedError, match="got 3 of Horovod"):
        de.keras.models.de_hvd_save_model(None, tmp_path / "m.keras")
    assert list(tmp_path.iterdir()) == []
