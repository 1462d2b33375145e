"""Steps whose batches go from their queue to the tables and back in one op each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tfembed.embedding.features.step_format import StepFormat, lookup_plans
from tfembed.embedding.host.learning_rates import rules_of
from tfembed.embedding.host.row_feature import RowFeature
from tfembed.embedding.host.table_update import fused_arguments
from tfembed.embedding.host.tables import HostTable
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.steps.step_queue import StepQueue
from tfembed.ops import FeaturePlan

__all__ = ["FusedStep"]


@dataclasses.dataclass(frozen=True, eq=False)
class FusedStep:
    """The steps of one name.

    Attributes:
      plan: of the embedding.
      tables: its tables.
      formats: how the features of the name's batches are read.
    """

    plan: EmbeddingPlan
    tables: Sequence[HostTable]
    formats: Sequence[StepFormat]

    @property
    def looks_up(self) -> bool:
        """Whether the op can combine all features."""
        configs, plans = self.plan.tables, self._plans
        return not any(
            RowFeature.needed(configs[plan.table], plan, one.kind)
            for plan, one in zip(plans, self.formats, strict=True)
        )

    @property
    def updates(self) -> bool:
        """Whether the op can also update all tables.

        Raises:
          tfembed.errors.StateError: a table has no optimizer.
        """
        return self.looks_up and all(
            rule.is_fused for rule in rules_of(self.plan)
        )

    def look_up(self, queue: StepQueue) -> list[tf.Tensor]:
        """Per feature the activations of the next batch, without a gradient.

        Raises:
          tf.errors.InvalidArgumentError: as `StepQueue.look_up`; when it runs.
        """
        tables = [table.parameters for table in self.tables]
        return queue.look_up(tables, self.plan.dims, self._plans)

    def update(
        self,
        queues: Sequence[StepQueue],
        gradients: Sequence[tf.Tensor],
        rates: tf.Tensor,
        nonfinite: str,
    ) -> tf.Tensor:
        """Updates the rows of the batches that were looked up last.

        Args:
          queues: of the replicas.
          gradients: per replica and feature, one behind the other.
          rates: float32, one per table.
          nonfinite: "skip", "refuse" or "allow".

        Returns:
          int64 [tables]: the rows whose summed gradient has a NaN or an infinity.

        Raises:
          tf.errors.InvalidArgumentError: as `StepQueue.update`; when it runs.
        """
        return StepQueue.update(
            queues,
            self._plans,
            gradients=gradients,
            learning_rates=rates,
            nonfinite=nonfinite,
            **fused_arguments(self.plan, self.tables, rules_of(self.plan)),
        )

    @property
    def _plans(self) -> list[FeaturePlan]:
        return lookup_plans(self.plan, self.formats)
