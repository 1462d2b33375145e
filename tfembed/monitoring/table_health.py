"""The health of one table: its content, and how it is used and trained."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfembed.monitoring.found_tables import FoundTable
from tfembed.ops import table as table_ops
from tfembed.printing.printed_text import key_text
from tfembed.tables import HashTable
from tfembed.tables.table_stats import TableStats

__all__ = [
    "NOT_MADE",
    "TableHealth",
    "as_key",
    "gather_rows",
    "health_of_coming_table",
    "health_of_table",
    "hottest_rows",
    "largest",
    "spread_rows",
]

NOT_MADE = "not made yet"  # A kind of table.

# The quantiles to show, by name.
QUANTILES = {"min": 0.0, "p5": 0.05, "median": 0.5, "p95": 0.95, "max": 1.0}


@dataclasses.dataclass(frozen=True, eq=False)
class TableHealth:
    """One table: its content, costs and uses. None means unknown.

    Attributes:
      name: the name of the table.
      kind: "hash table", "variable", "strings", "saved table" or "not made
        yet".
      key_dtype, dtype: the dtypes of the keys and of a row's elements.
      width: the number of elements of a row.
      rows: the number of rows; the vocabulary of a variable.
      shards: the number of a hash table's shards.
      max_rows: the bound on the number of rows.
      optimizer, admission, eviction, expiry: a description of each.
      bytes: the bytes by kind: "values", "slots", "notes" (counters of the
        eviction policy), "index", "policies" and "free" (room for more rows).
      counts: "hits" and "misses" of looked-up keys; "inserted" by training,
        "refused" by the admission policy, "evicted", and "nan_rows" written.
        They count from the creation of the table, or see `Health.since`.
      waiting: the number of keys that are not admitted yet.
      grown: the number of rows added; only after `Health.since`.
      skipped_updates: the number of row updates skipped because the gradient
        was not finite.
      looked_at: the number of rows of the sample below; `rows` where it has
        all.
      norms: quantiles of the Euclidean norms of values in the sample.
      nan_rows: the number of rows with a NaN in the sample.
      never_trained: the share of the sample whose slots (or values, without
        slots) are those of a new row.
      ages: quantiles of the steps or seconds since a row was touched, by
        LeastRecent; `age_unit` says which.
      touches: quantiles of how often a row was touched, by LeastFrequent.
      expiring: the share of rows that the next expiry removes.
      hottest: (key, score) pairs, the hottest first: by the most touches or
        the smallest age where these are known, else by norm. A running table
        with touches or ages ranks all rows, others only the sample.
      hottest_by: "touches", "steps since touched", "seconds since touched" or
        "norm".
      load_factor: the share of the index's places that are taken.
      mean_probe, longest_probe: the number of buckets read to find a key.
      norm_sample, worth_sample: the arrays behind the quantiles.
    """

    name: str
    kind: str
    key_dtype: str
    dtype: str
    width: int
    rows: int
    bytes: Mapping[str, int]
    shards: int | None = None
    max_rows: int | None = None
    optimizer: str | None = None
    admission: str | None = None
    eviction: str | None = None
    expiry: str | None = None
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    waiting: int | None = None
    grown: int | None = None
    skipped_updates: int | None = None
    looked_at: int = 0
    norms: Mapping[str, float] = dataclasses.field(default_factory=dict)
    nan_rows: int = 0
    never_trained: float | None = None
    ages: Mapping[str, float] = dataclasses.field(default_factory=dict)
    age_unit: str | None = None
    touches: Mapping[str, float] = dataclasses.field(default_factory=dict)
    expiring: float | None = None
    hottest: tuple[tuple[Any, float], ...] = ()
    hottest_by: str | None = None
    load_factor: float | None = None
    mean_probe: float | None = None
    longest_probe: int | None = None
    norm_sample: Any = dataclasses.field(default=None, repr=False)
    worth_sample: Any = dataclasses.field(default=None, repr=False)

    @property
    def total_bytes(self) -> int:
        """The number of bytes of all kinds."""
        return sum(self.bytes.values())

    @property
    def bytes_per_row(self) -> float | None:
        """All bytes divided by the rows; None without rows."""
        return self.total_bytes / self.rows if self.rows else None

    @property
    def hit_rate(self) -> float | None:
        """The share of looked-up keys that had a row; None without lookups."""
        asked = self.counts.get("hits", 0) + self.counts.get("misses", 0)
        return self.counts["hits"] / asked if asked else None

    def since(self, before: TableHealth) -> TableHealth:
        """Returns this table with its counts since `before`."""
        skipped = self.skipped_updates
        if skipped is not None and before.skipped_updates is not None:
            skipped -= before.skipped_updates
        return dataclasses.replace(
            self,
            grown=self.rows - before.rows,
            skipped_updates=skipped,
            counts={
                name: count - before.counts.get(name, 0)
                for name, count in self.counts.items()
            },
        )

    def findings(self) -> list[str]:
        """Returns sentences about what looks wrong."""
        found = []
        if self.nan_rows:
            found.append(
                f"{self.nan_rows:,} of the {self.looked_at:,} rows looked at "
                "have a NaN"
            )
        if self.skipped_updates:
            found.append(
                f"{self.skipped_updates:,} updates of rows were skipped: their "
                "gradients had a NaN or an infinity"
            )
        if self.norms and self.norms["max"] == 0:
            found.append(
                "all rows looked at are zero: initial rows of zeros, and no "
                "gradient came"
            )
        elif self.never_trained is not None and self.never_trained > 0.9:
            found.append(
                f"{100 * self.never_trained:.0f} % of the rows looked at were "
                "never trained"
            )
        asked = self.counts.get("hits", 0) + self.counts.get("misses", 0)
        if self.hit_rate is not None and asked >= 1000 and self.hit_rate < 0.5:
            found.append(
                f"{100 * (1 - self.hit_rate):.0f} % of the keys looked up are "
                "not there"
            )
        if self.max_rows and self.rows >= 0.99 * self.max_rows:
            found.append(
                f"the table is full: {self.rows:,} of {self.max_rows:,} rows"
            )
        if self.refused_all:
            found.append(
                "the admission policy refused all keys of training so far"
            )
        return found

    @property
    def refused_all(self) -> bool:
        """Whether training brought keys and none was admitted."""
        return (
            self.rows == 0
            and self.counts.get("refused", 0) > 0
            and self.counts.get("inserted", 0) == 0
        )

    def scalars(self) -> dict[str, float]:
        """Returns the known numbers by name, for curves over time."""
        numbers: dict[str, float | None] = {
            "rows": self.rows,
            "grown": self.grown,
            "bytes": self.total_bytes,
            "bytes_per_row": self.bytes_per_row,
            "hit_rate": self.hit_rate,
            "waiting": self.waiting,
            "skipped_updates": self.skipped_updates,
            "never_trained": self.never_trained,
            "expiring": self.expiring,
            "load_factor": self.load_factor,
            "mean_probe": self.mean_probe,
            "longest_probe": self.longest_probe,
            **{f"norm_{name}": value for name, value in self.norms.items()},
            **{f"age_{name}": value for name, value in self.ages.items()},
            **self.counts,
        }
        return {
            name: float(number)
            for name, number in numbers.items()
            if number is not None
        }

    def histograms(self) -> dict[str, Any]:
        """Returns the arrays behind the quantiles, by name."""
        samples = {"norms": self.norm_sample}
        if self.worth_sample is not None and self.ages:
            samples["ages"] = -self.worth_sample
        elif self.worth_sample is not None and self.touches:
            samples["touches"] = self.worth_sample
        return {
            name: numbers[np.isfinite(numbers)]
            for name, numbers in samples.items()
            if numbers is not None and len(numbers)
        }

    def to_dict(self) -> dict[str, Any]:
        """Returns all known numbers, in types that JSON has."""
        fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if not field.name.endswith("_sample")
        }
        fields["hottest"] = [[key, amount] for key, amount in self.hottest]
        fields["bytes"] = dict(self.bytes)
        fields["total_bytes"] = self.total_bytes
        fields["bytes_per_row"] = self.bytes_per_row
        fields["hit_rate"] = self.hit_rate
        fields["findings"] = self.findings()
        return {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in fields.items()
        }


def health_of_table(
    found: FoundTable, sample: int, hottest: int
) -> TableHealth:
    """Measures one table.

    Args:
      found: the table.
      sample: the number of rows to look at.
      hottest: the number of keys to name.
    """
    rows = found.rows
    if isinstance(rows, HashTable):
        return _of_hash_table(found, rows, sample, hottest)
    if hasattr(rows, "handles"):
        return TableHealth(
            name=found.name,
            kind="strings",
            key_dtype=rows.key_dtype.name,
            dtype=rows.value_dtype.name,
            width=rows.dim,
            rows=int(rows.size()),
            bytes={},
            shards=len(rows.shards),
        )
    return _of_variable(found, sample, hottest)


def health_of_coming_table(config: Any) -> TableHealth:
    """Describes a table that is not made yet, by its TableConfig."""
    return TableHealth(
        name=config.name,
        kind=NOT_MADE,
        key_dtype=config.key_dtype.name,
        dtype=config.dtype.name,
        width=config.dim,
        rows=0,
        bytes={},
        max_rows=config.vocabulary_size or config.max_size,
    )


def quantiles(numbers: Any) -> dict[str, float]:
    """Returns quantiles by the names in QUANTILES; empty without numbers."""
    if len(numbers) == 0:
        return {}
    at = np.quantile(numbers, list(QUANTILES.values()))
    return dict(zip(QUANTILES, at.tolist(), strict=True))


def largest(numbers: Any, most: int) -> Any:
    """Returns the positions of the largest numbers, largest first, stably."""
    if len(numbers) > most > 0:
        bound = np.partition(numbers, -most)[-most]
        places = np.flatnonzero(numbers >= bound)
    else:
        places = np.arange(len(numbers))
    return places[np.argsort(-numbers[places], kind="stable")[:most]]


def as_key(key: Any) -> Any:
    """Converts a key to an int or a str, for JSON."""
    return key_text(key) if isinstance(key, bytes) else int(key)


def _survey(table: HashTable, sample: int) -> table_ops.TableSurvey:
    """Joins the samples of all shards, each in proportion to its rows."""
    sizes = [int(table.size(i)) for i in range(len(table.shards))]
    total = sum(sizes)
    surveys = [
        table_ops.survey(
            handle,
            # Stripes differ in their number of rows.
            table_ops.ALL_ROWS
            if total <= sample
            else math.ceil(sample * size / total),
            key_dtype=table.key_dtype,
        )
        for handle, size in zip(table.handles, sizes, strict=True)
    ]
    if len(surveys) == 1:
        return surveys[0]
    *columns, counts = zip(*surveys, strict=True)
    return table_ops.TableSurvey._make(
        [*(tf.concat(column, 0) for column in columns), tf.stack(counts)]
    )


def _of_hash_table(
    found: FoundTable, table: HashTable, sample: int, hottest: int
) -> TableHealth:
    survey = _survey(table, sample)
    counts = np.atleast_2d(survey.counts.numpy())
    stats = TableStats.of_shards(
        TableStats(*shard[:-1].tolist()) for shard in counts
    )
    norms, worth = survey.norms.numpy(), survey.worth.numpy()
    looked_at = len(norms)
    used = stats.value_bytes + stats.slot_bytes + stats.meta_bytes
    knows_trained = bool(table.slot_names) or not table.is_drawn
    return TableHealth(
        name=found.name,
        kind="hash table",
        key_dtype=table.key_dtype.name,
        dtype=table.value_dtype.name,
        width=table.dim,
        rows=stats.size,
        shards=len(table.shards),
        max_rows=table.max_size,
        optimizer=_text(table.optimizer or found.optimizer),
        admission=_text(table.admission),
        eviction=_text(table.eviction),
        expiry=_text(table.expiry),
        bytes={
            "values": stats.value_bytes,
            "slots": stats.slot_bytes,
            "notes": stats.meta_bytes,
            "index": stats.index_bytes,
            "policies": stats.policy_bytes,
            "free": max(0, stats.row_bytes - used),
        },
        counts={
            "hits": stats.hits,
            "misses": stats.misses,
            "inserted": stats.admitted,
            "refused": stats.refused,
            "evicted": stats.evicted,
            "nan_rows": stats.nan_rows,
        },
        waiting=int(counts[:, -1].sum()) if table.admission else None,
        skipped_updates=found.skipped_updates,
        looked_at=looked_at,
        norms=quantiles(norms[norms >= 0]),
        nan_rows=int(np.sum(norms < 0)),
        never_trained=float(np.mean(~survey.trained.numpy()))
        if looked_at and knows_trained and table.dim
        else None,
        load_factor=stats.load_factor if stats.places else None,
        mean_probe=stats.probes / looked_at if looked_at else None,
        longest_probe=stats.longest_probe or None,
        norm_sample=norms[norms >= 0],
        worth_sample=worth if len(worth) else None,
        **_by_policy(table, worth),
        **_hottest(table, survey, hottest),
    )


def hottest_rows(table: HashTable, most: int) -> tf.Tensor:
    """Returns the keys touched most or last, where counted; else any keys."""
    if table.eviction is not None and table.eviction.notes:
        keys, worth = _top(table, most)
        return tf.constant(keys[np.argsort(-worth, kind="stable")[:most]])
    return _survey(table, most).keys[:most]


def _top(table: HashTable, most: int) -> tuple[Any, Any]:
    """Returns the best keys of each shard, and their worth."""
    tops = [
        table_ops.top(handle, most, key_dtype=table.key_dtype)
        for handle in table.handles
    ]
    keys, worth = (tf.concat(x, 0).numpy() for x in zip(*tops, strict=True))
    return keys, worth


def _by_policy(table: HashTable, worth: Any) -> dict[str, Any]:
    """Returns the fields that the eviction policy's counters give."""
    fields: dict[str, Any] = {}
    policy = table.eviction
    if policy is not None and policy.limit_is_age:
        fields |= {"ages": quantiles(-worth), "age_unit": policy.unit}
    elif policy is not None and policy.notes:
        fields["touches"] = quantiles(worth)
    if policy is not None and table.expiry is not None and len(worth):
        limit = table.expiry.limit
        past = -worth >= limit if policy.limit_is_age else worth < limit
        fields["expiring"] = float(np.mean(past))
    return fields


def _hottest(
    table: HashTable, survey: table_ops.TableSurvey, most: int
) -> dict[str, Any]:
    """Returns the hottest keys: those touched most or last, or longest."""
    if most == 0:
        return {}
    policy = table.eviction
    if policy is not None and policy.notes:
        keys, worth = _top(table, most)
        by = policy.unit + (" since touched" if policy.limit_is_age else "")
    else:
        keys, worth = survey.keys.numpy(), survey.norms.numpy()
        keys, worth = keys[worth >= 0], worth[worth >= 0]
        by = "norm"
    best = largest(worth, most)
    return {
        "hottest": tuple((as_key(keys[i]), abs(float(worth[i]))) for i in best),
        "hottest_by": by if len(best) else None,
    }


def _of_variable(found: FoundTable, sample: int, hottest: int) -> TableHealth:
    variable = found.rows
    rows, width = (int(n) for n in variable.shape)
    chosen = spread_rows(rows, sample)
    values = gather_rows(variable, chosen)
    norms = np.sqrt(np.sum(np.square(values, dtype=np.float64), 1))
    is_number = ~np.isnan(norms)
    best = largest(np.where(is_number, norms, -1), hottest)
    itemsize = variable.dtype.size
    return TableHealth(
        name=found.name,
        kind="variable",
        key_dtype="int64",
        dtype=variable.dtype.name,
        width=width,
        rows=rows,
        optimizer=_text(found.optimizer),
        bytes={
            "values": rows * width * itemsize,
            "slots": sum(
                slot.shape.num_elements() * slot.dtype.size
                for slot in found.slots.values()
            ),
        },
        skipped_updates=found.skipped_updates,
        looked_at=len(chosen),
        norms=quantiles(norms[is_number]),
        nan_rows=int(np.sum(~is_number)),
        never_trained=_never_trained(found, chosen),
        hottest=tuple(
            (int(chosen[i]), float(norms[i])) for i in best if is_number[i]
        ),
        hottest_by="norm" if len(best) else None,
        norm_sample=norms[is_number],
    )


def spread_rows(rows: int, sample: int) -> Any:
    """Returns at most `sample` row numbers below `rows`, evenly spread."""
    if rows <= sample:
        return np.arange(rows)
    bounds = np.linspace(0, rows, sample + 1).astype(np.int64)
    place = np.random.default_rng(0).random(sample)
    return bounds[:-1] + (place * np.diff(bounds)).astype(np.int64)


def gather_rows(variable: Any, rows: Any) -> Any:
    """Gathers rows of a variable, or of shards spread over replicas."""
    if hasattr(variable, "gather"):
        return variable.gather(rows).numpy()
    return tf.gather(variable, rows).numpy()


def _never_trained(found: FoundTable, rows: Any) -> float | None:
    """Returns the share of `rows` whose slots are those of a new row."""
    initial = getattr(found.optimizer, "slot_initial_values", {})
    known = [
        np.all(gather_rows(slot, rows) == np.float32(initial[name]), 1)
        for name, slot in found.slots.items()
        if name in initial
    ]
    if not known or len(rows) == 0:
        return None
    return float(np.mean(np.all(known, 0)))


def _text(description: Any) -> str | None:
    if description is None:
        return None
    rule = getattr(description, "rule_text", None)
    return str(rule()).split()[0] if rule is not None else repr(description)
