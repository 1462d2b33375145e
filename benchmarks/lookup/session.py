"""What a contender's process can be told to do; it times itself."""

from __future__ import annotations

import importlib
import resource
import statistics
from typing import Any

from benchmarks import measure
from benchmarks.lookup import workload

_MODULES = {
    "tfembed": ("tfembed_tables", "Static"),
    "tfembed hash": ("tfembed_tables", "Hash"),
    "tfembed ops": ("tfembed_tables", "Ops"),
    "TensorFlow": ("stock", "Stock"),
    "TFRA": ("tfra", "Tfra"),
    "EmbeddingBag": ("torch_tables", "EmbeddingBag"),
    "FBGEMM": ("torch_tables", "Fbgemm"),
    "FBGEMM row-wise": ("torch_tables", "FbgemmRowWise"),
    "IPEX": ("ipex_tables", "Merged"),
    "zentf": ("stock", "Stock"),
    "zentf safe": ("stock", "Safe"),
    "zentf frozen": ("stock", "Frozen"),
    "TensorFlow frozen": ("stock", "Frozen"),
    "limit": ("limit", "Limit"),
}
_WITH_TENSORFLOW = {"tfembed_tables", "stock", "tfra"}


class Session:
    """One contender's tables and runs.

    Args:
      contender: a name of `_MODULES`.
      threads: that it may use.
    """

    def __init__(self, contender: str, threads: int) -> None:
        name, kind = _MODULES[contender]
        if name in _WITH_TENSORFLOW:
            measure.set_threads(threads)
        module = importlib.import_module(f"benchmarks.lookup.{name}")
        self._kind = getattr(module, kind)
        self._threads = threads
        self._tells = contender == "limit"
        self._tables: Any = None
        self._runs: dict[str, tuple[int, Any]] = {}

    def open(self, **tables: Any) -> None:
        """Makes the tables: fields of `workload.Tables`."""
        self._tables = self._kind(workload.Tables(**tables), self._threads)

    def settle(self, name: str) -> None:
        """Runs `name` once, and waits for what that sets going."""
        self._runs[name][1]()
        if self._tables.moves_to_huge_pages:
            measure.wait_for_huge_pages()

    def prepare(self, name: str, form: str, folder: str, **work: Any) -> bool:
        """Makes the run `name`.

        Args:
          name: for `run`.
          form: how steps are called: "loop", "call" or "eager", and what of
            with " sparse" or " ragged": packed is without.
          folder: where batches are kept.
          work: fields of `workload.Work`.

        Returns:
          Whether the contender has this form.
        """
        work = workload.Work(**work)
        table = self._tables
        if not table.has(form, train=work.train):
            return False
        batches = workload.batches(table.tables, work, folder)
        run = table.rounds(batches, form, train=work.train)
        self._runs[name] = len(batches), run
        return True

    def run(self, name: str) -> float:
        """Seconds a step of the run `name`, over a round."""
        count, run = self._runs[name]
        return measure.seconds_of(run, tells=self._tells) / count

    def faults(self, name: str, rounds: int) -> float:
        """Page faults a step of the run `name`, which has run before.

        The median of the rounds: malloc gives each thread memory of its own, and
        which one of TensorFlow's threads runs an op is chance. So a round now and
        then has faults when a thread meets an op for the first time.
        """
        count, run = self._runs[name]
        found = []
        for _ in range(rounds):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            run()
            after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            found.append((after - before) / count)
        return statistics.median(found)

    def peak(self, name: str, rounds: int) -> int:
        """Bytes of resident memory that the run needs beyond what is there.

        Whatever the run was used for before, its first round must be in here.
        """
        _, run = self._runs[name]
        before = measure.resident_bytes()
        measure.reset_peak()
        for _ in range(rounds):
            run()
        return measure.peak_bytes() - before

    def forget(self) -> None:
        """Drops the runs and their batches."""
        self._runs.clear()
