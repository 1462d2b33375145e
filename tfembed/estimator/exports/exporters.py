"""Exporters, which decide what SavedModels `train_and_evaluate` makes."""

from __future__ import annotations

import abc
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed.errors import ArgumentError
from tfembed.estimator.private import v1_sessions
from tfembed.estimator.runs.reports import scalars
from tfembed.estimator.spec import LOSS_METRIC_KEY

# An export's record of its evaluation, in the folder of assets.
_RECORD = "best_eval_result.json"


class Exporter(abc.ABC):
    """Decides after an evaluation whether to export the model.

    Users may derive their own classes.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the folder under `<model_dir>/export`."""

    @abc.abstractmethod
    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> bytes | None:
        """Exports an evaluated checkpoint, or does nothing.

        Args:
          estimator: The Estimator.
          export_path: The parent folder of exports.
          checkpoint_path: The checkpoint.
          eval_result: The result of the evaluation.
          is_the_final_export: Whether training has ended.

        Returns:
          The folder of the export; None if nothing was exported.
        """


class _Export:
    """Exports for serving; each exporter has an _Export."""

    def __init__(
        self,
        serving_input_receiver_fn: Callable[[], Any] | None,
        assets_extra: Mapping[str, str] | None,
        as_text: bool,
    ) -> None:
        self._receiver_fn = serving_input_receiver_fn
        self._assets_extra = assets_extra
        self._as_text = as_text

    def __call__(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        more_assets: Mapping[str, str] | None = None,
    ) -> bytes:
        assets = self._assets_extra
        if more_assets:
            assets = {**(assets or {}), **more_assets}
        exported: bytes = estimator.export_saved_model(
            export_path,
            self._receiver_fn,
            assets_extra=assets,
            as_text=self._as_text,
            checkpoint_path=checkpoint_path,
        )
        return exported


def _loss_smaller(
    best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]
) -> bool:
    """Returns whether the current loss is smaller than the best one."""
    for name, result in (
        ("best_eval_result", best_eval_result),
        ("current_eval_result", current_eval_result),
    ):
        if not result or LOSS_METRIC_KEY not in result:
            raise ArgumentError(
                f"{name} cannot be empty or no loss is found in it. Given "
                f"{result}."
            )
    return bool(
        best_eval_result[LOSS_METRIC_KEY] > current_eval_result[LOSS_METRIC_KEY]
    )


class BestExporter(Exporter):
    """Exports a model whenever an evaluation is the best one so far.

    Each export has its evaluation with it, in
    `assets.extra/best_eval_result.json`; a new process reads that of the newest
    export and goes on from there. An evaluation whose loss is NaN, as one of
    no rows has, is never the best.

    Args:
      name: The name of the folder of exports.
      serving_input_receiver_fn: Returns a `ServingInputReceiver`.
      event_file_pattern: The pattern of earlier evaluations' files under
        model_dir. A new process reads the best one of them where exports, of
        another program, have no evaluations with them; None: it starts without.
      compare_fn: A function of `best_eval_result` and `current_eval_result`
        that returns whether the current one is better.
      assets_extra: Files to copy, by their path under `assets.extra`.
      as_text: Whether to write the SavedModel's proto as text.
      exports_to_keep: The number of newest exports to keep; None: all.

    Raises:
      ValueError: `compare_fn` has other arguments, or `exports_to_keep` is not
        positive.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Callable[..., bool] = _loss_smaller,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        _check_compare_fn(compare_fn)
        _check_kept(exports_to_keep)
        self._name = name
        self._compare_fn = compare_fn
        self._export = _Export(serving_input_receiver_fn, assets_extra, as_text)
        self._event_file_pattern = event_file_pattern
        self._exports_to_keep = exports_to_keep
        self._export_path: str | None = None
        self._best: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The name of the folder of exports."""
        return self._name

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> bytes | None:
        """Exports if the evaluation is the best one so far."""
        if _is_nan(eval_result):
            tf.compat.v1.logging.warn(
                "No best export of %s: the loss of its evaluation is NaN, as "
                "it saw no rows, or the model has diverged.",
                checkpoint_path,
            )
            return None
        if self._export_path != export_path:
            self._export_path = export_path
            self._best = self._best_so_far(
                export_path, estimator.model_dir, eval_result
            )
        if self._best is not None and not self._compare_fn(
            best_eval_result=self._best, current_eval_result=eval_result
        ):
            return None
        tf.compat.v1.logging.info("Performing best model export.")
        with tempfile.TemporaryDirectory() as folder:
            record = pathlib.Path(folder) / _RECORD
            record.write_text(_text_of(eval_result), encoding="utf-8")
            exported = self._export(
                estimator, export_path, checkpoint_path, {_RECORD: str(record)}
            )
        self._best = eval_result
        remove_old_exports(export_path, self._exports_to_keep)
        return exported

    def _best_so_far(
        self, export_path: str, model_dir: str, current: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Returns the evaluation that a better one must beat; None: any does."""
        exports = _exports(export_path)
        if not exports:
            return None
        found = _record_of(exports[-1])
        if found is None and self._event_file_pattern:
            tf.compat.v1.logging.info("Loading best metric from event files.")
            found = self._best_of_files(
                f"{model_dir}/{self._event_file_pattern}"
            )
            # The current evaluation is in the files, and may be the best.
            if found is not None and all(
                name in current and np.array_equal(current[name], value)
                for name, value in found.items()
            ):
                return None
        return found

    def _best_of_files(self, pattern: str) -> dict[str, Any] | None:
        best: dict[str, Any] | None = None
        for path in tf.io.gfile.glob(pattern):
            for result in _results(path):
                if not _is_nan(result) and (
                    best is None
                    or self._compare_fn(
                        best_eval_result=best, current_eval_result=result
                    )
                ):
                    best = result
        return best


class FinalExporter(Exporter):
    """Exports a model once, after training.

    Args:
      name: The name of the folder of exports.
      serving_input_receiver_fn: Returns a `ServingInputReceiver`.
      assets_extra: Files to copy, by their path under `assets.extra`.
      as_text: Whether to write the SavedModel's proto as text.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        self._name = name
        self._export = _Export(serving_input_receiver_fn, assets_extra, as_text)

    @property
    def name(self) -> str:
        """The name of the folder of exports."""
        return self._name

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> bytes | None:
        """Exports if training has ended."""
        if not is_the_final_export:
            return None
        tf.compat.v1.logging.info(
            "Performing the final export in the end of training."
        )
        return self._export(estimator, export_path, checkpoint_path)


class LatestExporter(Exporter):
    """Exports a model after each evaluation.

    Args:
      name: The name of the folder of exports.
      serving_input_receiver_fn: Returns a `ServingInputReceiver`.
      assets_extra: Files to copy, by their path under `assets.extra`.
      as_text: Whether to write the SavedModel's proto as text.
      exports_to_keep: The number of newest exports to keep; None: all.

    Raises:
      ValueError: `exports_to_keep` is not positive.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        _check_kept(exports_to_keep)
        self._name = name
        self._export = _Export(serving_input_receiver_fn, assets_extra, as_text)
        self._exports_to_keep = exports_to_keep

    @property
    def name(self) -> str:
        """The name of the folder of exports."""
        return self._name

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> bytes | None:
        """Exports."""
        exported = self._export(estimator, export_path, checkpoint_path)
        remove_old_exports(export_path, self._exports_to_keep)
        return exported


def remove_old_exports(folder: str, kept: int | None) -> None:
    """Deletes exports (folders named by timestamp) except the newest ones."""
    if kept is None:
        return
    for path in _exports(folder)[:-kept]:
        try:
            tf.io.gfile.rmtree(path)
        except tf.errors.NotFoundError as error:
            tf.compat.v1.logging.warn(
                "Can not delete %s recursively: %s", path, error
            )


def _exports(folder: str) -> list[str]:
    """Returns the paths of exports, folders named by timestamp, in order."""
    if not tf.io.gfile.isdir(folder):
        return []
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(folder)]
    return [
        os.path.join(tf.compat.as_str_any(folder), name)  # noqa: PTH118 - may be gs:
        for name in sorted(names)
        if len(name) == 10 and name.isdigit()
    ]


def _is_nan(result: Mapping[str, Any]) -> bool:
    return bool(np.all(np.isnan(result.get(LOSS_METRIC_KEY, 0.0))))


def _text_of(result: Mapping[str, Any]) -> str:
    """Returns an evaluation's numbers as JSON, without serialized summaries."""
    values = {name: np.asarray(value) for name, value in result.items()}
    return json.dumps(
        {
            name: value.tolist()
            for name, value in values.items()
            if value.dtype.kind in "biuf"
        },
        indent=1,
    )


def _record_of(export: str) -> dict[str, Any] | None:
    """Returns the evaluation of an export; None if it has none with it."""
    path = f"{export}/assets.extra/{_RECORD}"
    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path) as file:
        values = json.loads(file.read())
    return {name: np.asarray(value)[()] for name, value in values.items()}


def _results(path: str) -> Iterator[dict[str, Any]]:
    """Yields the evaluations of an event file."""
    for event in tf.compat.v1.train.summary_iterator(path):
        result = scalars(event)
        if result:
            yield result


def _check_compare_fn(compare_fn: Any) -> None:
    if compare_fn is None:
        raise ArgumentError(
            "`compare_fn` must not be None. Leave it out to compare losses."
        )
    arguments = set(v1_sessions.fn_args(compare_fn))
    wanted = {"best_eval_result", "current_eval_result"}
    for name in sorted(wanted - arguments):
        raise ArgumentError(
            f"compare_fn ({compare_fn}) must include {name} argument."
        )
    if arguments - wanted:
        raise ArgumentError(
            f"compare_fn ({compare_fn}) has following not expected args: "
            f"{sorted(arguments - wanted)}. It gets {sorted(wanted)}."
        )


def _check_kept(exports_to_keep: int | None) -> None:
    if exports_to_keep is not None and exports_to_keep <= 0:
        raise ArgumentError(
            "`exports_to_keep`, if provided, must be a positive number. Got "
            f"{exports_to_keep}. None keeps all."
        )
