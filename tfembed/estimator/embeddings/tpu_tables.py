"""The tables of a TPUEstimator's step on a TPU with an embedding engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator.embeddings import engine
from tfembed.estimator.embeddings.config_spec import (
    EmbeddingConfigSpec,
    rates_at_step,
)
from tfembed.estimator.embeddings.engine import (
    EngineSystem,
    engine_proto,
    parameters_of,
    why_not_held,
)
from tfembed.estimator.embeddings.feature_ids import (
    feature_readers,
)
from tfembed.estimator.embeddings.host_tables import (
    HostTables,
    name_of_variable,
    names_by_layers,
    new_variables,
)
from tfembed.estimator.embeddings.parameters import OptimizationParameters
from tfembed.estimator.embeddings.table_config import TableConfig

__all__ = ["EngineHook", "TpuTables"]


@dataclasses.dataclass(eq=False)
class _Table:
    """A table in the engine.

    Attributes:
      name: the name of the table.
      config: the TableConfig.
      parameters: the update rule.
      variables: the rows and each slot, with a part on each host, once made.
    """

    name: str
    config: TableConfig
    parameters: OptimizationParameters
    variables: list[list[Any]] = dataclasses.field(default_factory=list)

    @property
    def rule(self) -> str:
        """The name of the update rule."""
        return type(self.parameters.rule()).__name__


class TpuTables:
    """Looks up features in a TPU's embedding engine, and trains its tables.

    An object serves one graph, in which its methods are called in the order of
    those of `HostTables`. The host of a core enqueues the ids (`look_up`,
    `enqueued`); the program of the core receives activations (`capture`) and
    sends gradients (`gradients`). A HostTables object holds the tables that
    the engine cannot hold, and the features of the tensor core.

    Variables and slots have the same names as in `HostTables`, so that both
    read the same checkpoints. They are on the TPU's hosts, which load the
    engine when a session starts and retrieve from it before a checkpoint is
    saved: see `hook`.

    Args:
      spec: the EmbeddingConfigSpec with the features and tables.
      mode: a mode key; "train" makes the slots.
      system: the places of cores and hosts.

    Raises:
      tfembed.errors.ArgumentError, tfembed.errors.DtypeError: as for
        HostTables.
    """

    def __init__(
        self, spec: EmbeddingConfigSpec, mode: str, system: EngineSystem
    ) -> None:
        self._spec = spec
        self._system = system
        self._is_training = mode == "train"
        configs, used = spec.tables_and_features(on_tpu=True)
        self.on_host: dict[str, str] = {}
        self._tables: dict[str, _Table] = {}
        for name in sorted(configs):
            parameters = parameters_of(
                configs[name], spec, is_training=self._is_training
            )
            reason = why_not_held(configs[name], parameters, len(system.hosts))
            if reason is not None or parameters is None:
                self.on_host[name] = str(reason)
            else:
                self._tables[name] = _Table(name, configs[name], parameters)
        self._readers = feature_readers(
            configs,
            used,
            is_column=spec.feature_columns is not None,
            held=self._tables,
        )
        self._host = HostTables(
            spec,
            mode,
            num_replicas=len(system.cores),
            batch_size=system.batch_size,
            elsewhere=self._tables.keys(),
        )
        self.proto, self._rate_functions = engine_proto(
            spec,
            {n: (t.config, t.parameters) for n, t in self._tables.items()},
            self._readers,
            system,
            is_training=self._is_training,
        )
        self.enqueued: list[tf.Operation] = []
        self._rates: list[tf.Tensor] = []
        self._multiplier: tf.Tensor | None = None
        self._load: list[tf.Operation] = []
        self._retrieve: list[tf.Operation] = []

    @property
    def feature_keys(self) -> list[str]:
        """The features that the engine looks up, in the order of the proto."""
        return [reader.key for reader in self._readers]

    def look_up(
        self, features: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Removes the ids from the features; looks up tables on the host.

        The op of `enqueued`, which a replica's host must run in each step,
        enqueues the ids. Lengths of sequences are added.

        Args:
          features: the features of each replica.

        Raises:
          tfembed.errors.ArgumentError: as for `HostTables.look_up`.
        """
        self._host.check_replicas(features)
        left = []
        for each, (device, core) in zip(
            features, self._system.cores, strict=True
        ):
            with tf.name_scope("tpu_embedding_enqueue"), tf.device(device):
                left.append(self._enqueue(each, core))
        return self._host.look_up(left)

    def read_rates(self) -> list[tf.Operation]:
        """Computes values of the global step, in the step.

        Returns:
          Ops that must run before those of the model_fn, which increments it.
        """
        if not self._is_training:
            return []
        self._rates, self._multiplier = rates_at_step(
            self._spec, self._rate_functions
        )
        read = [*self._rates, self._multiplier]
        return [rate.op for rate in read if rate is not None]

    def capture(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Adds the activations; in training, captures their gradients.

        Called in the step of a replica, before the model_fn.

        Args:
          features: a replica's result of `look_up`.
        """
        received = engine.receive(self.proto)
        features = dict(features)
        for reader, activation in zip(self._readers, received, strict=True):
            shape = [
                self._system.batch_size,
                *filter(None, [reader.config.max_sequence_length]),
                reader.table.dimension,
            ]
            features[reader.key] = tf.ensure_shape(activation, shape)
        if not self._is_training:
            return features
        return self._host.noted.capture(
            features, [*self._host.feature_keys, *self.feature_keys]
        )

    def gradients(self) -> list[Any]:
        """Sends the engine its gradients, in the step, after the model_fn.

        Returns:
          The gradients of tables on the host, then the op that sends.
        """
        noted = self._host.noted.of(self.feature_keys)
        scaled = [tf.cast(gradient, tf.float32) for gradient in noted]
        if self._multiplier is not None:
            scaled = [gradient * self._multiplier for gradient in scaled]
        sent = engine.send(self.proto, scaled, self._rates)
        return [*self._host.gradients(), sent]

    def make_variables(self) -> None:
        """Makes the variables of tables and slots, and the ops of `hook`.

        Called after the model_fn, whose layers name the columns' variables.

        Raises:
          tfembed.errors.StateError: (also RuntimeError) no layer of the
            model_fn used a column of the spec.
        """
        named = names_by_layers()
        for table in self._tables.values():
            name = name_of_variable(table.name, self._spec, named)
            table.variables = new_variables(
                name, table.config, table.parameters, self._system.hosts
            )
        self._host.make_variables(named)
        self._load = self._in_turn(self._load_table)
        self._retrieve = self._in_turn(self._retrieve_table)

    def update(self, gradients: Sequence[Sequence[Any]]) -> tf.Operation:
        """Trains the tables on the host; the engine has its gradients already.

        Args:
          gradients: for each replica, the result of `gradients` in its step.

        Returns:
          The op that a step must run.
        """
        of_host = [list(each[:-1]) for each in gradients]
        sent = [each[-1] for each in gradients]
        return tf.group(self._host.update(of_host), *sent)

    def hook(self) -> EngineHook:
        """Returns the hook that loads and retrieves the tables."""
        return EngineHook(
            tf.group(*self._load, name="tpu_embedding_load"),
            tf.group(*self._retrieve, name="tpu_embedding_retrieve"),
        )

    def _enqueue(
        self, features: Mapping[str, Any], core: int
    ) -> dict[str, Any]:
        left = dict(features)
        given = []
        places = {name: place for place, name in enumerate(self._tables)}
        for reader in self._readers:
            ids = reader.read(features)
            plan = reader.plan(places[reader.config.table_id])
            given.append(
                engine.engine_ids(
                    ids,
                    plan,
                    reader.table.vocabulary_size,  # type: ignore[arg-type] # it has one.
                )
            )
            reader.put_lengths(left, ids, self._system.batch_size)
            reader.take_out(left)
        self.enqueued.append(
            engine.enqueue(
                given,
                [
                    table.config.combiner or "sum"
                    for table in self._tables.values()
                ],
                core,
                is_training=self._is_training,
            )
        )
        return left

    def _in_turn(self, make: Any) -> list[tf.Operation]:
        """Makes ops for all tables and hosts; the first op runs first."""
        made: list[tf.Operation] = []
        config = self.proto.SerializeToString()
        for table in self._tables.values():
            with tf.control_dependencies(made[:1]):
                made += make(table, b"" if made else config)
        return made

    def _load_table(self, table: _Table, config: bytes) -> list[tf.Operation]:
        read = [
            [part.read_value() for part in parts] for parts in table.variables
        ]
        made: list[tf.Operation] = []
        for host, device in enumerate(self._system.hosts):
            place = self._place(table, host, b"" if made else config)
            with tf.device(device), tf.control_dependencies(made[:1]):
                values = [
                    engine.shard_of(parts, host, by_mod=self._by_mod)
                    for parts in read
                ]
                made.append(engine.load(place, table.rule, values))
        return made

    def _retrieve_table(
        self, table: _Table, config: bytes
    ) -> list[tf.Operation]:
        by_host: list[list[tf.Tensor]] = []
        for host, device in enumerate(self._system.hosts):
            place = self._place(table, host, b"" if by_host else config)
            first = [by_host[0][0].op] if by_host else []
            with tf.device(device), tf.control_dependencies(first):
                by_host.append(engine.retrieve(place, table.rule))
        made = [by_host[0][0].op]  # The first op, for `_in_turn`.
        for parts, shards in zip(
            table.variables, zip(*by_host, strict=True), strict=True
        ):
            sizes = [part.shape[0] for part in parts]
            for i, (part, device) in enumerate(
                zip(parts, self._system.hosts, strict=True)
            ):
                with tf.device(device):
                    rows = engine.part_of(shards, sizes, i, by_mod=self._by_mod)
                    rows = tf.ensure_shape(rows, part.shape)
                    made.append(part.assign(rows, read_value=False))
        return made

    def _place(
        self, table: _Table, host: int, config: bytes
    ) -> engine.EnginePlace:
        return engine.EnginePlace(
            table.name, host, len(self._system.hosts), config
        )

    @property
    def _by_mod(self) -> bool:
        return self._spec.partition_strategy == "mod"


class EngineHook(tf.compat.v1.train.SessionRunHook):
    """Loads the engine when a session starts; retrieves before each save.

    It comes after the hook that configures the engine. If checkpoints are
    saved, its `watch` comes before all other hooks.

    Args:
      load: an op that writes variables to the engine.
      retrieve: an op that reads the engine into the variables.
    """

    def __init__(self, load: tf.Operation, retrieve: tf.Operation) -> None:
        self._load = load
        self._retrieve = retrieve
        # The session that has loaded the engine; a new session has to load it.
        self._session: Any = None
        self.watch = LoopWatch()

    @property
    def listener(self) -> Any:
        """A listener that updates variables before a checkpoint is saved."""
        return _Listener(self)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Loads the initialized or restored variables into the engine."""
        del coord
        tf.compat.v1.logging.info("Loading tables into the embedding engine.")
        session.run(self._load)
        self._session = session
        self.watch.is_in_loop = False

    def retrieve(self, session: Any) -> None:
        """Reads the engine into the variables, if it has been loaded.

        Raises:
          tfembed.errors.StateError: (also RuntimeError) a loop did not finish:
            the TPU waits for input, and the tables are some steps ahead of the
            other variables.
        """
        if session is not self._session:
            return
        if self.watch.is_in_loop:
            raise errors.StateError(
                "The input ended within a loop of steps on the TPU, so no "
                "checkpoint is saved: tables in its embedding engine are ahead "
                "of the other variables. The previous checkpoint is complete. "
                "Repeat the input by Dataset.repeat(), or set train(steps=) to "
                "the number of batches."
            )
        session.run(self._retrieve)


class LoopWatch(tf.compat.v1.train.SessionRunHook):
    """Tracks whether a loop of steps has started and not finished."""

    def __init__(self) -> None:
        self.is_in_loop = False

    def before_run(self, run_context: Any) -> None:
        """Records that a loop starts."""
        del run_context
        self.is_in_loop = True

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Records that the loop has finished, before hooks that save."""
        del run_context, run_values
        self.is_in_loop = False


class _Listener(tf.compat.v1.train.CheckpointSaverListener):
    def __init__(self, hook: EngineHook) -> None:
        self._hook = hook

    def before_save(self, session: Any, global_step_value: int) -> None:
        """Retrieves the tables; called by a CheckpointSaverHook."""
        del global_step_value
        self._hook.retrieve(session)
