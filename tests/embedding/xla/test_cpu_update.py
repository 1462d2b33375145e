"""A single replica's update on the CPU: one call into the library, in place."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfembed
from embedding.marks import NEEDS_XLA
from tfembed import optimizers
from tfembed.embedding.plan import make_plan
from tfembed.ops import exchange
from tfembed.tpu.estimate import TablesStep

pytestmark = NEEDS_XLA

CALL = "TfembedUpdateRows"
ROWS, WIDTH = 50, 8


def _program(function, *arguments, stage="hlo"):
    return function.experimental_get_compiler_ir(*arguments)(stage=stage)


@pytest.mark.parametrize(
    ("rule", "portable", "is_called"),
    [
        (optimizers.Adagrad(0.1), False, True),
        (optimizers.SGD(0.1, use_gradient_accumulation=False), False, True),
        (optimizers.Adagrad(0.1), True, False),
        (optimizers.Adam(0.1, lazy_adam=False), False, False),
    ],
    ids=["touched rows", "occurrences", "portable", "all rows"],
)
def test_rows_are_updated_by_the_library_unless_portable(
    rule, portable, is_called
):
    @tf.function(jit_compile=True)
    def run(values, slots, ids, gradients):
        return exchange.update(
            values,
            slots,
            ids,
            gradients,
            0.1,
            exchange.Exchange(1, 1, portable),
            rule=rule.rule_text(),
            table_rows=[ROWS],
        ).values

    slots = [tf.ones([ROWS, WIDTH])] * len(rule.slot_names)
    program = _program(
        run, tf.zeros([ROWS, WIDTH]), slots, tf.range(4), tf.ones([4, WIDTH])
    )

    assert (CALL in program) == is_called


def test_a_step_updates_each_table_by_one_call_and_copies_none():
    tables = [tfembed.TableConfig(ROWS, WIDTH, name=f"t{i}") for i in range(3)]
    embedding = tfembed.TPUEmbedding(
        [tfembed.FeatureConfig(table) for table in tables],
        tfembed.Adagrad(0.1),
        engine="xla",
    )
    embedding.build(per_replica_batch_size=4)

    @tf.function(jit_compile=True)
    def step(features):
        embedding.enqueue(features)
        activations = embedding.dequeue()
        embedding.apply_gradients([tf.sin(x) for x in activations])
        return activations

    ids = [tf.constant([1, 2, 1, 49])] * 3
    program = _program(step, ids, stage="optimized_hlo")

    lines = program.splitlines()
    calls = [line for line in lines if f'custom_call_target="{CALL}"' in line]
    assert len(calls) == 3
    table = f"f32[{ROWS},{WIDTH}]"
    assert not [
        line
        for line in lines
        if line.split(" = ")[-1].startswith(table) and " copy(" in line
    ]


@pytest.mark.skipif(
    tf.__version__.startswith("2.16."), reason="writes no StableHLO"
)
def test_what_the_tpu_compiler_reads_has_no_call_of_ours():
    table = tfembed.TableConfig(ROWS, WIDTH, name="t")
    plan = make_plan([tfembed.FeatureConfig(table)], tfembed.Adagrad(0.1))

    assert CALL not in TablesStep(plan, 1, 4, [1]).stablehlo()
