"""The demo, from flags to a served model."""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf
from rich.console import Console

import tfembed
from criteo import evaluation, report, serving
from criteo.checkpoints import Checkpoints
from criteo.click_model import ClickModel, ModelOptions
from criteo.data import Data, open_data
from criteo.interrupt import Interrupt
from criteo.pipeline import Pipeline
from criteo.progress import ProgressView
from criteo.source import Position
from criteo.training import Trainer, TrainingOptions

_TOLERANCE = 1e-6


class Demo:
    """One run of the demo.

    Args:
      flags: of `criteo.flags`.
      started: when the process was, by time.monotonic().
    """

    def __init__(self, flags: argparse.Namespace, *, started: float) -> None:
        self._flags = flags
        self._started = started
        self._console = Console(highlight=False, soft_wrap=True)
        self._is_temporary = flags.checkpoint_dir is None
        self._interrupt = Interrupt()

    def run(self) -> int:
        """Trains, evaluates, exports and serves; the exit code.

        Raises:
          tfembed.errors.TfembedError: the data or a checkpoint is at fault.
          serving.ServingError: the exported model could not be served.
          OSError: a directory cannot be written.
        """
        data = open_data(self._flags)
        self._print_head(data)
        with self._directory() as directory:
            with self._interrupt.watched():
                trainer = self._train_in(directory, data)
            if trainer is None:
                return self._leave(directory)
            self._report(trainer.model, data)
            exit_code = self._serve(trainer.model, data)
        self._say(f"Done in {time.monotonic() - self._started:.0f} s.")
        return exit_code

    @contextmanager
    def _directory(self) -> Iterator[str]:
        """For checkpoints; a temporary one is kept only after Ctrl-C."""
        for kept in (self._flags.checkpoint_dir, self._flags.export_dir):
            if kept:  # Better now than after the training.
                _make_directory(kept)
        if not self._is_temporary:
            yield self._flags.checkpoint_dir
            return
        directory = tempfile.mkdtemp(prefix="criteo_dlrm_")
        try:
            yield directory
        finally:
            if not self._interrupt.requested:
                shutil.rmtree(directory, ignore_errors=True)

    def _print_head(self, data: Data) -> None:
        seconds = time.monotonic() - self._started
        self._say(
            f"[bold]DLRM on {data.title}[/bold]\n"
            f"tfembed {tfembed.__version__}, TensorFlow {tf.__version__} "
            f"(loaded in {seconds:.0f} s), {os.cpu_count()} CPUs, "
            f"batches of {data.batch_size:,}, 26 hash tables"
        )

    def _train_in(self, directory: str, data: Data) -> Trainer | None:
        """Goes on from the directory's checkpoint to the end of the data.

        A run that nobody will go on from shows what it would be like: it stops
        half-way, and a new model goes on from the checkpoint.

        Returns:
          None after Ctrl-C.
        """
        stops = [data.total_steps]
        if self._is_temporary and data.total_steps:
            stops.insert(0, data.total_steps // 2)
        for stop in stops:
            if stop is not stops[0]:
                self._say("Stopped half-way, to show how a new model goes on:")
            trainer = self._trainer(data)
            checkpoints = Checkpoints(
                trainer, directory, fingerprint=self._fingerprint(data)
            )
            self._resume(checkpoints, trainer, data)
            self._train(trainer, checkpoints, data, stop)
            if self._interrupt.requested:
                return None
        return trainer

    def _fingerprint(self, data: Data) -> str:
        """What must be the same for a run to go on from a checkpoint."""
        return (
            f"{data.source.fingerprint()}, in batches of {data.batch_size}, "
            f"seed {self._flags.seed}"
        )

    def _trainer(self, data: Data) -> Trainer:
        model = ClickModel(ModelOptions(seed=self._flags.seed))
        return Trainer(
            model,
            TrainingOptions(
                batch_size=data.batch_size,
                total_steps=data.total_steps,
                freeze_embeddings=self._flags.freeze_embeddings,
            ),
        )

    def _resume(
        self, checkpoints: Checkpoints, trainer: Trainer, data: Data
    ) -> None:
        path = checkpoints.restore()
        if path is not None:
            position = Position(*trainer.position.numpy().tolist())
            self._say(
                f"Resumed from {path}: step {int(trainer.step):,}, "
                f"{data.source.describe(position)}"
            )
        elif not self._is_temporary:
            self._say(
                f"No checkpoint in {self._flags.checkpoint_dir} yet: "
                "training from the beginning"
            )

    def _train(
        self,
        trainer: Trainer,
        checkpoints: Checkpoints,
        data: Data,
        stop: int | None,
    ) -> None:
        """Trains to step `stop`, the end of the data or Ctrl-C, and saves."""
        size = data.batch_size
        view = ProgressView(
            self._console,
            done=int(trainer.step) * size,
            total=data.total_steps and data.total_steps * size,
        )
        saved = int(trainer.step)
        with view.shown():
            for progress in trainer.run(Pipeline(data.source, size), stop):
                view.advance(
                    progress.steps * size,
                    loss=progress.loss,
                    auc=evaluation.auc(
                        progress.labels.numpy(), progress.logits.numpy()
                    ),
                )
                if int(trainer.step) - saved >= self._flags.checkpoint_every:
                    checkpoints.save()
                    saved = int(trainer.step)
                if self._interrupt.requested:
                    break
        data.require_steps(int(trainer.step))
        if int(trainer.step) > saved:
            checkpoints.save()
        self._say(
            f"Trained on {view.examples:,} examples in {view.seconds:.1f} s: "
            f"{view.examples / view.seconds:,.0f} examples/s"
            if view.examples
            else "All examples were trained on before"
        )

    def _leave(self, directory: str) -> int:
        self._say(
            "[bold]Interrupted[/bold]; all is saved. To go on from here, add "
            f"--checkpoint_dir={directory}"
        )
        return 130

    def _report(self, model: ClickModel, data: Data) -> None:
        if data.skipped is not None:
            report.print_skipped(self._console, data.skipped)
        report.print_tables(self._console, model)
        start = time.monotonic()
        found = evaluation.evaluate(
            model, data.source, most_examples=self._flags.evaluation_examples
        )
        report.print_evaluation(
            self._console, found, frozen=self._flags.freeze_embeddings
        )
        self._say(f"Evaluated in {time.monotonic() - start:.1f} s")

    def _serve(self, model: ClickModel, data: Data) -> int:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="criteo_export_") as scratch:
            directory = self._flags.export_dir or scratch
            serving.export(model, directory)
            exported = time.monotonic()
            requests = next(data.requests())
            difference = serving.largest_difference(model, directory, requests)
        kept = f" to {directory}" if self._flags.export_dir else ""
        agrees = difference <= _TOLERANCE
        self._say(
            f"Exported a SavedModel{kept} in {exported - start:.1f} s; a fresh "
            f"process loaded it and scored {len(requests.positions):,} raw "
            f"examples in {time.monotonic() - exported:.1f} s: largest "
            f"difference [bold]{difference:.1e}[/bold], "
            + ("as it should be" if agrees else f"more than {_TOLERANCE}")
        )
        return 0 if agrees else 1

    def _say(self, text: str) -> None:
        self._console.print(text)


def _make_directory(path: str) -> None:
    try:
        pathlib.Path(path).mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(
            f"{path} is a file; name a directory, or one that can be made"
        ) from None
