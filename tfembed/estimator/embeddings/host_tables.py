"""The tables of a TPUEstimator's step, in host memory, for all replicas."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors, ops, optimizers
from tfembed.cluster.owners import owners
from tfembed.dynamic_embedding.tensorflow1.graph_saver import add_to_savers
from tfembed.embedding.host.tables import hash_table_of
from tfembed.embedding.steps.batch_queue import HOST
from tfembed.estimator.embeddings import private
from tfembed.estimator.embeddings.activation_gradients import (
    DUMMY_VARIABLE,
    ActivationGradients,
)
from tfembed.estimator.embeddings.config_spec import (
    EmbeddingConfigSpec,
    rates_at_step,
)
from tfembed.estimator.embeddings.feature_columns import table_of_variable
from tfembed.estimator.embeddings.feature_ids import (
    FeatureReader,
    Share,
    dealt,
    feature_readers,
    id_checks,
    share_of_core,
)
from tfembed.estimator.embeddings.parameters import OptimizationParameters
from tfembed.estimator.embeddings.table_config import TableConfig
from tfembed.estimator.runs.warm_start import TABLES
from tfembed.ops.private import in_order
from tfembed.tables import HashTable
from tfembed.tables.partition import shard_of

__all__ = ["HostTables", "name_of_variable", "names_by_layers", "new_variables"]

# A table with a vocabulary is split so that each parameter server gets at
# least this many bytes, like feature columns in TensorFlow's own estimators.
LEAST_BYTES = 64 << 20


@dataclasses.dataclass(eq=False)
class _Shard:
    """The rows of a table on one device.

    Attributes:
      device: the device.
      handle: the resource there; for a table with a vocabulary a placeholder
        until `make_variables` connects the variable.
      first_row: the number of the first row of a table with a vocabulary.
      variables: the rows and the slots, after `make_variables`.
    """

    device: str
    handle: tf.Tensor
    first_row: int = 0
    variables: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(eq=False)
class _Table:
    """A table of one graph.

    Attributes:
      name: the table's key in errors, and in checkpoints unless a column names
        it.
      config: the TableConfig.
      parameters: the update rule; None if the table is not trained.
      shards: the shard or, on several devices, the shards.
      hash_table: the HashTable of a table without a vocabulary.
    """

    name: str
    config: TableConfig
    parameters: OptimizationParameters | None
    shards: list[_Shard]
    hash_table: HashTable | None = None

    @property
    def rule(self) -> optimizers.Optimizer:
        """The update rule, for summed gradients.

        Raises:
          tfembed.errors.StateError: the table has none.
        """
        if self.parameters is None:
            raise errors.StateError(
                f"Table '{self.name}' cannot be trained: the "
                "EmbeddingConfigSpec has no `optimization_parameters`. Give it "
                "some, such as AdagradParameters(0.1)."
            )
        rule: Any = self.parameters.rule()
        return dataclasses.replace(rule, use_gradient_accumulation=True)

    @property
    def fixed_rate(self) -> Any:
        """The learning rate, unless a function gives it."""
        rate = self.config.learning_rate
        return self.rule.learning_rate if rate is None else rate

    def sums_all(self, num_replicas: int) -> bool:
        """Whether gradients of all replicas are summed before the update."""
        given: Any = self.parameters
        return num_replicas == 1 or given.use_gradient_accumulation

    def deal(self, ids: ops.FeatureIds, plan: ops.FeaturePlan) -> list[Share]:
        """Partitions the ids of a feature by shard."""
        num_shards = len(self.shards)
        if num_shards == 1:
            return [(ids, plan)]
        if self.hash_table is not None:
            homes = shard_of(ids.ids, num_shards, None, self.name)
            return dealt(ids, plan, homes, num_shards, has_vocabulary=False)
        # As a table with one shard.
        checks = id_checks(
            ids.ids,
            plan.name,
            self.config.vocabulary_size,  # type: ignore[arg-type] # it has one.
            are_padded=ids.kind == "sparse",
        )
        with tf.control_dependencies(checks):
            ids = dataclasses.replace(ids, ids=tf.identity(ids.ids))
        first_rows = [shard.first_row for shard in self.shards]
        homes = tf.searchsorted(
            tf.constant(first_rows, tf.int64), ids.ids, side="right"
        )
        shares = dealt(ids, plan, homes - 1, num_shards, has_vocabulary=True)
        return [
            (dataclasses.replace(share, ids=share.ids - first_row), plan)
            for (share, plan), first_row in zip(shares, first_rows, strict=True)
        ]


@dataclasses.dataclass(eq=False)
class _Call:
    """The lookups or updates of one op: shards on one device.

    Attributes:
      tables: the table of each shard.
      shards: the shards.
      features: the index of each feature in the batch of all replicas.
      ids: the ids of each feature that belong to its shard.
      plans: the lookup of each feature; `table` is the index of the shard.
    """

    tables: list[_Table] = dataclasses.field(default_factory=list)
    shards: list[_Shard] = dataclasses.field(default_factory=list)
    features: list[int] = dataclasses.field(default_factory=list)
    ids: list[ops.FeatureIds] = dataclasses.field(default_factory=list)
    plans: list[ops.FeaturePlan] = dataclasses.field(default_factory=list)

    def add(self, table: _Table, shard: _Shard) -> None:
        """Adds a shard."""
        self.tables.append(table)
        self.shards.append(shard)

    def take(self, feature: int, shard: _Shard, share: Share) -> None:
        """Adds a feature's ids that belong to a shard."""
        ids, plan = share
        place = self.shards.index(shard)
        self.features.append(feature)
        self.ids.append(ids)
        self.plans.append(dataclasses.replace(plan, table=place))

    @property
    def handles(self) -> list[tf.Tensor]:
        """The handle of each shard."""
        return [shard.handle for shard in self.shards]

    @property
    def dims(self) -> list[int]:
        """The row width of each shard."""
        return [table.config.dimension for table in self.tables]


class HostTables:
    """Looks up the features of all replicas at once, and trains their tables.

    An object serves one graph, in which its methods are called in this order:

      features = tables.look_up(features)     # per replica
      # In the step, which is built once for all replicas:
      features = tables.capture(features)     # to train; else nothing
      spec = model_fn(features, ...)
      gradients = tables.gradients()          # to train
      # Outside of the step again:
      tables.make_variables()
      update = tables.update(gradients)       # to train; per replica

    There is one table for all replicas: one lookup and one update use the rows
    of the global batch. Variables and slots have the names that columns and
    optimizers give them on a CPU, so that both can read the same checkpoints.

    In a graph with a replica_device_setter, tables are on its parameter
    servers: the rows of a table without a vocabulary on all servers, those of
    a large table on several, those of another table on one. A step sends each
    server one request, and updates all rows of a server at once.

    Args:
      spec: the EmbeddingConfigSpec with the features and tables.
      mode: a mode key; "train" makes the slots.
      num_replicas: the number of replicas of a step.
      on_tpu: False if feature columns of TensorFlow run by themselves in the
        model_fn (`use_tpu=False`); HostTables then has only the other tables.
      batch_size: the number of samples of a replica, if known.
      elsewhere: names of tables that a TPU's embedding engine holds instead.

    Raises:
      tfembed.errors.ArgumentError: a feature has two embeddings, or two
        features share their weights.
      tfembed.errors.DtypeError: (also TypeError) a plain embedding column with
        `on_tpu`.
    """

    def __init__(
        self,
        spec: EmbeddingConfigSpec,
        mode: str,
        *,
        num_replicas: int = 1,
        on_tpu: bool = True,
        batch_size: int | None = None,
        elsewhere: Collection[str] = (),
    ) -> None:
        self._spec = spec
        self._is_training = mode == "train"
        self._num_replicas = num_replicas
        self._batch_size = batch_size
        configs, used = spec.tables_and_features(on_tpu=on_tpu)
        self._on_core = [
            column
            for column in spec.tensor_core_feature_columns or ()
            if on_tpu
        ]
        self._configs = {
            name: configs[name]
            for name in sorted(configs)
            if name not in elsewhere
        }
        self._readers = feature_readers(
            configs,
            used,
            is_column=spec.feature_columns is not None,
            held=self._configs,
        )
        self._tables: list[_Table] = []
        self._lookup: list[tf.Operation] = []
        # For each replica and feature, its ids, and these ids partitioned by
        # shard.
        self._features: list[ops.FeatureIds] = []
        self._shares: list[list[Share]] = []
        self._rates: list[Any] = []
        self._multiplier: Any = None
        self.noted = ActivationGradients()

    @staticmethod
    def needed(spec: EmbeddingConfigSpec | None, *, on_tpu: bool) -> bool:
        """Whether an estimator with this spec needs HostTables."""
        if spec is None:
            return False
        configs, _ = spec.tables_and_features(on_tpu=on_tpu)
        on_core = on_tpu and spec.tensor_core_feature_columns
        return bool(configs or on_core)

    @property
    def feature_keys(self) -> list[str]:
        """The features that are looked up, in the order of `gradients`."""
        return [reader.key for reader in self._readers]

    def look_up(
        self, features: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Returns features with activations in place of ids.

        Removes weights, and adds the lengths of sequences under the keys of
        sequence columns.

        Args:
          features: the features of each replica.

        Raises:
          tfembed.errors.ArgumentError: features are not a dict, lack a
            feature, or have a type that cannot be looked up.
        """
        self.check_replicas(features)
        with tf.name_scope("tpu_embedding"), tf.device(HOST):
            found = [self._without_ids(each) for each in features]
            if not self._readers:
                return found
            placed = _placed(self._configs, owners())
            self._tables = [
                self._new_table(name, config, placed[name])
                for name, config in self._configs.items()
            ]
            read = [
                [reader.read(each) for reader in self._readers]
                for each in features
            ]
            self._features = [ids for each in read for ids in each]
            self._shares = self._deal(
                self._features, self._plans * len(features)
            )
            steps = self._read_rates() if self._is_training else []
            with tf.control_dependencies(steps):
                flat = iter(self._activations())
            for each, ids in zip(found, read, strict=True):
                for reader, ids_of_one in zip(self._readers, ids, strict=True):
                    self._put(each, reader, ids_of_one, next(flat))
        return found

    def capture(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Returns features that store the activations' gradients once computed.

        Called in the step of a replica, before the model_fn. Computing
        gradients of a feature a second time raises a StateError.

        Args:
          features: a replica's result of `look_up`.
        """
        if not self._is_training:
            return dict(features)
        return self.noted.capture(features, self.feature_keys)

    def gradients(self) -> list[Any]:
        """Returns the gradients of each feature's activations.

        Call it after the model_fn. Gradients that were not computed are zeros,
        as on a TPU.
        """
        return list(self.noted.of(self.feature_keys))

    def make_variables(self, named: Mapping[str, str] | None = None) -> None:
        """Makes the variables of tables and slots, and connects the lookup.

        Called after the model_fn, whose layers name the columns' variables.

        Args:
          named: the result of `names_by_layers`; None: calls it.

        Raises:
          tfembed.errors.StateError: (also RuntimeError) no layer of the
            model_fn used a column of the spec.
        """
        if named is None:
            named = names_by_layers()
        with tf.device(HOST):
            for table in self._tables:
                if table.config.vocabulary_size is not None:
                    self._make(
                        table, name_of_variable(table.name, self._spec, named)
                    )
        _leave_out_of_savers()

    def update(self, gradients: Sequence[Sequence[tf.Tensor]]) -> tf.Operation:
        """Trains the tables with the gradients of the last lookup.

        Args:
          gradients: for each replica, the result of `gradients` in its step.

        Returns:
          The op that a step must run.

        Raises:
          tfembed.errors.StateError: a table has no optimization parameters.
        """
        if not self._readers:
            return tf.no_op("tpu_embedding_update")
        flat = [self._scaled(one) for each in gradients for one in each]
        at_once = [
            i
            for i, table in enumerate(self._tables)
            if table.sums_all(self._num_replicas)
        ]
        by_core = [i for i in range(len(self._tables)) if i not in at_once]
        with (
            tf.name_scope("tpu_embedding_update"),
            tf.device(HOST),
            tf.control_dependencies([*self._lookup, *flat, *self._laid_out()]),
        ):
            done = self._apply(at_once, self._shares, flat)
            for core in range(self._num_replicas if by_core else 0):
                shares = self._deal(*self._of_core(core, by_core))
                with tf.control_dependencies(done):
                    done = [*done, *self._apply(by_core, shares, flat)]
            return tf.group(*done, *self._count_step(done))

    @property
    def _plans(self) -> list[ops.FeaturePlan]:
        places = {name: i for i, name in enumerate(self._configs)}
        return [
            reader.plan(places[reader.config.table_id])
            for reader in self._readers
        ]

    def check_replicas(self, features: Sequence[Mapping[str, Any]]) -> None:
        """Raises an error unless each replica's features are a dict."""
        if len(features) != self._num_replicas:
            raise errors.ArgumentError(
                f"`features` must have one entry for each of the "
                f"{self._num_replicas} replicas; got {len(features)}."
            )
        for each in features:
            if not isinstance(each, Mapping):
                raise errors.ArgumentError(
                    "With an embedding_config_spec the features of the input "
                    f"must be a dict; got {type(each)}."
                )

    def _without_ids(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the other features; pads those of the tensor core."""
        left = dict(features)
        for reader in self._readers:
            reader.take_out(left)
        for column in self._on_core:
            self._pad(left, column)
        return left

    def _pad(self, features: dict[str, Any], column: Any) -> None:
        key = column.categorical_column.key
        mask_key = f"{key}{private.TENSOR_CORE_MASK}"
        if mask_key in features:
            raise errors.ArgumentError(
                f"Mask key {mask_key} for Tensor Core embedding is already in "
                "use. Rename that feature."
            )
        ids = features.get(key)
        if not isinstance(ids, tf.SparseTensor) or not ids.dtype.is_integer:
            raise errors.ArgumentError(
                f"The feature '{key}' of a column on the tensor core must be a "
                f"SparseTensor of integers; got {ids}."
            )
        size = private.padded_size(column)
        values, mask = private.padded(ids, size)
        shape = [self._batch_size, size]
        features[key] = tf.ensure_shape(values, shape)
        features[mask_key] = tf.ensure_shape(mask, shape)

    def _deal(
        self,
        features: Sequence[ops.FeatureIds],
        plans: Sequence[ops.FeaturePlan],
    ) -> list[list[Share]]:
        return [
            self._tables[plan.table].deal(ids, plan)
            for ids, plan in zip(features, plans, strict=True)
        ]

    def _calls(
        self, tables: Sequence[int], shares: Sequence[Sequence[Share]]
    ) -> dict[str, _Call]:
        """Groups the lookups or updates of some tables by device."""
        calls: dict[str, _Call] = {}
        for i in tables:
            for shard in self._tables[i].shards:
                call = calls.setdefault(shard.device, _Call())
                call.add(self._tables[i], shard)
        for feature, by_shard in enumerate(shares):
            table = by_shard[0][1].table
            if table not in tables:
                continue
            for shard, share in zip(
                self._tables[table].shards, by_shard, strict=True
            ):
                calls[shard.device].take(feature, shard, share)
        return calls

    def _activations(self) -> list[tf.Tensor]:
        """Looks up the features of all replicas."""
        found: list[list[tf.Tensor]] = [[] for _ in self._features]
        calls = self._calls(range(len(self._tables)), self._shares)
        for device, call in calls.items():
            with tf.device(device):
                activations = ops.grouped_lookup(
                    call.handles, call.dims, call.ids, call.plans
                )
            self._lookup.append(activations[0].op)
            for feature, part in zip(call.features, activations, strict=True):
                found[feature].append(part)
        return [
            parts[0] if len(parts) == 1 else tf.add_n(parts) for parts in found
        ]

    def _new_table(
        self, name: str, config: TableConfig, devices: Sequence[str]
    ) -> _Table:
        parameters = None
        if self._is_training:
            parameters = config.optimization_parameters
            parameters = parameters or self._spec.optimization_parameters
        if config.vocabulary_size is not None:
            shards = [
                _Shard(
                    device,
                    tf.compat.v1.placeholder(tf.resource, []),
                    first_row=_first_row(config, i, len(devices)),
                )
                for i, device in enumerate(devices)
            ]
            return _Table(name, config, parameters, shards)
        table = hash_table_of(
            config, config.dimension, name, optimizer=None, devices=devices
        )
        shards = [
            _Shard(device, handle)
            for device, handle in zip(devices, table.handles, strict=True)
        ]
        made = _Table(name, config, parameters, shards, table)
        if self._is_training:
            table.attach(made.rule)
        add_to_savers(table)
        return made

    def _read_rates(self) -> list[tf.Operation]:
        """Computes values of the global step, before the step increments it."""
        functions = list(
            dict.fromkeys(
                table.config.learning_rate_fn
                for table in self._tables
                if table.config.learning_rate_fn is not None
            )
        )
        rates, self._multiplier = rates_at_step(self._spec, functions)
        called: dict[Any, tf.Tensor] = dict(zip(functions, rates, strict=True))
        self._rates = [
            called.get(table.config.learning_rate_fn, table.fixed_rate)
            for table in self._tables
        ]
        read = [*rates, self._multiplier]
        return [rate.op for rate in read if rate is not None]

    def _put(
        self,
        features: dict[str, Any],
        reader: FeatureReader,
        ids: ops.FeatureIds,
        activation: tf.Tensor,
    ) -> None:
        batch = self._batch_size
        known = activation.shape.as_list()
        if batch is not None and known[0] is None:
            activation = tf.ensure_shape(activation, [batch, *known[1:]])
        features[reader.key] = activation
        reader.put_lengths(features, ids, batch)

    def _make(self, table: _Table, name: str) -> None:
        devices = [shard.device for shard in table.shards]
        made = new_variables(name, table.config, table.parameters, devices)
        for shard, *variables in zip(table.shards, *made, strict=True):
            for op in self._lookup:
                private.connect(op, shard.handle, variables[0].handle)
            shard.handle = variables[0].handle
            shard.variables = variables

    def _scaled(self, gradient: tf.Tensor) -> tf.Tensor:
        gradient = tf.cast(gradient, tf.float32)
        if self._multiplier is None:
            return gradient
        return gradient * self._multiplier

    def _laid_out(self) -> list[tf.Operation]:
        """Returns ops that lay out the slots of tables without a vocabulary."""
        return [
            op
            for table in self._tables
            if table.hash_table is not None
            for op in table.hash_table.lay_out_slots()
        ]

    def _of_core(
        self, turn: int, tables: Sequence[int]
    ) -> tuple[list[ops.FeatureIds], list[ops.FeaturePlan]]:
        """Returns the ids whose rows the cores update in a turn, and plans.

        In each turn, a core has rows that no other core updates. Other tables'
        ids are unchanged.
        """
        num_features = len(self._readers)
        features, combined = [], []
        plans = self._plans * self._num_replicas
        for i, (ids, plan) in enumerate(
            zip(self._features, plans, strict=True)
        ):
            if plan.table in tables:
                # A row's own core comes first, then the cores after it.
                own = (i // num_features - turn) % self._num_replicas
                cores = self._num_replicas
                has_vocabulary = (
                    self._tables[plan.table].config.vocabulary_size is not None
                )
                ids, plan = share_of_core(
                    ids, plan, own, cores, has_vocabulary=has_vocabulary
                )
            features.append(ids)
            combined.append(plan)
        return features, combined

    def _apply(
        self,
        tables: Sequence[int],
        shares: Sequence[Sequence[Share]],
        gradients: Sequence[tf.Tensor],
    ) -> list[tf.Operation]:
        rates = {self._tables[i].name: self._rates[i] for i in tables}
        done = []
        for device, call in self._calls(tables, shares).items():
            with tf.device(device):
                counts = ops.grouped_update(
                    call.handles,
                    [
                        v.handle
                        for shard in call.shards
                        for v in shard.variables[1:]
                    ],
                    call.dims,
                    call.ids,
                    call.plans,
                    [gradients[i] for i in call.features],
                    rules=[table.rule.rule_text() for table in call.tables],
                    learning_rates=[rates[table.name] for table in call.tables],
                    table_names=[table.name for table in call.tables],
                )
            done.append(counts.op)
        return done

    def _count_step(self, done: Sequence[tf.Operation]) -> list[tf.Operation]:
        """Counts the step for tables whose rows expire by steps."""
        counting = [
            table.hash_table
            for table in self._tables
            if table.hash_table is not None and table.hash_table.counts_steps
        ]
        if not counting:
            return []

        def count() -> tf.Tensor:
            for table in counting:
                table.note_training_step()
            return tf.constant(0)

        with tf.control_dependencies(done):
            return [in_order(count).op]


def _placed(
    configs: Mapping[str, TableConfig], servers: Sequence[str]
) -> dict[str, list[str]]:
    """Assigns devices to each table's shards; all workers get the same result.

    A table without a vocabulary has a shard on each server. One with a
    vocabulary is split into as many parts as have `LEAST_BYTES` each; the
    largest table comes first, and each part goes to the server with the least
    bytes so far.
    """
    sizes = {
        name: 4 * config.vocabulary_size * config.dimension
        for name, config in configs.items()
        if config.vocabulary_size is not None
    }
    placed = {name: list(servers) for name in configs if name not in sizes}
    loads = dict.fromkeys(servers, 0)
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        rows: Any = configs[name].vocabulary_size
        most = min(len(servers), rows, sizes[name] // LEAST_BYTES)
        num_parts = max(1, most)
        chosen = sorted(servers, key=lambda server: loads[server])[:num_parts]
        for server in chosen:
            loads[server] += sizes[name] // num_parts
        placed[name] = chosen
    return placed


def _first_row(config: TableConfig, part: int, num_parts: int) -> int:
    """Returns the first row of a part; the first parts get the remainder."""
    rows, left = divmod(config.vocabulary_size or 0, num_parts)
    return part * rows + min(part, left)


def note_layers() -> None:
    """Makes the default graph record layers that use columns from now on."""
    private.note_column_scopes(tf.compat.v1.get_default_graph())


def names_by_layers() -> dict[str, str]:
    """Returns the names that layers gave to columns' variables, by table.

    Clears the graph's record: a second call returns nothing.
    """
    scopes = private.take_column_scopes(tf.compat.v1.get_default_graph())
    return {table_of_variable(v): name for v, name in scopes.items()}


def name_of_variable(
    table: str, spec: EmbeddingConfigSpec, named: Mapping[str, str]
) -> str:
    """Returns the name of a table's variable.

    Args:
      table: the name of the table.
      spec: the spec with the table.
      named: the result of `names_by_layers`.

    Raises:
      tfembed.errors.StateError: (also RuntimeError) no layer of the model_fn
        used the column.
    """
    if spec.feature_columns is not None and table not in named:
        raise errors.StateError(
            "Embedding feature column did not capture any thing. "
            "Make sure the feature columns passed to TPUEstimator "
            "constructor is properly used in model_fn. No layer "
            f"used a column of table '{table}'."
        )
    return named.get(table, table)


def new_variables(
    name: str,
    config: TableConfig,
    parameters: OptimizationParameters | None,
    devices: Sequence[str],
) -> list[list[Any]]:
    """Makes the variables of a table with a vocabulary: rows, then slots.

    Args:
      name: the name of the rows in checkpoints; the slots' names begin with
        it.
      config: the TableConfig.
      parameters: the update rule, which determines the slots; None: no slots.
      devices: the devices; each variable has a part on each device.

    Returns:
      The parts of each variable, in the order of `devices`.
    """
    shape = (config.vocabulary_size, config.dimension)
    made = [_new_variable(name, shape, config.initializer, devices, TABLES)]
    if parameters is None:
        return made
    rule: Any = parameters.rule()
    slots = zip(parameters.variable_suffixes, rule.slot_names, strict=True)
    return made + [
        _new_variable(
            f"{name}/{suffix}", shape, rule.slot_initializer(slot), devices
        )
        for suffix, slot in slots
    ]


def _new_variable(
    name: str,
    shape: tuple[int | None, int],
    initializer: Any,
    devices: Sequence[str],
    *collections: Any,
) -> list[Any]:
    """Makes a variable in parts, one per device; a host has a single part.

    Checkpoints have the whole under `name`, like an unpartitioned variable.
    `collections` also get the variable.
    """

    def device(op: tf.Operation) -> str:
        part = re.search(r"/part_(\d+)(_\d+)?$", op.name)
        return devices[int(part[1])] if part else ""

    with tf.compat.v1.device(device):
        made = tf.compat.v1.get_variable(
            name,
            shape=shape,
            dtype=tf.float32,
            initializer=initializer,
            trainable=False,
            use_resource=True,
            collections=[
                tf.compat.v1.GraphKeys.GLOBAL_VARIABLES,
                *collections,
            ],
            partitioner=tf.compat.v1.fixed_size_partitioner(len(devices)),
        )
    return list(made)


def _leave_out_of_savers() -> None:
    """Excludes optimizers' slots of the dummy variable from checkpoints."""
    keys = tf.compat.v1.GraphKeys
    saved = tf.compat.v1.get_collection_ref(keys.GLOBAL_VARIABLES)
    dropped = [v for v in saved if DUMMY_VARIABLE in v.name]
    saved[:] = [v for v in saved if DUMMY_VARIABLE not in v.name]
    local = tf.compat.v1.get_collection_ref(keys.LOCAL_VARIABLES)
    local += dropped
