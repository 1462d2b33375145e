"""Builds a step of all replicas as a program of a real TPU.

    host, each step:    inputs -> InfeedEnqueueTuple,
                        OutfeedDequeueTuple -> outputs
    program, each loop: while i < iterations:
                          InfeedDequeueTuple -> step -> OutfeedEnqueueTuple
    host, last step:    waits for the program's end, when variables are written

The host's part is a step like that of simulated replicas, and the same hooks
run it; infeed and outfeed replace the replicas. `ProgramHook` starts the
program in parallel to a loop of such steps. A program without a loop takes
inputs and returns outputs directly, without infeed and outfeed.

This is TensorFlow's API of graphs for TPUs (`tpu.replicate`). `make tpu-proof`
traces, lowers and compiles it; it has not run on a TPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfembed import errors
from tfembed.estimator.private import tpu_programs
from tfembed.estimator.replicas import COLLECTIVES, Replicas
from tfembed.estimator.tpu import loops
from tfembed.estimator.tpu.context import ModeContext


def replicate_on_tpu(
    step: Callable[..., Any],
    inputs: Sequence[Sequence[tf.Tensor]],
    context: ModeContext,
    *,
    in_loops: bool,
    engine: EngineParts | None = None,
) -> tuple[Replicas, list[Any]]:
    """Adds a step to the graph as a TPU's program for all replicas.

    Args:
      step: a function of the input tensors of a replica, called once for all
        replicas. It returns a structure of tensors and operations.
      inputs: the tensors of each replica, on its host.
      context: gives the cores and hosts of the replicas.
      in_loops: whether one run of the program makes all steps of a loop; the
        graph's variable of iterations gives their number.
      engine: the parts of the TPU's embedding engine; None without it.

    Returns:
      The replicas, and the hooks that a session needs to run them.

    Raises:
      tfembed.errors.ArgumentError: (also ValueError) the step returns no
        tensor, or in loops a tensor without a static shape.
      tfembed.errors.DtypeError: (also TypeError) in loops, an output is a
        string.
      tfembed.errors.UnsupportedError: the configuration splits features over
        the cores of a replica.
    """
    if context.config.tpu_config.input_partition_dims is not None:
        raise errors.UnsupportedError(
            "This release does not split features over the cores of a TPU "
            "replica. Leave TPUConfig.input_partition_dims out, or set "
            "TFEMBED_SIMULATED_CORES, which simulates replicas."
        )
    builder = _Program(step, inputs, context, engine)
    first = len(tf.compat.v1.get_default_graph().get_operations())
    with _control_flow_v1():
        outputs = builder.in_loops() if in_loops else builder.at_once()
    ops = _ops_of_program(first)
    replicas = Replicas(
        outputs=outputs,
        start_of_loop=tf.no_op("start_of_loop"),
        has_collectives=any(op.type in COLLECTIVES for op in ops),
        ops=ops,
        end_of_loop=builder.end_of_loop,
    )
    return replicas, builder.hooks


@dataclasses.dataclass(frozen=True)
class EngineParts:
    """The parts of a step that a TPU's embedding engine needs.

    Attributes:
      proto: the configuration of the engine.
      enqueued: for each replica, its host's op that enqueues ids for the
        engine.
    """

    proto: Any
    enqueued: Sequence[tf.Operation]


class _Program:
    """A program and its outputs.

    Attributes:
      hooks: the hooks that a session needs.
      end_of_loop: an op that waits for the program's end; None without loops.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        inputs: Sequence[Sequence[tf.Tensor]],
        context: ModeContext,
        engine: EngineParts | None,
    ) -> None:
        self._step = step
        self._enqueued = engine.enqueued if engine else [None] * len(inputs)
        self._inputs = [list(tensors) for tensors in inputs]
        self._context = context
        self._structure: Any = None
        self._returned: list[Any] = []
        self.end_of_loop: tf.Operation | None = None
        self.hooks: list[Any] = [
            SystemHook(context, engine.proto if engine else None)
        ]

    def at_once(self) -> list[Any]:
        """Builds a program of one step, which the host's step runs."""
        inputs = self._inputs
        if any(self._enqueued):
            # The program waits for the ids, so that an error in them comes
            # first.
            inputs = [
                self._behind(tensors, replica)
                for replica, tensors in enumerate(inputs)
            ]
        _, results = tpu_programs.split_compile_and_replicate(
            self._call_step, inputs, self._context.device_assignment
        )
        return [
            self._packed(_tensors(of_replica), _tensors(of_replica)[0].op)
            for of_replica in results
        ]

    def in_loops(self) -> list[Any]:
        """Builds a program of a loop, and the host's part of a step."""
        iterations = loops.iterations_per_loop_variable()
        given = self._inputs[0]
        sent: list[tf.Tensor] = []

        def body(i: tf.Tensor) -> tf.Tensor:
            taken = []
            if given:  # Else the engine takes all features.
                taken = tpu_programs.infeed_dequeue(
                    [tensor.dtype for tensor in given],
                    [tensor.shape for tensor in given],
                )
            ends = self._call_step(*taken)
            sent[:] = [end for end in ends if isinstance(end, tf.Tensor)]
            for tensor in sent:
                _check_outfed(tensor)
            others = [end for end in ends if isinstance(end, tf.Operation)]
            with tf.control_dependencies(others):
                out = tpu_programs.outfeed_enqueue(sent)
            with tf.control_dependencies([out]):
                return i + 1

        def program() -> Any:
            return tpu_programs.while_loop(
                lambda i: tf.less(i, iterations), body, [tf.constant(0)]
            )

        compiled, results = tpu_programs.split_compile_and_replicate(
            program, [[] for _ in self._inputs], self._context.device_assignment
        )
        launch = tf.group(*results, name="tpu_program")
        ended = tf.queue.FIFOQueue(1, [tf.bool], [[]], name="tpu_program_ended")
        with tf.control_dependencies([launch]):
            told = ended.enqueue(True)
        self.hooks.append(ProgramHook(compiled, told))
        fed = [
            self._fed(replica, tensors, sent)
            for replica, tensors in enumerate(self._inputs)
        ]
        leaves = tf.nest.flatten(fed, expand_composites=True)
        with tf.control_dependencies(
            [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
        ):
            self.end_of_loop = ended.dequeue().op
        return fed

    def _behind(
        self, tensors: list[tf.Tensor], replica: int
    ) -> list[tf.Tensor]:
        """Returns inputs that are available once the ids are enqueued."""
        device, _ = self._context.device_for_replica(replica)
        with (
            tf.device(device),
            tf.control_dependencies([self._enqueued[replica]]),
        ):
            return [tf.identity(tensor) for tensor in tensors]

    def _fed(
        self, replica: int, tensors: list[tf.Tensor], sent: list[tf.Tensor]
    ) -> Any:
        """Builds the ops of a replica's host for one step."""
        device, core = self._context.device_for_replica(replica)
        with tf.device(device):
            given = (
                [tpu_programs.infeed_enqueue(tensors, core)] if tensors else []
            )
            if self._enqueued[replica] is not None:
                given.append(self._enqueued[replica])
            with tf.control_dependencies(given):
                taken = tpu_programs.outfeed_dequeue(
                    [tensor.dtype for tensor in sent],
                    [tensor.shape for tensor in sent],
                    core,
                )
        return self._packed(taken, taken[0].op)

    def _call_step(self, *tensors: tf.Tensor) -> list[Any]:
        """Calls the step; returns its tensors, then its operations."""
        structure = self._step(*tensors)
        returned = [
            tf.convert_to_tensor(leaf)
            if isinstance(leaf, tf.Variable)
            else leaf
            for leaf in tf.nest.flatten(structure, expand_composites=True)
        ]
        self._structure, self._returned = structure, returned
        handed = [leaf for leaf in returned if isinstance(leaf, tf.Tensor)]
        if not handed:
            raise errors.ArgumentError(
                "A replica of a TPU must hand out a tensor; got "
                f"{structure!r} from the step."
            )
        ends = [leaf for leaf in returned if isinstance(leaf, tf.Operation)]
        return [*handed, *ends]

    def _packed(self, tensors: Sequence[tf.Tensor], end: tf.Operation) -> Any:
        """Packs a replica's tensors into the structure that the step returned.

        Args:
          tensors: tensors of the host.
          end: the op that replaces each operation of the step.
        """
        left = iter(tensors)
        leaves = [
            next(left)
            if isinstance(leaf, tf.Tensor)
            else end
            if isinstance(leaf, tf.Operation)
            else leaf
            for leaf in self._returned
        ]
        return tf.nest.pack_sequence_as(
            self._structure, leaves, expand_composites=True
        )


def _tensors(results: Any) -> list[tf.Tensor]:
    return [one for one in results if isinstance(one, tf.Tensor)]


def _check_outfed(tensor: tf.Tensor) -> None:
    if tensor.dtype == tf.string:
        raise errors.DtypeError(
            "A replica of a TPU cannot hand out strings; got "
            f"{tensor}. Make them on the host, in the function of host_call or "
            "eval_metrics."
        )
    if not tensor.shape.is_fully_defined():
        raise errors.ArgumentError(
            "A tensor that a replica of a TPU hands out must have a static "
            f"shape; got {tensor}. Give it one by tf.ensure_shape."
        )


def _ops_of_program(first: int) -> frozenset[tf.Operation]:
    """Returns the graph's TPU ops with a number of at least `first`."""
    graph = tf.compat.v1.get_default_graph()
    return frozenset(
        op
        for op in graph.get_operations()[first:]
        if "_tpu_replicate" in op.node_def.attr
    )


@contextlib.contextmanager
def _control_flow_v1() -> Iterator[None]:
    """Turns control flow v2 off: the program then inlines the model's ops."""
    was = tf.compat.v1.control_flow_v2_enabled()
    tf.compat.v1.disable_control_flow_v2()
    try:
        yield
    finally:
        if was:
            tf.compat.v1.enable_control_flow_v2()


class SystemHook(tf.compat.v1.train.SessionRunHook):
    """Initializes the TPU before a session's first step.

    That happens once per master, or, with the embedding engine, once per
    session: another session has configured it for its own tables.

    Args:
      context: identifies the TPU.
      engine: the TPUEmbeddingConfiguration, or None.
    """

    _initialized: set[str] = set()

    def __init__(self, context: ModeContext, engine: Any = None) -> None:
        self._master = context.master
        self._job = context.master_job
        self._config = context.config.session_config
        self._engine = engine

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the initialization in its own graph and session."""
        del session, coord
        if self._engine is None and self._master in self._initialized:
            return
        tf.compat.v1.logging.info("Initializing the TPU system.")
        with (
            tf.Graph().as_default(),
            tf.compat.v1.Session(self._master, config=self._config) as session,
        ):
            session.run(
                tf.compat.v1.tpu.initialize_system(
                    embedding_config=self._engine, job=self._job
                )
            )
        self._initialized.add(self._master)


class ProgramHook(tf.compat.v1.train.SessionRunHook):
    """Runs a TPU's program in parallel to the steps of a loop.

    It precedes the hook that makes the loop's steps. If the program fails, the
    session raises the program's error.

    Args:
      compiled: an op with the result of compiling the program.
      launch: the op that runs the program.
    """

    def __init__(self, compiled: Any, launch: Any) -> None:
        self._compiled = compiled
        self._launch = launch
        self._coord: Any = None
        self._running: threading.Thread | None = None
        self._is_compiled = False

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Keeps the coordinator, which receives errors."""
        del session
        self._coord = coord
        self._is_compiled = False

    def before_run(self, run_context: Any) -> None:
        """Starts the program.

        Raises:
          tfembed.errors.StateError: (also RuntimeError) the program does not
            compile.
        """
        session = run_context.session
        if not self._is_compiled:
            problem = tpu_programs.compilation_error(
                session.run(self._compiled)
            )
            if problem:
                raise errors.StateError(
                    f"The TPU's compiler refused the program: {problem}"
                )
            self._is_compiled = True
        self._running = threading.Thread(
            target=self._run, args=(session,), daemon=True
        )
        self._running.start()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Waits for the end of the program."""
        del run_context, run_values
        assert self._running is not None
        self._running.join()

    def _run(self, session: Any) -> None:
        try:
            session.run(self._launch)
        except Exception as error:
            # Host steps would wait forever for their outputs.
            self._coord.request_stop(error)
            session.close()
