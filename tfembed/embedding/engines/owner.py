"""The engines of an object: made once, described, emptied."""

from __future__ import annotations

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.engine_options import EngineOptions
from tfembed.embedding.engines.choice import EngineChoices
from tfembed.embedding.engines.places import places_of
from tfembed.embedding.engines.router import EngineRouter
from tfembed.embedding.features.output_shapes import OutputShapes
from tfembed.embedding.host.tables import TableSize
from tfembed.embedding.making import MAKING
from tfembed.embedding.plan import EmbeddingPlan
from tfembed.embedding.replicas import Replicas
from tfembed.embedding.steps.pipeline import warn_of_early_flush

__all__ = ["EngineOwner"]


class EngineOwner(tf.__internal__.tracking.AutoTrackable):
    """Has the engines that its tables live in. Base of `TPUEmbedding`."""

    _plan: EmbeddingPlan
    _choices: EngineChoices
    _options: EngineOptions
    _replicas: Replicas
    _shapes: OutputShapes
    _engine: EngineRouter | None = None

    def describe(self) -> str:
        """A table of text: per table its engine, and why it is that one."""
        return str(self._choices)

    def sizes(self) -> dict[str, TableSize]:
        """By table name: rows, bytes, bytes per row, skipped updates.

        Eager only.
        """
        self.flush()
        sizes = self._engine_or_new().sizes()
        names = [config.name for config in self._plan.tables]
        return dict(zip(names, sizes, strict=True))

    def exchange_rounds(self) -> dict[tuple[str, ...], int]:
        """How often replicas had to exchange ids and rows in one step, at most.

        A replica sends each other one a bounded number of distinct ids at a time,
        which is enough for one round unless many have the same owner. More rounds
        lose nothing, and take longer. Eager only.

        Returns:
          By the names of the tables that share an exchange, the most rounds of a
          lookup or update since the tables were made; 0 before the first. Empty
          where nothing is exchanged: on one device, and by other engines than
          "xla".
        """
        if self._engine is None:
            return {}
        return self._engine.exchange_rounds()

    def flush(self) -> None:
        """Applies the update that waits for the next step.

        Only with `pipeline_execution_with_tensor_core` does one. Inside of
        strategy.run, every replica must call it.
        """
        if not self._options.is_pipelined:
            return
        if (engine := self._engine) is not None:
            self._replicas.merge(lambda per_replica: engine.flush(), [])
        elif not tf.executing_eagerly():
            warn_of_early_flush()

    def reset_steps(self) -> None:
        """Forgets the batches that are enqueued or wait for their gradients.

        Call it after a step that failed half-way. Eager only.
        """
        if self._engine is not None:
            self._engine.reset()

    def _built_engine(self, call: str) -> EngineRouter:
        if self._engine is None:
            raise errors.StateError(
                f"{call} called on unbuilt TPUEmbedding object. Please either "
                "call enqueue first or manually call the build method."
            )
        return self._engine

    def _engine_or_new(
        self, shapes: OutputShapes | None = None
    ) -> EngineRouter:
        if self._engine is not None:
            return self._engine
        with MAKING:
            if self._engine is None:
                with tf.init_scope():
                    self._engine = EngineRouter(
                        self,
                        self._plan,
                        places_of(self._plan, self._choices),
                        self._options,
                        self._shapes if shapes is None else shapes,
                    )
            return self._engine

    def _retrieve_variables(self) -> None:
        """Brings the variables up to the last step."""
        self.flush()
        if self._engine is not None:
            self._engine.retrieve()

    def _bring_up_to_date(self) -> None:
        # A function that is traced reads them as they are when it runs.
        if tf.executing_eagerly():
            self._retrieve_variables()
