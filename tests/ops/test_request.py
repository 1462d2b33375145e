"""Requests for rows that others own, against grouped lookups and updates.

Everything that an owner and a worker do of one another's is here in one
process: each owner has tables of its own, with the rows that it owns. The bytes
of damaged messages are tried in cc/core/step/packed_request_test.cc.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.ops import batches
from tfembed.ops import FeaturePlan, grouped_lookup, grouped_update, request
from tfembed.ops import table as table_ops

Refused = tf.errors.InvalidArgumentError
RULE = "adagrad initial_accumulator_value=0.5"
SLOT = {"owner": "adagrad", "names": ["accumulators"], "initial_values": [0.5]}
# Table 0 has a shard on owner 1 and two on owner 0, table 1 one on each of two.
OWNERS = ((1, 0, 0), (0, 1))


def owned(static=False, owners=OWNERS, **options):
    return request.OwnedTables(
        **{
            "names": ("a", "b"),
            "dims": batches.DIMS,
            "owners": owners,
            "num_owners": 2,
            "num_rows": (batches.VOCABULARY if static else -1,) * 2,
            "repeats": (False, False),
            **options,
        }
    )


class Cluster:
    """Two owners, with the rows of `batches` dealt to them."""

    def __init__(self, static, tables, keys=None):
        self.tables, self.static = tables, static
        self.shards, self.slots = {}, {}
        for t, of_table in enumerate(tables.owners):
            for s in range(len(of_table)):
                mine = np.arange(s, batches.VOCABULARY, len(of_table))
                rows = batches.rows(t)[mine]
                if static:
                    self.shards[t, s] = tf.Variable(rows)
                    self.slots[t, s] = tf.Variable(tf.fill(rows.shape, 0.5))
                    continue
                handle = table_ops.create(
                    batches.DIMS[t],
                    name=f"t{t}",
                    key_dtype=tf.int64 if keys is None else keys.dtype,
                )
                of_shard = tf.constant(mine, tf.int64)
                if keys is not None:
                    of_shard = tf.gather(keys, mine)
                table_ops.upsert(handle, of_shard, rows)
                table_ops.set_slots(handle, **SLOT)
                self.shards[t, s] = handle

    def of_owner(self, o):
        here = self.tables.shards_of(o)
        dims = [batches.DIMS[t] for t, _ in here]
        slots = [self.slots[one] for one in here if self.static]
        return [self.shards[one] for one in here], slots, dims

    def serve(self, messages):
        return [
            request.serve_rows(*self.of_owner(o)[::2], [messages[o]])[0]
            for o in range(2)
        ]

    def train_at(self, o, messages, sums, rule=RULE):
        """Owner o trains by the messages of workers."""
        handles, slots, dims = self.of_owner(o)
        return request.train_rows(
            handles,
            slots,
            dims,
            messages,
            sums,
            rules=[rule] * len(handles),
            learning_rates=[0.1] * len(handles),
        )

    def train(self, asked, sums, rule=RULE):
        """Both owners train by the messages of one worker."""
        return [
            tf.reduce_sum(self.train_at(o, [m], [s], rule))
            for o, (m, s) in enumerate(zip(asked.messages, sums, strict=True))
        ]

    def rows(self, t):
        found = np.zeros([batches.VOCABULARY, batches.DIMS[t]], np.float32)
        count = len(self.tables.owners[t])
        for s in range(count):
            keys = np.arange(s, batches.VOCABULARY, count)
            shard = self.shards[t, s]
            found[keys] = (
                shard.numpy()
                if self.static
                else table_ops.lookup(
                    shard, tf.constant(keys, tf.int64), dim=batches.DIMS[t]
                )[0].numpy()
            )
        return found


def ask(tables, features, **options):
    return request.request_rows(
        [batches.tensors(f) for f in features],
        [batches.plan(f) for f in features],
        tables,
        **options,
    )


def alone(static):
    """The same tables in one place."""
    tables = batches.make_tables(static)
    if static:
        return tables, [tf.Variable(tf.fill(t.shape, 0.5)) for t in tables]
    for handle in tables:
        table_ops.set_slots(handle, **SLOT)
    return tables, []


@pytest.mark.parametrize("run", [lambda f: f, tf.function])
@pytest.mark.parametrize("static", [True, False])
def test_a_step_over_owners_is_that_of_grouped_ops(static, run):
    features = batches.features()
    gradients = [tf.constant(g) for g in batches.gradients_of(features)]
    args = (
        batches.DIMS,
        [batches.tensors(f) for f in features],
        [batches.plan(f) for f in features],
    )
    tables, slots = alone(static)
    cluster = Cluster(static, owned(static))

    def step():
        asked = ask(cluster.tables, features)
        found = request.combine_rows(asked, cluster.serve(asked.messages))
        sums = request.sum_row_gradients(asked, gradients)
        return found, cluster.train(asked, sums)

    expected = grouped_lookup(tables, *args)
    found, counts = run(step)()
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [int(c) for c in counts] == [0, 0]
    rules = {"rules": [RULE] * 2, "learning_rates": [0.1] * 2}
    grouped_update(tables, slots, *args, gradients, **rules)
    for t in range(2):
        np.testing.assert_array_equal(
            cluster.rows(t), batches.read_rows(tables[t], t)
        )


@pytest.mark.parametrize("wire_dtype", [tf.bfloat16, tf.float16])
def test_rows_and_gradients_travel_in_half_the_bytes(wire_dtype):
    features = batches.features()
    gradients = batches.gradients_of(features)
    cluster = Cluster(False, owned())
    asked = ask(cluster.tables, features, wire_dtype=wire_dtype)
    answers = cluster.serve(asked.messages)
    whole = ask(cluster.tables, features)
    sums = request.sum_row_gradients(asked, gradients)
    for narrow, more, wide in zip(
        answers, sums, cluster.serve(whole.messages), strict=True
    ):
        assert 2 * (narrow.shape[0] - 64) == wide.shape[0] - 64
        assert more.shape == narrow.shape
    rounded = request.combine_rows(asked, answers)
    exact = request.combine_rows(whole, cluster.serve(whole.messages))
    for a, b in zip(rounded, exact, strict=True):
        np.testing.assert_allclose(a, b, atol=0.05)
    cluster.train(asked, sums)
    other = Cluster(False, owned())
    sums = request.sum_row_gradients(whole, gradients)
    other.train(whole, sums)
    for t in range(2):
        np.testing.assert_allclose(cluster.rows(t), other.rows(t), atol=0.02)


def test_rows_of_several_workers_are_updated_once_by_their_sum():
    feature = [batches.feature("dense", [[2], [1], [2]], table=0)]
    feature.append(batches.feature("dense", [[5]], table=1))
    gradients = batches.gradients_of(feature)
    cluster, both = Cluster(False, owned()), Cluster(False, owned())
    asked = ask(cluster.tables, feature)
    sums = request.sum_row_gradients(asked, gradients)
    for o in range(2):
        cluster.train_at(o, [asked.messages[o]] * 2, [sums[o]] * 2)
    twice = request.sum_row_gradients(asked, [2 * g for g in gradients])
    both.train(asked, twice)
    for t in range(2):
        np.testing.assert_allclose(cluster.rows(t), both.rows(t), rtol=1e-6)
    # All workers are served by one call.
    answers = request.serve_rows(
        *cluster.of_owner(0)[::2], [asked.messages[0]] * 2
    )
    np.testing.assert_array_equal(answers[0], answers[1])


def test_strings_go_where_they_are_said_to_be():
    names = tf.constant([f"name {i}" for i in range(batches.VOCABULARY)])
    tables = owned(owners=((0, 1), (1,)))
    cluster = Cluster(False, tables, names)
    ids = tf.constant([4, 1, 4, 7])
    features = [
        dataclasses.replace(
            batches.tensors(batches.feature("dense", [[0]] * 4, table=t)),
            ids=tf.gather(names, ids),
        )
        for t in range(2)
    ]
    plans = [FeaturePlan(0, "sum"), FeaturePlan(1, "sum")]
    shards = [ids % 2, None]
    asked = request.request_rows(features, plans, tables, shards=shards)
    found = request.combine_rows(asked, cluster.serve(asked.messages))
    for t in range(2):
        np.testing.assert_array_equal(found[t], batches.rows(t)[ids])
    with pytest.raises(Refused, match="a shard for each of the 4 ids; got 0"):
        request.request_rows(features, plans, tables)
    with pytest.raises(Refused, match=r"shard 4 is not in \[0, 2\)"):
        request.request_rows(features, plans, tables, shards=[ids, None])


def test_an_occurrence_is_a_row_of_its_own_where_rules_do_not_sum():
    feature = [
        batches.feature("dense", [[2], [1], [2]], table=0),
        batches.feature(  # The weight of 0 prunes one occurrence of id 2.
            "sparse", [[2, 2, 5]], [[1.0, 0.0, 2.0]], table=1, combiner="mean"
        ),
    ]
    gradients = batches.gradients_of(feature)
    rule = "adagrad initial_accumulator_value=0.5 accumulate=0"
    tables, slots = alone(False)
    args = (
        batches.DIMS,
        [batches.tensors(f) for f in feature],
        [batches.plan(f) for f in feature],
    )
    rules = {"rules": [rule] * 2, "learning_rates": [0.1] * 2}
    grouped_update(tables, slots, *args, gradients, **rules)
    cluster = Cluster(False, owned(repeats=(True, True)))
    asked = ask(cluster.tables, feature)
    assert asked.features[1].ids.numpy().tolist().count(-1) == 1
    found = request.combine_rows(asked, cluster.serve(asked.messages))
    np.testing.assert_array_equal(found[0], batches.rows(0)[[2, 1, 2]])
    sums = request.sum_row_gradients(asked, gradients)
    cluster.train(asked, sums, rule)
    for t in range(2):
        np.testing.assert_allclose(
            cluster.rows(t), batches.read_rows(tables[t], t), rtol=1e-6
        )


def test_a_sum_that_is_not_finite_is_refused_before_it_is_sent():
    feature = [
        batches.feature("dense", [[2], [7]], table=0),
        batches.feature("dense", [[1]], table=1),
    ]
    gradients = batches.gradients_of(feature)
    gradients[0][1, 2] = np.inf
    for static in (True, False):
        cluster = Cluster(static, owned(static))
        asked = ask(cluster.tables, feature)
        with pytest.raises(Refused, match="id 7 of table 'a' has a NaN"):
            request.sum_row_gradients(asked, gradients, nonfinite="refuse")
        sums = request.sum_row_gradients(asked, gradients)
        assert sum(map(int, cluster.train(asked, sums))) == 1
    # A sum that the wire cannot have is none either.
    gradients[0][1, 2] = 1e6
    asked = ask(cluster.tables, feature, wire_dtype=tf.float16)
    with pytest.raises(Refused, match="id 7 of table 'a' has a NaN"):
        request.sum_row_gradients(asked, gradients, nonfinite="refuse")


def test_the_error_of_a_named_worker_reaches_every_owner():
    feature = [
        batches.feature("dense", [[2], [99]], table=0),
        batches.feature("dense", [[1]], table=1),
    ]
    cluster = Cluster(True, owned(True))
    with pytest.raises(Refused, match=r"feature 0: id 99 is not in \[0, 12\)"):
        ask(cluster.tables, feature)
    asked = ask(cluster.tables, feature, sender="worker 3")
    good = ask(cluster.tables, feature[1:] + feature[1:])
    for o in range(2):
        tables = cluster.of_owner(o)[::2]
        with pytest.raises(Refused, match="worker 3: In feature 0: id 99 is"):
            request.serve_rows(*tables, [good.messages[o], asked.messages[o]])
    feature[0] = batches.feature("dense", [[2], [9]], table=0)
    asked = ask(cluster.tables, feature, sender="worker 3")
    gradients = batches.gradients_of(feature)
    gradients[1][0, 0] = np.nan
    sums = request.sum_row_gradients(
        asked, gradients, nonfinite="refuse", sender="worker 3"
    )
    for o in range(2):
        with pytest.raises(
            Refused, match="worker 3: The summed gradient of id"
        ):
            cluster.train_at(o, [asked.messages[o]], [sums[o]])
    for t in range(2):
        np.testing.assert_array_equal(cluster.rows(t), batches.rows(t))


def test_a_request_of_other_tables_is_refused():
    feature = [
        batches.feature("dense", [[2]], table=0),
        batches.feature("dense", [[1]], table=1),
    ]
    cluster = Cluster(False, owned())
    asked = ask(cluster.tables, feature)
    other = ask(owned(owners=((0,), (1,))), feature)
    handles, _, dims = cluster.of_owner(0)
    with pytest.raises(Refused, match="for 1 tables; this owner has 3"):
        request.serve_rows(handles, dims, [other.messages[0]])
    with pytest.raises(Refused, match="for rows of 3 numbers of table 0"):
        request.serve_rows(handles, [9, *dims[1:]], [asked.messages[0]])
    with pytest.raises(
        Refused, match="should be a request for rows is damaged"
    ):
        request.serve_rows(handles, dims, [asked.messages[0][:70]])
    answers = cluster.serve(asked.messages)
    with pytest.raises(Refused, match="should be rows is damaged"):
        request.combine_rows(asked, answers[::-1])
    with pytest.raises(Refused, match="should be rows is damaged"):
        request.combine_rows(asked, asked.messages)


def test_half_of_the_batch_may_have_no_ids():
    features = [
        batches.feature("ragged", [[], []], table=0, combiner="mean"),
        batches.feature("dense", [[0]], table=1),
    ]
    cluster = Cluster(False, owned())
    asked = ask(cluster.tables, features)
    found = request.combine_rows(asked, cluster.serve(asked.messages))
    np.testing.assert_array_equal(found[0], np.zeros([2, batches.DIMS[0]]))
    sums = request.sum_row_gradients(asked, batches.gradients_of(features))
    cluster.train(asked, sums)
    np.testing.assert_array_equal(cluster.rows(0), batches.rows(0))
    assert np.any(cluster.rows(1)[0] != batches.rows(1)[0])
