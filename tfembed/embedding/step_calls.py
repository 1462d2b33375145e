"""The calls of a step: enqueue, dequeue and apply_gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.embedding.eager_calls import EagerCalls
from tfembed.embedding.engines.places import places_of
from tfembed.embedding.features import activations as shaping
from tfembed.embedding.features.output_shapes import OutputShapes
from tfembed.embedding.replica_shares import replica_shares
from tfembed.embedding.steps.recent_names import RecentNames
from tfembed.embedding.steps.step_forms import StepForms, StepName
from tfembed.embedding.tensorflow_names import TensorFlowNames
from tfembed.embedding.tpu.plumbing import check_plumbing
from tfembed.ops.private import is_recomputed

__all__ = ["StepCalls"]

# Users' functions are converted by AutoGraph; this has nothing to convert.
_not_converted = tf.autograph.experimental.do_not_convert


class StepCalls(TensorFlowNames):
    """Takes batches in, hands activations out, updates. Base of `TPUEmbedding`."""

    _eager_calls: EagerCalls
    _forms: StepForms
    _names: RecentNames
    _strict_tpu: bool

    @_not_converted
    def enqueue(
        self,
        features: Any,
        weights: Any = None,
        training: bool = True,
        name: str | None = None,
        device: str | None = None,
    ) -> None:
        """Takes a batch in.

        Inside of strategy.run: this replica's batch. Outside: distributed
        values give each replica its share; plain tensors are every replica's,
        or with `device` that one's.

        Args:
          features: integer ids, or strings where the table's key_dtype is
            tf.string, structured as feature_config: Tensors [B], [..., 1];
            SparseTensors of rank 2 or above, of which the last dimension is
            combined; RaggedTensors of rank 2. Or all of them as `pack_features`
            gives them.
          weights: None, or a structure of None and float tensors of the type
            and structure of `features`.
          training: whether apply_gradients follows; else dequeue alone, which
            is allowed with True too where there is a name.
          name: pairs the calls of one of several lookups in a step.
          device: of a replica.

        Raises:
          tfembed.errors.ArgumentError: an input or shape that is not allowed.
          tfembed.errors.DtypeError: ids that are not of their table's dtype.
          tfembed.errors.StateError: another strategy than the object's.
          ValueError, TypeError: a structure that does not match.
          tf.errors.InvalidArgumentError: when it runs: `max_enqueued`.
        """
        self._replicas.check_strategy("enqueue")
        self._check_shapes_are_known()
        if not tf.is_symbolic_tensor(training):
            training = bool(training)
        if self._strict_tpu:
            check_plumbing(features, self._replicas.strategy)
        with self._names.using(name):
            step = self._eager_calls.enqueue(
                self._enqueue, features, weights, training, name, device
            )
            if step is None:
                step = self._enqueue(features, weights, training, name, device)
            self._forms.note_enqueued(name, *step)

    def _enqueue(
        self,
        features: Any,
        weights: Any,
        training: Any,
        name: str | None,
        device: str | None,
    ) -> tuple[list[int], int]:
        """Takes a batch in, for which replicas and of which form it tells."""
        if training is False:
            self.flush()
        shares = replica_shares(
            self._plan, self._replicas, features, weights, device
        )
        shapes = self._shapes
        for share in shares:
            shapes = shapes.with_values(share.values)
        batches = [
            places.read(training, shares, shapes)
            for places in places_of(self._plan, self._choices)
        ]
        engine = self._engine_or_new(shapes)
        form = self._forms.place_of(name, engine.form_of(batches))
        engine.enqueue(self._forms.step(name, form), batches)
        self._shapes = shapes
        return list({share.replica: None for share in shares}), form

    @_not_converted
    def dequeue(self, name: str | None = None) -> Any:
        """The activations of the oldest batch that was enqueued.

        Call it inside of strategy.run, where there are several replicas.

        Returns:
          Structured as feature_config, float32 [*output_shape, dim].

        Raises:
          tfembed.errors.StateError: before build and enqueue, or outside of
            strategy.run.
          tfembed.errors.UnsupportedError: inside of tf.recompute_grad, which
            would dequeue again for the gradient.
          tf.errors.InvalidArgumentError: when it runs: no batch is there, the
            last one's gradients were not applied, or an id cannot be in its
            table; it names the feature.
        """
        if is_recomputed():
            raise errors.UnsupportedError(
                "`dequeue` is inside of tf.recompute_grad (keras.remat, "
                "keras.RematScope), which calls it again for the gradient: that "
                "would take another batch. Dequeue before, and give the "
                "activations to the function as an argument."
            )
        engine = self._built_engine("dequeue")
        replica = self._replicas.current_for("dequeue")
        with self._names.using(name):
            step = self._forms.dequeue(
                name, replica, lambda step: engine.waiting(replica, step)
            )
            try:
                for other in self._forms.left(name, replica, step):
                    engine.drop_idle(replica, other)
                activations = self._dequeue_step(engine, replica, step)
            except BaseException:
                self._forms.put_back(name, replica, step)
                raise
            self._forms.note_dequeued(name, replica, step)
            return activations

    @property
    def _replica_shapes(self) -> OutputShapes:
        """Of activations: what enqueue sees is a core's part of a replica."""
        return self._shapes.of_cores(self._replicas.cores)

    def _dequeue_step(self, engine: Any, replica: int, step: StepName) -> Any:
        """By a function, where there is one for it."""
        function = self._eager_calls.find(
            ("dequeue", step), lambda: self._dequeue(engine, replica, step)
        )
        if function is not None:
            return function()
        return self._dequeue(engine, replica, step)

    def _dequeue(self, engine: Any, replica: int, step: StepName) -> Any:
        shapes = self._replica_shapes.shapes
        return self._plan.pack(
            [
                shaping.with_shape(
                    one, shapes[i].concatenate(self._plan.dim(i))
                )
                for i, one in enumerate(engine.dequeue(replica, step))
            ]
        )

    @_not_converted
    def apply_gradients(self, gradients: Any, name: str | None = None) -> None:
        """Updates the tables for the batch that was dequeued.

        Inside of strategy.run, every replica must call it, and not inside of a
        conditional or loop of the replica's function.

        Args:
          gradients: structured as feature_config: with respect to the
            activations, in their shape. None is a gradient of 0, which still
            decays what an optimizer decays.
          name: that of this replica's dequeue.

        Raises:
          tfembed.errors.StateError: before build and enqueue, outside of
            strategy.run, or a table has no optimizer.
          tfembed.errors.ArgumentError, DtypeError: a gradient that is no tensor
            of numbers or has another shape.
          tf.errors.InvalidArgumentError: when it runs: no batch was dequeued
            for training, or a gradient that is not finite is refused.
        """
        engine = self._built_engine("apply_gradients")
        replica = self._replicas.current_for("apply_gradients")
        flat = self._plan.flatten(gradients, "gradients")
        with self._names.using(name):
            self._apply_flat(engine, flat, self._forms.apply(name, replica))

    def _apply_flat(
        self, engine: Any, flat: Sequence[Any], step: StepName
    ) -> None:
        def apply(*parts: Any) -> None:
            checked = engine.read_gradients(step, parts, self._replica_shapes)
            self._replicas.merge(
                lambda per_replica: engine.apply_gradients(
                    [name for name, *_ in per_replica],
                    [gradients for _, *gradients in per_replica],
                ),
                [step, *checked],
            )

        if not self._eager_calls.apply_gradients(apply, flat, step):
            apply(*flat)

    def _forget(self, name: str) -> bool:
        """Whether nothing is known any more of what was called `name`."""
        if self._engine is None:
            return False
        if not self._engine.forget(self._forms.steps(name)):
            return False
        self._forms.forget(name)
        return True

    def reset_steps(self) -> None:
        """Forgets the batches that are enqueued or wait for their gradients.

        Call it after a step that failed half-way. Eager only.
        """
        self._forms.clear()
        super().reset_steps()
