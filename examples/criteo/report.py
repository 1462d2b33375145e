"""What the demo prints at its end."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from criteo.click_model import ClickModel
from criteo.evaluation import Evaluation
from tfembed.data import SkippedLines

_LARGEST = 8


def print_tables(console: Console, model: ClickModel) -> None:
    """The largest tables' keys and bytes, and all tables' together."""
    sizes = model.embedding.sizes()
    by_size = sorted(sizes, key=lambda name: -sizes[name].rows)
    grid = Table(title="Tables: rows, their Adagrad slots and the hash index")
    for heading in ("table", "keys", "bytes", "bytes per key"):
        grid.add_column(
            heading, justify="right" if heading != "table" else "left"
        )
    groups = [(name, [name]) for name in by_size[:_LARGEST]]
    rest = by_size[_LARGEST:]
    groups.append((f"{len(rest)} smaller ones", rest))
    groups.append((f"all {len(by_size)}", by_size))
    for label, names in groups:
        keys = sum(sizes[name].rows for name in names)
        size = sum(sizes[name].bytes for name in names)
        grid.add_row(
            label, f"{keys:,}", f"{size:,}", f"{size / max(keys, 1):.1f}"
        )
    console.print(grid)


def print_evaluation(
    console: Console, evaluation: Evaluation | None, *, frozen: bool
) -> None:
    """The AUC on held-out examples, beside the best one where it is known."""
    if evaluation is None:
        console.print("No examples are held out, so none are evaluated.")
        return
    console.print(
        f"AUC on {evaluation.examples:,} held-out examples: "
        f"[bold]{evaluation.auc:.4f}[/bold]"
        + (" (embeddings frozen)" if frozen else "")
    )
    if evaluation.best is not None:
        console.print(
            f"AUC of the planted truth on them: {evaluation.best:.4f}, the best "
            "there is; the model comes "
            f"[bold]{evaluation.share_of_best:.1%}[/bold] of the way to it "
            "from 0.5"
        )


def print_skipped(console: Console, skipped: SkippedLines) -> None:
    """How many lines were passed over, and the first ones."""
    if not skipped.count:
        console.print("No bad lines were skipped.")
        return
    console.print(f"Skipped {skipped.count:,} bad lines, among them:")
    for text in skipped.first:
        console.print(f"  {text}", markup=False, soft_wrap=True)
