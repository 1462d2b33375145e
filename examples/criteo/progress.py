"""Shows how a training goes: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

_SECONDS_BETWEEN_LINES = 5.0


class ProgressView:
    """Counts examples and shows examples per second, loss and AUC.

    Args:
      console: where to.
      done: examples that earlier runs trained on.
      total: examples in all; None if nobody knows.
    """

    def __init__(self, console: Console, *, done: int, total: int | None):
        self._console = console
        self._first = self._done = done
        self._total = total
        self._start = self._last_line = time.monotonic()
        self._bar: tuple[Progress, TaskID] | None = None
        self._traced: tuple[float, int] | None = None
        self._numbers = ""

    @contextmanager
    def shown(self) -> Iterator[ProgressView]:
        """Draws the bar, on a terminal, until the end of the `with`."""
        if not self._console.is_terminal:
            yield self
            self._print_line()
            return
        # Fits into 80 columns.
        columns = (
            BarColumn(bar_width=16),
            TextColumn("{task.fields[share]}"),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(compact=True),
        )
        with Progress(*columns, console=self._console) as bar:
            task = bar.add_task(
                "",
                total=self._total,
                completed=self._done,
                share="tracing",
                numbers="",
            )
            self._bar = bar, task
            yield self
        self._bar = None

    def advance(self, examples: int, *, loss: float, auc: float) -> None:
        """Shows that `examples` more are done."""
        self._done += examples
        self._numbers = (
            f"{self._rate():,.0f} examples/s  loss {loss:.4f}  AUC {auc:.4f}"
        )
        if self._bar is not None:
            bar, task = self._bar
            bar.update(
                task,
                completed=self._done,
                share=self._share(),
                numbers=self._numbers,
            )
        elif time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._print_line()

    @property
    def examples(self) -> int:
        """Trained on in this run."""
        return self._done - self._first

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._start

    def _rate(self) -> float:
        """Examples per second, without the first ones: they wait for tracing."""
        now = time.monotonic()
        if self._traced is None:
            self._traced = now, self._done
            return self.examples / (now - self._start)
        seconds, done = self._traced
        return (self._done - done) / (now - seconds)

    def _share(self) -> str:
        if self._total is None:
            return f"{self._done:,}"
        return f"{self._done / self._total:4.0%}"

    def _print_line(self) -> None:
        if self._numbers:
            seconds = time.monotonic() - self._start
            of = "" if self._total is None else f" of {self._total:,}"
            self._console.print(
                f"  {seconds:4.0f} s  {self._done:,}{of}  {self._numbers}"
            )
            self._last_line = time.monotonic()
            self._numbers = ""
