"""Arguments that users compute: sizes as floats and arrays, devices as texts.

Whole numbers pass whatever their type, and nonsense is refused, by every
constructor: of variables, tables, layers, policies, optimizers, configs.
TableConfig's dim and vocabulary_size take ints alone, as TensorFlow's.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed import dynamic_embedding as de
from tfembed import errors, initializers, policies, tables

WHOLE = [4.0, np.float32(4), np.int64(4), np.array(4), np.array(4.0)]
WHOLE += [tf.constant(4), tf.constant(4.0)]
BROKEN = [4.5, np.float32(4.5), True, np.bool_(True), np.array(True), "4"]
BROKEN += [float("nan"), float("inf"), [4], np.array([4])]


def _layer(**arguments):
    return de.keras.layers.Embedding(name="layer", **arguments)


def _fields(**arguments):
    return de.keras.layers.FieldWiseEmbedding(
        2, slot_map_fn=lambda ids: ids, name="fields", **arguments
    )


LRU = policies.LeastRecent()
# What takes a number, and what it has made of it.
SIZES = {
    "dim": (lambda n: de.Variable(dim=n), lambda v: v.dim),
    "init_size": (lambda n: de.Variable(init_size=n), lambda v: v.init_size),
    "max_size": (
        lambda n: de.Variable(max_size=n, eviction=LRU),
        lambda v: v.table.shards[0].options.max_size,
    ),
    "get_variable": (
        lambda n: de.get_variable("computed", init_size=n),
        lambda v: v.init_size,
    ),
    "HashTable": (
        lambda n: tables.HashTable(n, name="t"),
        lambda t: t.dim,
    ),
    "HashTable init_size": (
        lambda n: tables.HashTable(2, name="t", init_size=n),
        lambda t: t.shards[0].options.init_size,
    ),
    "seed": (lambda n: tables.HashTable(2, name="t", seed=n), lambda t: t.seed),
    "embedding_size": (
        lambda n: _layer(embedding_size=n),
        lambda layer: layer.embedding_size,
    ),
    "init_capacity": (
        lambda n: _layer(embedding_size=2, init_capacity=n),
        lambda layer: layer.get_config()["init_capacity"],
    ),
    "layer's max_size": (
        lambda n: _layer(embedding_size=2, max_size=n, eviction=LRU),
        lambda layer: layer.get_config()["max_size"],
    ),
    "nslots": (lambda n: _fields(nslots=n), lambda layer: layer.nslots),
    "CountAdmission": (policies.CountAdmission, lambda p: p.seen),
    "BloomAdmission": (
        lambda n: policies.BloomAdmission(n, capacity=n),
        lambda p: p.capacity,
    ),
    "TableConfig max_size": (
        lambda n: tfembed.TableConfig(
            None, 2, name="t", max_size=n, eviction=LRU
        ),
        lambda config: config.max_size,
    ),
    "TableConfig seed": (
        lambda n: tfembed.TableConfig(None, 2, name="t", seed=n),
        lambda config: config.seed,
    ),
    "num_buckets": (
        lambda n: tfembed.QuantizationConfig(n, 0.0, 1.0),
        lambda config: config.num_buckets,
    ),
}


@pytest.mark.parametrize("size", SIZES)
def test_a_size_is_any_whole_number(size):
    make, found = SIZES[size]
    for whole in WHOLE:
        made = found(make(whole))
        assert made == 4
        assert type(made) is int
        de.variables.variable_store._variables.pop("computed", None)


@pytest.mark.parametrize("size", SIZES)
def test_no_size_is_a_fraction_or_a_boolean_or_a_list(size):
    for broken in BROKEN:
        with pytest.raises(errors.ArgumentError, match="got|is "):
            SIZES[size][0](broken)


NUMBERS = {
    "max_norm": lambda x: _layer(embedding_size=2, max_norm=x).max_norm,
    "limit": lambda x: policies.Expiry(x, every=1).limit,
    "value": lambda x: policies.CountAdmission(2, value=x).value,
    "learning_rate": lambda x: tfembed.SGD(x).learning_rate,
    "accumulator": lambda x: (
        tfembed.Adagrad(initial_accumulator_value=x).initial_accumulator_value
    ),
    "clipvalue": lambda x: tfembed.SGD(clipvalue=x).clipvalue[1],
    "a limit of clipvalue": lambda x: tfembed.SGD(
        clipvalue=(None, x)
    ).clipvalue[1],
    "weight_decay_factor": lambda x: (
        tfembed.SGD(weight_decay_factor=x).weight_decay_factor
    ),
    "upper": lambda x: tfembed.QuantizationConfig(8, 0.0, x).upper,
}


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_is_any_scalar(number):
    for given in [0.5, np.float32(0.5), np.array(0.5), tf.constant(0.5)]:
        found = NUMBERS[number](given)
        assert found == 0.5
        assert type(found) is float


@pytest.mark.parametrize("number", NUMBERS)
def test_no_number_is_a_boolean_or_a_text(number):
    for broken in [True, np.bool_(True), np.array(True), "0.5", [0.5]]:
        with pytest.raises(errors.ArgumentError, match="got"):
            NUMBERS[number](broken)


def test_the_seed_of_an_initializer_may_be_numpys():
    seeded = initializers.row_initializer(
        tf.compat.v1.random_normal_initializer(seed=np.int64(7)), 2
    )
    assert seeded.seed == 7


def test_a_layer_with_a_computed_capacity_is_saved_as_json():
    layer = _layer(
        embedding_size=2, init_capacity=2.0 * 8, max_norm=np.array(1)
    )
    again = type(layer).from_config(layer.get_config())
    assert again.params.init_size == 16
    assert again.max_norm == 1


def _cuckoo(devices):
    return de.CuckooHashTable(
        tf.int64, tf.float32, [0.0, 0.0], device=devices[0]
    )


HOLDERS = {
    "Variable": lambda devices: de.Variable(devices=devices),
    "strings": lambda devices: de.Variable(
        value_dtype=tf.string, devices=devices
    ),
    "get_variable": lambda devices: de.get_variable("placed", devices=devices),
    "HashTable": lambda devices: tables.HashTable(2, name="t", devices=devices),
    "layer": lambda devices: _layer(embedding_size=2, devices=devices),
    "fields": lambda devices: _fields(nslots=2, devices=devices),
}
NO_DEVICES = [[""], ["/CPU:0", ""], [None], ["nonsense"], [b"/CPU:0"], [3]]
NO_DEVICES += [[" "], [["/CPU:0"]], [], ["/CPU:99"], ["/job:nobody/CPU:0"]]


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("devices", NO_DEVICES, ids=repr)
def test_devices_name_a_cpu_that_is_there(holder, devices):
    with pytest.raises(errors.ArgumentError, match="`devices` must"):
        HOLDERS[holder](devices)


@pytest.mark.parametrize("devices", ["", " ", {"/CPU:0"}, {"/CPU:0": 1}, 3])
def test_a_device_alone_is_a_text_that_names_one(devices):
    with pytest.raises((errors.ArgumentError, errors.DtypeError)):
        de.Variable(devices=devices)


@pytest.mark.parametrize("device", [["/CPU:0"], (), " ", 3, "CPU:99"])
def test_the_device_of_a_cuckoo_table_is_a_cpu(device):
    with pytest.raises(errors.ArgumentError, match="`devices` must"):
        de.CuckooHashTable(tf.int64, tf.float32, [0.0], device=device)


@pytest.mark.parametrize(
    "devices",
    [
        "CPU:0",
        "/cpu:0",
        "cpu",
        "/device:CPU:0",
        np.array(["/CPU:0"]),
        None,
        "/job:localhost/replica:0/task:0/device:CPU:0",
        ("/CPU:0", "CPU:0"),
    ],
)
def test_a_cpu_may_be_named_in_any_of_tensorflows_ways(devices):
    variable = de.Variable(devices=devices, dim=2)
    variable.upsert([1], [[1.0, 2.0]])
    assert variable.lookup([1]).numpy().tolist() == [[1.0, 2.0]]


def test_a_graph_may_be_for_machines_that_are_not_here():
    with tf.Graph().as_default():
        variable = de.Variable(devices=["/job:ps/task:1/CPU:0"])
        assert "/job:ps" in variable.handle.device
        with pytest.raises(errors.ArgumentError, match="`devices` must"):
            de.Variable(devices=[""], name="nowhere")
