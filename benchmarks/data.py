"""Rows per second and memory of the readers of data, beside their peers.

    make bench-data

Each reader runs in a process of its own, in turn, ROUNDS times. It reads a file
of FEW rows first: the CPU time and the memory are those beyond that. The rate is
of the fastest round: it is the same on a busy machine. `before` is the reader of
commit BEFORE.
"""

from __future__ import annotations

import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
BEFORE = "df1b293"
ROWS = {"csv": 400_000, "criteo": 100_000, "parquet": 1_000_000}
FEW = 10
ROUNDS = 3
BATCH = 4096
COLUMNS = {"user": "string", "item": "int64", "price": "float32", "y": "int32"}
READERS = {
    "csv": ["tfembed", "before", "pandas.read_csv", "make_csv_dataset"],
    "criteo": ["tfembed", "before", "pandas.read_csv", "make_csv_dataset"],
    "parquet": ["tfembed", "before", "pandas.read_parquet"],
}


def write(form: str, path: pathlib.Path, rows: int) -> None:
    """Writes a file of random rows."""
    import numpy as np
    import pandas as pd

    draw = np.random.default_rng(0)
    if form == "criteo":
        columns = {"label": draw.integers(2, size=rows)}
        for i in range(13):
            columns[f"I{i + 1}"] = draw.integers(1000, size=rows)
        texts = np.array([f"{i * 2654435761 % 2**32:08x}" for i in range(5000)])
        for i in range(26):
            columns[f"C{i + 1}"] = draw.choice(texts, rows)
        pd.DataFrame(columns).to_csv(path, sep="\t", index=False)
        return
    frame = pd.DataFrame(
        {
            "user": np.char.add(
                "u", draw.integers(10**6, size=rows).astype(str)
            ),
            "item": draw.integers(2**62, size=rows),
            "price": draw.random(rows).astype(np.float32),
            "y": draw.integers(2, size=rows).astype(np.int32),
        }
    )
    if form == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, row_group_size=100_000)


def readers_before(folder: pathlib.Path) -> None:
    """Puts the readers of commit BEFORE into `folder`, as `data_before`."""
    names = ["__init__", "criteo", "logs", "movielens", "tabular"]
    (folder / "data_before").mkdir()
    for name in names:
        text = subprocess.run(
            ["git", "show", f"{BEFORE}:tfembed/data/{name}.py"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        text = text.replace("tfembed.data", "data_before")
        (folder / "data_before" / f"{name}.py").write_text(text)


def _reader(form: str, name: str, path: str) -> Callable[[], Any]:
    if name.startswith("pandas"):
        import pandas as pd

        if form == "parquet":
            return lambda: [pd.read_parquet(path)]
        separator = "\t" if form == "criteo" else ","
        return lambda: pd.read_csv(path, sep=separator, chunksize=BATCH)
    import tensorflow as tf

    if name == "make_csv_dataset":
        label, separator = ("label", "\t") if form == "criteo" else ("y", ",")
        return lambda: tf.data.experimental.make_csv_dataset(
            path,
            BATCH,
            label_name=label,
            field_delim=separator,
            num_epochs=1,
            shuffle=False,
        )
    if name == "before":
        import data_before as data
    else:
        from tfembed import data
    if form == "criteo":
        return lambda: data.criteo(path, BATCH)
    read = getattr(data, form)
    return lambda: read(path, COLUMNS, BATCH, label="y")


def run(form: str, name: str, path: str) -> None:
    """Reads a file; prints the CPU and wall seconds and the peak's bytes."""
    for batch in _reader(form, name, f"{path}.few")():
        del batch
    read = _reader(form, name, path)
    start, wall = time.process_time(), time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for batch in read():
        del batch
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = time.process_time() - start, time.monotonic() - wall
    print(json.dumps([*seconds, (peak - before) * 1024]))


def main() -> None:
    """Prints a table of all readers."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        readers_before(folder)
        figures: dict[tuple[str, str], list[list[float]]] = {}
        for form, rows in ROWS.items():
            write(form, folder / form, rows)
            write(form, folder / f"{form}.few", FEW)
        for _ in range(ROUNDS):
            for form, names in READERS.items():
                for reader in names:
                    arguments = [form, reader, str(folder / form)]
                    output = subprocess.run(
                        [sys.executable, __file__, *arguments],
                        env={
                            "PYTHONPATH": f"{ROOT}:{folder}",
                            "TF_CPP_MIN_LOG_LEVEL": "3",
                        },
                        check=True,
                        capture_output=True,
                        text=True,
                    ).stdout
                    one = json.loads(output.splitlines()[-1])
                    figures.setdefault((form, reader), []).append(one)
    print("format   reader             rows/s of CPU time    peak   tfembed's")
    for (form, reader), measured in figures.items():
        rates = [
            ROWS[form] / min(one[0] for one in figures[form, who])
            for who in (reader, "tfembed")
        ]
        peak = min(one[2] for one in measured) / 1e6
        ratio = rates[1] / rates[0]
        print(
            f"{form:8} {reader:18} {rates[0]:15,.0f} {peak:12,.1f} MB"
            f" {ratio:8.2f} x"
        )


if __name__ == "__main__":
    run(*sys.argv[1:]) if len(sys.argv) > 1 else main()
