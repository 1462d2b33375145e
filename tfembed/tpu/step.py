"""The tables' part of a training step on a TPU, as one replica runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.xla.entries import Entries, entries_of_matrix
from tfembed.embedding.xla.program import TablesProgram
from tfembed.embedding.xla.stack import StackRows, stacks_of
from tfembed.ops import FeaturePlan

__all__ = ["TablesStep", "ids_per_sample"]

_RATE = 0.01  # A step takes as long by every other.


class TablesStep:
    """Looks all features up, and updates their tables by given gradients.

    Args:
      plan: a plan of static tables with fused rules.
      replicas: how many run it.
      batch_size: the samples of a replica.
      lengths: per feature, the ids of a sample.
    """

    def __init__(
        self,
        plan: EmbeddingPlan,
        replicas: int,
        batch_size: int,
        lengths: Sequence[int],
    ) -> None:
        self._plan = plan
        self._batch = batch_size
        self._lengths = lengths
        self._program = TablesProgram(
            plan.tables, stacks_of(plan, replicas, portable=True)
        )
        self._shapes = [stack.shapes() for stack in self._program.stacks]

    def table_bytes(self) -> int:
        """Tables and slots of one replica."""
        return sum(
            4 * rows * width
            for shapes in self._shapes
            for rows, width in shapes
        )

    @property
    def state(self) -> int:
        """How many inputs come first and come back: tables and slots."""
        return sum(map(len, self._shapes))

    def stablehlo(self) -> str:
        """The step as XLA's portable text.

        Raises:
          tfembed.errors.UnsupportedError: this TensorFlow cannot write it.
        """
        function = tf.function(
            self._run, jit_compile=True, input_signature=self._specs()
        )
        lower = function.experimental_get_compiler_ir(*self._specs())
        try:
            return str(lower(stage="stablehlo"))
        except ValueError as error:
            raise errors.UnsupportedError(
                f"TensorFlow {tf.__version__} does not write programs as "
                f"StableHLO, which the TPU compiler reads. Use 2.20. ({error})"
            ) from None

    def _specs(self) -> list[tf.TensorSpec]:
        """Tables and slots; per feature ids, weights, the gradient."""
        specs = [
            tf.TensorSpec(shape) for shapes in self._shapes for shape in shapes
        ]
        for i, feature in enumerate(self._plan.features):
            shape = [self._batch, self._lengths[i]]
            specs += [tf.TensorSpec(shape, tf.int32), tf.TensorSpec(shape)]
            positions = shape[1:] if feature.max_sequence_length else []
            specs.append(
                tf.TensorSpec([self._batch, *positions, self._plan.dim(i)])
            )
        return specs

    def _run(self, *inputs: tf.Tensor) -> list[tf.Tensor]:
        """New tables and slots, then the activations."""
        state, features = list(inputs[: self.state]), inputs[self.state :]
        rows = {}
        for s, shapes in enumerate(self._shapes):
            values, *slots = state[: len(shapes)]
            rows[s] = StackRows(values, tuple(slots))
            del state[: len(shapes)]
        entries = [
            self._entries(i, *features[3 * i : 3 * i + 2])
            for i in range(len(self._plan.features))
        ]
        looked = self._program.look_up(rows, entries)
        updated = self._program.update(
            rows, entries, features[2::3], [_RATE] * len(self._plan.tables)
        )
        new: list[tf.Tensor] = []
        for s, old in rows.items():
            kept = updated.get(s, old)
            new += [kept.values, *kept.slots]
        return [*new, *looked.activations]

    def _entries(self, i: int, ids: tf.Tensor, weights: tf.Tensor) -> Entries:
        feature = self._plan.features[i]
        config = self._plan.tables[self._plan.table_ids[i]]
        length = feature.max_sequence_length
        plan = FeaturePlan(self._plan.table_ids[i], config.combiner, length)
        is_single = self._lengths[i] == 1 and not length
        return entries_of_matrix(
            ids, None if is_single else weights, plan, config.vocabulary_size
        )


def ids_per_sample(
    plan: EmbeddingPlan, given: int | Mapping[str, int]
) -> list[int]:
    """Lists each feature's ids a sample: a sequence's length, or as given."""
    return [
        feature.max_sequence_length
        or (given if isinstance(given, int) else given.get(path, 1))
        for feature, path in zip(plan.features, plan.paths, strict=True)
    ]
