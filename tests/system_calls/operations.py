"""Saves and restores of which each system call fails once, and their oracle.

`main` tries one operation, with the calls from BEGIN to END failing, in a process
under the library made of failing_calls.c, and prints a JSON line: how many calls
the operation has, how many tries there were, and what went wrong.

  main(LIBRARY, FOLDER, ERRORS, WHICH, OPERATION, BEGIN, END)

ERRORS are names of errno as "EIO,ENOSPC"; WHICH is `each` (every error once at
every call, and the first one at that call and all after it) or `one` (one error once
at each call). trials.py starts such processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import itertools
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tensorflow.python.saved_model import fingerprinting_utils
from tensorflow.python.training import py_checkpoint_reader

import tfembed
import tfembed.dynamic_embedding as de
from tfembed import errors, optimizers, policies
from tfembed.tables import HashTable, StringTable, hash_table

v1 = tf.compat.v1

# What a user may see; anything else is a fault. TensorFlow's restore takes an
# object graph that it fails to read for a checkpoint without one, and
# `assert_existing_objects_matched` says that nothing was restored.
# A Saver of TensorFlow 1 raises ValueError where it finds no index, an export
# RuntimeError where it does not find its folder again.
ERRORS = (
    tf.errors.OpError,
    errors.TfembedError,
    OSError,
    AssertionError,
    ValueError,
    RuntimeError,
)
A, B = 1, 2  # Two contents.
DEVICES = ["/CPU:0"] * 2

Content = dict[str, Any]


class Calls:
    """The library's functions."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        library.failing_calls_begin.argtypes = [
            ctypes.c_char_p,
            ctypes.c_long,
            ctypes.c_int,
            ctypes.c_int,
        ]
        library.failing_calls_end.restype = ctypes.c_long
        library.failing_calls_failed.restype = ctypes.c_char_p
        self._library = library

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """No call fails."""
        self._library.failing_calls_pause(1)
        try:
            yield
        finally:
            self._library.failing_calls_pause(0)

    def spare(self, module: Any, name: str) -> None:
        """Has no call fail that a function of TensorFlow makes."""
        function = getattr(module, name)

        def spared(*args: Any) -> Any:
            with self.paused():
                return function(*args)

        setattr(module, name, spared)

    def spare_what_ends_the_process(self) -> None:
        """Spares what TensorFlow crashes in where a file cannot be read.

        An index, or the SavedModel of which it makes a fingerprint.
        """
        for module in (py_checkpoint_reader, tf.compat.v1.train):
            self.spare(module, "NewCheckpointReader")
        pywrap = fingerprinting_utils.fingerprinting_pywrap
        self.spare(pywrap, "CreateFingerprintDef")

    def run(
        self,
        act: Callable[[], Any],
        folder: str,
        first: int,
        all_after: bool,
        error: int,
    ) -> tuple[Exception | None, int, str]:
        """The error of `act`, the number of its calls, and which failed."""
        raised: Exception | None = None
        self._library.failing_calls_begin(
            folder.encode(), first, all_after, error
        )
        try:
            act()
        except Exception as caught:
            raised = caught
        finally:
            count = self._library.failing_calls_end()
        return raised, count, self._library.failing_calls_failed().decode()


def of_table(table: Any) -> Content:
    """All that a table holds, in the order of its keys."""
    if isinstance(table, StringTable):
        return _in_order("rows", [x.numpy() for x in table.export()])
    found = hash_table.take(table, table.shards)
    columns = [x.numpy() for x in found.columns]
    notes, waiting, seen, counters, _ = (x.numpy() for x in found.notes)
    if notes.size:
        columns.append(notes)
    return {
        **_in_order("rows", columns),
        **_in_order("waiting", [waiting, seen]),
        "counters": counters.tolist(),
        "seed": table.seed,
        "slots": table.slot_names,
    }


def _in_order(name: str, columns: list[np.ndarray]) -> Content:
    order = np.argsort(columns[0])
    return {f"{name} {i}": x[order].tolist() for i, x in enumerate(columns)}


def partition(keys: tf.Tensor, num_shards: int) -> tf.Tensor:
    return tf.cast(tf.math.floormod(keys // 7, num_shards), tf.int32)


class SmallModel(tf.Module):
    """Rows of strings beside a hash table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = HashTable(2, name="table")
        self.texts = StringTable(1, name="texts")

    def tables(self) -> dict[str, Any]:
        return {"table": self.table, "texts": self.texts}

    def fill(self, seed: int) -> None:
        """Has all tables hold the content of that number."""
        keys = np.arange(seed, 20 * seed, seed)
        self.table.clear()
        self.texts.clear()
        self.table.upsert(keys, seed * tf.ones([len(keys), 2]))
        self.texts.upsert(keys, [[f"{seed} {k}"] for k in keys])

    def content(self) -> Content:
        return {**of_table(self.table), "texts": of_table(self.texts)}


class Model(tf.Module):
    """A table of each kind that is saved or restored in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.texts = StringTable(2, name="texts", devices=DEVICES)
        self.plain = HashTable(3, name="plain", devices=DEVICES)
        self.plain.attach(optimizers.Adagrad(0.1))
        self.dealt = HashTable(
            2, name="dealt", devices=DEVICES, partitioner=partition
        )
        self.names = HashTable(
            2,
            name="names",
            key_dtype=tf.string,
            devices=DEVICES,
            admission=policies.CountAdmission(2),
            eviction=policies.LeastRecent(),
        )
        self.names.attach(optimizers.Adagrad(0.1))
        self.counted = HashTable(
            1,
            name="counted",
            admission=policies.BloomAdmission(3, capacity=100),
        )
        self.counted.attach(optimizers.SGD(0.1))
        table = tfembed.TableConfig(None, 2, name="ids")
        self.embedding = tfembed.TPUEmbedding(
            tfembed.FeatureConfig(table, name="ids"), optimizers.Adagrad(0.1)
        )
        self.embedding.build()
        self.bias = tf.Variable(0.0)

    def tables(self) -> dict[str, Any]:
        kinds = {
            name: getattr(self, name)
            for name in ("texts", "plain", "dealt", "names", "counted")
        }
        (ids,) = self.embedding.embedding_tables.values()
        return {**kinds, "ids": ids}

    def fill(self, seed: int) -> None:
        """Has all tables hold the content of that number."""
        for table in self.tables().values():
            table.clear()
        random = np.random.default_rng(seed)
        keys = np.arange(seed, 40 * seed, seed)
        ones = tf.ones([len(keys), 2])
        self.texts.upsert(keys, [[f"{seed}", f"{k}"] for k in keys])
        self.dealt.upsert(keys, random.normal(size=[len(keys), 2]))
        self.plain.apply_gradients(keys, random.normal(size=[len(keys), 3]))
        self.tables()["ids"].apply_gradients(keys, seed * ones)
        for batch in (keys, keys[:20]):
            names = tf.strings.as_string(batch)
            self.names.apply_gradients(names, seed * ones[: len(batch)])
            self.counted.apply_gradients(batch, seed * ones[: len(batch), :1])
        self.bias.assign(seed)

    def content(self) -> Content:
        return {
            f"{name} {part}": value
            for name, table in self.tables().items()
            for part, value in of_table(table).items()
        }


@dataclasses.dataclass
class Operation:
    """An operation to try.

    Attributes:
      act: what fails, given the folder.
      prepare: makes the folder as it is before, once.
      reset: brings what lives in the process back, after a try.
      live: what lives in the process holds that.
      outcomes: what that may be, after an error and after none.
      saved: what a fresh program finds in the folder; None: not looked at.
      saved_outcomes: what that may be, as `outcomes`.
      again: what is done after a try, with no call failing; then `saved`, or
        else `live`, is as after no error.
      says_whether: whether errors tell an old save from a new one.
      is_ours: whether all errors are TensorFlow's or ours, and name the
        folder; Keras raises others too.
    """

    act: Callable[[pathlib.Path], Any]
    prepare: Callable[[pathlib.Path], Any]
    live: Callable[[], Content]
    outcomes: tuple[list[Content], list[Content]]
    reset: Callable[[], Any] = lambda: None
    saved: Callable[[pathlib.Path], Content] | None = None
    saved_outcomes: tuple[list[Content], list[Content]] = ([], [])
    again: Callable[[pathlib.Path], Any] | None = None
    says_whether: bool = False
    is_ours: bool = True


def faults(
    operation: Operation,
    folder: pathlib.Path,
    raised: Exception | None,
    all_after: bool,
) -> Iterator[str]:
    """The faults after a try."""
    failed = raised is not None
    if failed and operation.is_ours and not isinstance(raised, ERRORS):
        yield f"raised {raised!r}"
    is_named = str(folder) in str(raised) or isinstance(raised, AssertionError)
    if failed and operation.is_ours and not is_named:
        yield f"does not name the folder: {raised}"
    which = 0 if failed else 1
    if operation.live() not in operation.outcomes[which]:
        yield f"live tables: {difference(operation.live(), operation.outcomes[which])}"
    if operation.saved is not None:
        found = operation.saved(folder)
        # Of two sets the first is the new one where nothing can be taken back.
        is_told = all_after and "of this save already" in str(raised)
        if found not in operation.saved_outcomes[which] and not is_told:
            yield f"saved: {difference(found, operation.saved_outcomes[which])}"
        is_new = found == operation.saved_outcomes[1][0]
        says_new = "is saved, but may not be on" in str(raised)
        if failed and operation.says_whether and is_new != says_new:
            yield f"says otherwise, is_new {is_new}"
    (operation.again or operation.act)(folder)
    if operation.saved is None:
        if operation.live() not in operation.outcomes[1]:
            yield "live tables, when it was done again"
        return
    if operation.saved(folder) not in operation.saved_outcomes[1]:
        yield "saved, when it was saved again"
    # What TensorFlow's own savers leave is not ours. Where all calls fail no file
    # can be removed. Such a file goes with the next save of its name
    # (test_interrupted_save.py): that of raw files is the one above, while
    # checkpoints are numbered.
    unfinished = r"tfembed_new"
    if not all_after:
        unfinished += r"|tfembed\.HashTable\.\w.*tempstate"
    left = [
        path.name
        for path in folder.rglob("*")
        if re.search(unfinished, path.name)
    ]
    if left:
        yield f"left behind: {left}"


def difference(found: Content, outcomes: list[Content]) -> str:
    """In what the nearest outcome differs."""
    names = [
        [name for name in outcome if outcome[name] != found.get(name)]
        for outcome in outcomes
    ]
    return f"differ in {min(names, key=len, default=[])}"


# A description of one operation each, made when it is tried.


def checkpoint_saves(kind: type[Any] = Model) -> Operation:
    live, fresh = kind(), kind()
    checkpoint = tf.train.Checkpoint(model=live)
    contents = _contents(live)

    def save(folder: pathlib.Path) -> None:
        tf.train.CheckpointManager(checkpoint, str(folder), 1).save()

    def prepare(folder: pathlib.Path) -> None:
        live.fill(A)
        save(folder)
        live.fill(B)

    def saved(folder: pathlib.Path) -> Content:
        for table in fresh.tables().values():
            table.clear()
        path = tf.train.latest_checkpoint(str(folder))
        tf.train.Checkpoint(model=fresh).read(path).expect_partial()
        return fresh.content()

    return Operation(
        act=save,
        prepare=prepare,
        live=live.content,
        outcomes=([contents[B]], [contents[B]]),
        saved=saved,
        saved_outcomes=([contents[A], contents[B]], [contents[B]]),
    )


def small_saves() -> Operation:
    return checkpoint_saves(SmallModel)


def small_restores() -> Operation:
    return checkpoint_restores(SmallModel)


def _contents(model: Any) -> dict[int, Content]:
    """The content of a model after it was filled."""
    contents = {}
    for seed in (A, B):
        model.fill(seed)
        contents[seed] = model.content()
    return contents


def checkpoint_restores(kind: type[Any] = Model) -> Operation:
    live = kind()
    contents = _contents(live)

    def restore(folder: pathlib.Path) -> None:
        status = tf.train.Checkpoint(model=live).read(str(folder / "ckpt"))
        status.assert_existing_objects_matched()

    def prepare(folder: pathlib.Path) -> None:
        live.fill(A)
        tf.train.Checkpoint(model=live).write(str(folder / "ckpt"))
        live.fill(B)

    return Operation(
        act=restore,
        prepare=prepare,
        live=live.content,
        outcomes=([contents[B]], [contents[A]]),
        reset=lambda: live.fill(B),
    )


def large_restores() -> Operation:
    """Saves of tables that are larger than the buffers of files."""
    live = tf.Module()
    live.table = HashTable(64, name="t", devices=DEVICES)
    live.dealt = HashTable(64, name="d", devices=DEVICES, partitioner=partition)
    keys = np.arange(8000)

    def fill(seed: int) -> None:
        random = np.random.default_rng(seed)
        for table in (live.table, live.dealt):
            table.clear()
            table.upsert(keys, random.normal(size=[len(keys), 64]))

    def content() -> Content:
        return {
            f"{name} {part}": np.sum(value)
            for name in ("table", "dealt")
            for part, value in of_table(getattr(live, name)).items()
            if part.startswith("rows")
        }

    def prepare(folder: pathlib.Path) -> None:
        fill(A)
        tf.train.Checkpoint(model=live).write(str(folder / "ckpt"))

    contents = []
    for seed in (A, B):
        fill(seed)
        contents.append(content())
    return Operation(
        act=lambda folder: (
            tf.train.Checkpoint(model=live)
            .read(str(folder / "ckpt"))
            .assert_existing_objects_matched()
        ),
        prepare=prepare,
        live=content,
        outcomes=(contents[1:], contents[:1]),
        reset=lambda: fill(B),
    )


def verifications() -> Operation:
    operation = small_restores()

    def verify(folder: pathlib.Path) -> None:
        tfembed.checkpoint.verify(folder / "ckpt")

    before, _ = operation.outcomes
    return dataclasses.replace(
        operation, act=verify, outcomes=(before, before), reset=lambda: None
    )


def exports() -> Operation:
    live = tf.Module()
    live.table = HashTable(3, name="t", devices=DEVICES)
    live.table.attach(optimizers.Adagrad(0.1))
    live.texts = StringTable(2, name="texts")
    keys = np.arange(50)
    live.table.apply_gradients(keys, tf.ones([50, 3]))
    live.texts.upsert(keys, [["x", f"{k}"] for k in keys])
    live.look = tf.function(
        lambda keys: (live.table.lookup(keys)[0], live.texts.lookup(keys)[0]),
        input_signature=[tf.TensorSpec([None], tf.int64)],
    )

    def content() -> Content:
        return {**of_table(live.table), "texts": of_table(live.texts)}

    def export(folder: pathlib.Path) -> None:
        tf.saved_model.save(live, str(folder / "model"))

    def looked_up(module: Any) -> Content:
        rows, texts = module.look(tf.constant(keys, tf.int64))
        return {"rows": rows.numpy().tolist(), "texts": texts.numpy().tolist()}

    def saved(folder: pathlib.Path) -> Content:
        try:
            return looked_up(tf.saved_model.load(str(folder / "model")))
        except (OSError, tf.errors.OpError):
            return {}

    before, rows = content(), looked_up(live)
    return Operation(
        act=export,
        prepare=lambda folder: None,
        live=content,
        outcomes=([before], [before]),
        saved=saved,
        saved_outcomes=([{}, rows], [rows]),
    )


def _variable(**options: Any) -> de.Variable:
    return de.Variable(dim=2, name="v", devices=DEVICES, **options)


def _fill(variable: de.Variable, seed: int) -> None:
    keys = np.arange(seed, 40 * seed, seed)
    variable.clear()
    variable.upsert(keys, seed + np.stack([keys, -keys], 1).astype(np.float32))


def _rows(*seeds: int) -> Content:
    """The content of a variable that was filled so, one after the other."""
    rows = {}
    for seed in seeds:
        for k in range(seed, 40 * seed, seed):
            rows[k] = [float(seed + k), float(seed - k)]
    keys = sorted(rows)
    return {"rows 0": keys, "rows 1": [rows[k] for k in keys]}


def _content(variable: de.Variable) -> Content:
    return _in_order("rows", [x.numpy() for x in variable.export()])


def raw_saves(append: bool = False, **options: Any) -> Operation:
    live, fresh = _variable(), _variable()

    def save(folder: pathlib.Path) -> None:
        live.save_to_file_system(folder, append_to_file=append, **options)

    def prepare(folder: pathlib.Path) -> None:
        _fill(live, A)
        save(folder)
        _fill(live, B)

    def saved(folder: pathlib.Path) -> Content:
        fresh.clear()
        fresh.load_from_file_system(folder, **options)
        return _content(fresh)

    new = _rows(A, B) if append else _rows(B)
    return Operation(
        act=save,
        prepare=prepare,
        live=lambda: _content(live),
        outcomes=([_rows(B)], [_rows(B)]),
        saved=saved,
        saved_outcomes=([_rows(A), new], [new]),
        says_whether=True,
    )


def raw_appends() -> Operation:
    return raw_saves(append=True)


def raw_saves_of_two_sets() -> Operation:
    return raw_saves(file_name_list=["first", "second"])


def raw_loads(**options: Any) -> Operation:
    live = _variable(**options)

    def load(folder: pathlib.Path) -> None:
        live.load_from_file_system(folder, load_entire_dir=True)

    def prepare(folder: pathlib.Path) -> None:
        _fill(live, A)
        live.save_to_file_system(folder)
        _fill(live, B)

    return Operation(
        act=load,
        prepare=prepare,
        live=lambda: _content(live),
        outcomes=([_rows(B)], [_rows(B, A)]),
        reset=lambda: _fill(live, B),
    )


def dealt_raw_loads() -> Operation:
    return raw_loads(partitioner=partition)


def raw_loads_in_functions() -> Operation:
    operation = raw_loads()
    live = _variable()
    functions: dict[pathlib.Path, Any] = {}

    def load(folder: pathlib.Path) -> None:
        if folder not in functions:
            functions[folder] = tf.function(
                lambda: live.load_from_file_system(str(folder)),
                autograph=False,
            )
        functions[folder]()

    return dataclasses.replace(
        operation,
        act=load,
        live=lambda: _content(live),
        reset=lambda: _fill(live, B),
    )


class _Graph:
    """A program of TensorFlow 1 with two variables and a Saver."""

    def __init__(self) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.variables = [
                de.Variable(dim=2, name=name, devices=DEVICES, **options)
                for name, options in {
                    "v": {},
                    "w": {"eviction": policies.LeastRecent()},
                }.items()
            ]
            self.saver = v1.train.Saver(max_to_keep=1)
            self.filled = {
                seed: [self._filled(v, seed) for v in self.variables]
                for seed in (A, B)
            }
            self.exported = [v.export() for v in self.variables]
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())

    @staticmethod
    def _filled(variable: de.Variable, seed: int) -> Any:
        keys = np.arange(seed, 40 * seed, seed)
        rows = seed + np.stack([keys, -keys], 1).astype(np.float32)
        with tf.control_dependencies([variable.clear()]):
            return variable.upsert(keys, rows)

    def fill(self, seed: int) -> None:
        self.session.run(self.filled[seed])

    def content(self) -> Content:
        return {
            f"{i} {name}": value
            for i, exported in enumerate(self.session.run(self.exported))
            for name, value in _in_order("rows", list(exported)).items()
        }

    def save(self, folder: pathlib.Path) -> None:
        with self.graph.as_default():
            self.saver.save(self.session, str(folder / "ckpt"))

    def restore(self, folder: pathlib.Path) -> None:
        with self.graph.as_default():
            self.saver.restore(self.session, str(folder / "ckpt"))

    @staticmethod
    def rows(seed: int) -> Content:
        return {
            f"{i} {name}": value
            for i in range(2)
            for name, value in _rows(seed).items()
        }


def graph_saves() -> Operation:
    live, fresh = _Graph(), _Graph()
    numbers = itertools.count()

    def saved_before(folder: pathlib.Path) -> list[pathlib.Path]:
        return sorted(folder.glob("*.index"))

    def save(folder: pathlib.Path) -> None:
        with live.graph.as_default():
            old = [(str(p.with_suffix("")), 0.0) for p in saved_before(folder)]
            live.saver.set_last_checkpoints_with_time(old)
            live.saver.save(live.session, str(folder / "ckpt"), next(numbers))

    def prepare(folder: pathlib.Path) -> None:
        live.fill(A)
        save(folder)
        live.fill(B)

    def saved(folder: pathlib.Path) -> Content:
        with fresh.graph.as_default():
            path = tf.train.latest_checkpoint(str(folder))
            fresh.saver.restore(fresh.session, path)
        return fresh.content()

    old, new = live.rows(A), live.rows(B)
    return Operation(
        act=save,
        prepare=prepare,
        live=live.content,
        outcomes=([new], [new]),
        saved=saved,
        saved_outcomes=([old, new], [new]),
    )


def graph_restores() -> Operation:
    live = _Graph()

    def prepare(folder: pathlib.Path) -> None:
        live.fill(A)
        live.save(folder)
        live.fill(B)

    return Operation(
        act=live.restore,
        prepare=prepare,
        live=live.content,
        outcomes=([live.rows(B)], [live.rows(A)]),
        reset=lambda: live.fill(B),
    )


def warm_starts() -> Operation:
    live = {
        name: de.Variable(dim=2, name=name, devices=DEVICES) for name in "vw"
    }

    def act(folder: pathlib.Path) -> None:
        de.warm_start(str(folder / "ckpt"), list(live.values()))

    def prepare(folder: pathlib.Path) -> None:
        program = _Graph()
        program.fill(A)
        program.save(folder)

    def content() -> Content:
        return {
            f"{i} {name}": value
            for i, variable in enumerate(live.values())
            for name, value in _content(variable).items()
        }

    def reset() -> None:
        for variable in live.values():
            _fill(variable, B)

    return Operation(
        act=act,
        prepare=prepare,
        live=content,
        outcomes=([_Graph.rows(B)], [_Graph.rows(A)]),
        reset=reset,
    )


def _keras_model() -> Any:
    import keras

    layer = de.keras.layers.SquashedEmbedding(
        embedding_size=2, name="v", key_dtype=tf.int64
    )
    model = keras.Sequential([keras.Input([1], dtype="int64"), layer])
    model(tf.zeros([1, 1], tf.int64))
    return model, layer.params


def keras_loads() -> Operation:
    model, variable = _keras_model()

    def prepare(folder: pathlib.Path) -> None:
        _fill(variable, A)
        model.save_weights(folder / "m.weights.h5")
        model.save(folder / "m.keras")

    def load(folder: pathlib.Path) -> None:
        model.load_weights(folder / "m.weights.h5")

    return Operation(
        act=load,
        prepare=prepare,
        live=lambda: _content(variable),
        # Keras may fail at another layer, or in closing its file.
        outcomes=([_rows(B), _rows(A)], [_rows(A)]),
        reset=lambda: _fill(variable, B),
        is_ours=False,
    )


OPERATIONS: dict[str, Callable[[], Operation]] = {
    make.__name__: make
    for make in (
        raw_saves,
        raw_appends,
        raw_saves_of_two_sets,
        raw_loads,
        dealt_raw_loads,
        raw_loads_in_functions,
        small_saves,
        small_restores,
        checkpoint_saves,
        checkpoint_restores,
        large_restores,
        verifications,
        exports,
        graph_saves,
        graph_restores,
        warm_starts,
        keras_loads,
    )
}


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which errors are tried at call number n."""

    names: tuple[str, ...]
    each: bool

    def at(self, n: int) -> list[tuple[str, bool]]:
        """Names, and whether all calls after it fail as well."""
        if not self.each:
            return [(self.names[n % len(self.names)], False)]
        once = [(name, False) for name in self.names]
        return [*once, (self.names[0], True)]


def try_calls(
    name: str, calls: Calls, root: pathlib.Path, choice: Choice, part: range
) -> dict[str, Any]:
    """Tries an operation with each call of a part failing; what was found.

    `part` may go beyond the last call. The answer has the number of calls.
    """
    operation = OPERATIONS[name]()
    template, folder = root / "before", root / "folder"
    template.mkdir(parents=True)
    operation.prepare(template)

    def attempt(first: int, error: int, all_after: bool) -> Any:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder)
        _adjust_state(folder, template)
        operation.reset()
        return calls.run(
            lambda: operation.act(folder), str(folder), first, all_after, error
        )

    raised, count, _ = attempt(10**9, 0, False)
    if raised is not None:
        raise raised
    tries, failed, found = 0, 0, []
    for n in part:
        if n >= count:
            break
        for error, all_after in choice.at(n):
            raised, reached, what = attempt(n, getattr(errno, error), all_after)
            if not all_after:
                count = max(count, reached)
            tries += bool(what)
            failed += raised is not None
            where = f"{error} at call {n}{' and after' * all_after}, {what}"
            try:
                problems = list(faults(operation, folder, raised, all_after))
            except Exception as broken:
                problems = [f"cannot go on: {broken!r}"]
            found += [
                f"{where}: {problem} [{str(raised)[:400]}]"
                for problem in problems
            ]
    return {"calls": count, "tries": tries, "errors": failed, "faults": found}


def _adjust_state(folder: pathlib.Path, template: pathlib.Path) -> None:
    """A checkpoint's state may name the folder that it was copied from."""
    state = folder / "checkpoint"
    if state.exists():
        text = state.read_text().replace(str(template), str(folder))
        state.write_text(text)


def main(
    library: str, root: str, names: str, which: str, name: str, *part: str
) -> None:
    calls = Calls(library)
    calls.spare_what_ends_the_process()
    choice = Choice(tuple(names.split(",")), which == "each")
    found = try_calls(
        name, calls, pathlib.Path(root), choice, range(*map(int, part))
    )
    print(json.dumps(found), flush=True)
