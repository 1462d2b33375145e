"""How much is measured, and how contenders are put beside each other."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import contest
from benchmarks.process import Worker
from benchmarks.results import Results

SESSION = "benchmarks.lookup.session"
ROWS = {16: 1_000_000, 64: 500_000, 128: 250_000}
COUNTS = {1: 16, 20: 4}  # Distinct batches.
# Huge pages for what is allocated by malloc, as the limit has them: the tables
# of peers, and all sides' batches, activations and gradients.
_HUGE = {**contest.HUGE_PAGES, "THP_MEM_ALLOC_ENABLE": "1"}
# The form of a peer's steps where it lacks tfembed's.
_AS_SPARSE = {"eager": "call sparse", "call": "call sparse"}
_LIKE = {
    "TensorFlow": _AS_SPARSE,
    "TensorFlow frozen": _AS_SPARSE,
    "zentf": _AS_SPARSE,
    "zentf safe": _AS_SPARSE,
    "zentf frozen": _AS_SPARSE,
    "TFRA": {"loop": "call", "eager": "call"},
}

# Seconds a step, by contender; and what they are of.
Cell = tuple[str, dict[str, float]]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
      widths: of rows.
      skews: of ids: "zipf", "uniform".
      rounds: interleaved rounds of each run.
      smaller: the tables' rows are divided by it.
      folder: for batches.
      with_downloads: whether peers take part that need environments of their
        own.
    """

    widths: Sequence[int]
    skews: Sequence[str]
    rounds: int
    smaller: int
    folder: str
    with_downloads: bool = True

    def rows(self, width: int) -> int:
        """Of each table."""
        return ROWS[width] // self.smaller

    @contextlib.contextmanager
    def workers(
        self,
        width: int,
        *names: str,
        threads: int = 2,
        environment: Mapping[str, str] | None = None,
        **tables: Any,
    ) -> Iterator[dict[str, Worker]]:
        """Contenders whose tables are there; they end with the block.

        Args:
          width: of rows.
          names: of the contenders.
          threads: that each may use.
          environment: what is set for them, in place of huge pages.
          tables: fields of `workload.Tables`.
        """
        tables = {"width": width, "rows": self.rows(width), **tables}
        with contextlib.ExitStack() as stack:
            made = {}
            for name in names:
                if name in contest.ENVIRONMENTS and not self.with_downloads:
                    continue
                if not contest.can_take_part(name):
                    continue
                given = _HUGE if environment is None else environment
                one = contest.started(
                    SESSION, name, threads=threads, variables={name: given}
                )
                made.update(stack.enter_context(one))
                made[name].call("open", **tables)
            yield made

    def compare(
        self, workers: Mapping[str, Worker], form: str, **work: Any
    ) -> dict[str, float]:
        """Median seconds a step of those workers that have the form."""
        ids = work["ids"]
        work = {"count": COUNTS[ids], **work}
        taking_part = {}
        for name, worker in workers.items():
            own = _LIKE.get(name, {}).get(form, form)
            prepared = worker.call(
                "prepare", name="run", form=own, folder=self.folder, **work
            )
            if prepared:
                taking_part[name] = worker
        rounds = self.rounds if ids == 1 else (self.rounds + 1) // 2
        for worker in taking_part.values():
            worker.call("settle", name="run")
        seconds = contest.medians(taking_part, "run", rounds=rounds)
        for worker in workers.values():
            worker.call("forget")
        return seconds

    def compare_forms(
        self, ours: Worker, forms: Sequence[str], **work: Any
    ) -> contest.Turns:
        """tfembed's steps in several forms, each a run, in turns.

        What they differ by is a few percent of a step with many ids, so these have
        three times the rounds.
        """
        rounds = self.rounds if work["ids"] == 1 else 3 * self.rounds
        work = {"count": COUNTS[work["ids"]], **work}
        for form in forms:
            ours.call(
                "prepare", name=form, form=form, folder=self.folder, **work
            )
            ours.call("settle", name=form)
        runs = {form: {"tfembed": ours} for form in forms}
        turns = contest.take_turns(runs, rounds=rounds)
        ours.call("forget")
        return turns

    def works(self, *, train: bool) -> Iterator[dict[str, Any]]:
        """The batches of the main table, one id first."""
        for ids in COUNTS:
            for skew in self.skews:
                yield {"ids": ids, "skew": skew, "train": train}


def label(width: int, work: Mapping[str, Any]) -> str:
    """What a cell is called in the tables."""
    return f"{about(work['ids'])}, width {width}, {work['skew']}"


def about(ids: int) -> str:
    """How many ids a feature has."""
    return "1 id" if ids == 1 else f"~{ids} ids"


def add_times(results: Results, what: str, seconds: dict[str, float]) -> None:
    """Prints seconds as milliseconds."""
    for contender, value in seconds.items():
        results.figures.append((what, contender, value * 1e3, "ms"))


def ratios(
    cells: Sequence[Cell], peer: str, ours: str = "tfembed"
) -> tuple[tuple[str, float], ...]:
    """tfembed's time over a peer's, where that took part."""
    return tuple(
        (what, seconds[ours] / seconds[peer])
        for what, seconds in cells
        if peer in seconds and ours in seconds
    )
