"""Which features and tables of an embedding are whose engine's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfembed.embedding.engines.choice import EngineChoices
from tfembed.embedding.engines.engine import TakesShares
from tfembed.embedding.engines.registry import engine_class
from tfembed.embedding.features import inputs
from tfembed.embedding.features.output_shapes import OutputShapes
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.replica_shares import ReplicaShare
from tfembed.embedding.steps.batch_queue import Batch

__all__ = ["EnginePlaces", "places_of"]


# Engines that are others under a TPUStrategy.
_ON_TPU = {"host": "tpu_host", "xla": "tpu_xla"}


@dataclasses.dataclass(frozen=True)
class EnginePlaces:
    """An engine, and the places of its features and tables in the whole.

    Attributes:
      engine: its name in the registry.
      features, tables: the places.
    """

    engine: str
    features: tuple[int, ...]
    tables: tuple[int, ...]

    @property
    def takes_shares(self) -> bool:
        """Whether the engine reads the users' tensors as they are."""
        return hasattr(engine_class(self.engine), TakesShares.METHOD)

    def pick(self, values: Sequence[Any]) -> list[Any]:
        """Of a value per feature, this engine's."""
        return [values[i] for i in self.features]

    def read(
        self,
        training: bool,
        shares: Sequence[ReplicaShare],
        shapes: OutputShapes,
    ) -> tuple[Any, ...]:
        """What the engine's enqueue takes after the name; all is checked.

        Args:
          training: whether apply_gradients follows.
          shares: the replicas' parts of a batch, of all features.
          shapes: the output shapes of all features.

        Raises:
          As `inputs.read_batch`.
        """
        own = [
            dataclasses.replace(
                share,
                values=self.pick(share.values),
                weights=self.pick(share.weights),
            )
            for share in shares
        ]
        if self.takes_shares:
            return (training, own, shapes.part(self.features))
        batches, formats = {}, []
        for share in own:
            batch = inputs.read_batch(
                share.values, share.weights, shapes.part(self.features)
            )
            batches[share.replica] = Batch(training, batch.ids)
            formats.append(batch.formats)
        return (batches, formats)


def places_of(
    plan: EmbeddingPlan, choices: EngineChoices
) -> tuple[EnginePlaces, ...]:
    """Per engine in use, what is its own."""
    found = []
    # "tpu" comes before "xla": its ops stand at the head of a TPU's step.
    for name in sorted({one.engine for one in choices.of_tables}):
        tables = tuple(
            i for i, one in enumerate(choices.of_tables) if one.engine == name
        )
        features = tuple(
            i for i, table in enumerate(plan.table_ids) if table in tables
        )
        # On a TPU's host the engine has to work from inside of the TPU's step.
        engine = _ON_TPU.get(name, name) if choices.on_tpu else name
        found.append(EnginePlaces(engine, features, tables))
    return tuple(found)
