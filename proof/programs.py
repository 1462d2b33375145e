"""The programs that are proven: what each looks up, trains and how large it is.

No TensorFlow in here: the programs are lowered in one environment, run and
compiled in another.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
from typing import Any

__all__ = [
    "LEARNING_RATE",
    "RULES",
    "Lowered",
    "Program",
    "at_chip_size",
    "programs",
    "read_lowered",
    "rows_of_shard",
]

# The optimizers of the package that the XLA kernels run, as in tfembed.optimizers.
RULES = (
    "SGD",
    "Adagrad",
    "AdagradMomentum",
    "Adam",
    "FTRL",
    "Momentum",
    "RMSProp",
    "CenteredRMSProp",
    "ProximalAdagrad",
    "Adadelta",
    "Lion",
    "Yogi",
    "RowWiseAdagrad",
)
LEARNING_RATE = 0.05


@dataclasses.dataclass(frozen=True)
class Program:
    """One replica's step.

    Attributes:
      name: what it is called in the tables of results.
      vocabularies: of the stacked tables.
      width: of all of them.
      features: per feature its table.
      batch, length: samples of a replica, ids of a sample and feature.
      rule: the optimizer's class; "" for a forward pass.
      combiner: "sum", "mean", "sqrtn", or "" for a sequence.
      weighted: whether ids have weights.
      buffer: ids to one replica in a round; 0: the default.
      layers: of a DLRM, bottom and top; empty for none.
      dense: the dense features of a DLRM.
      taped: "" for TPUEmbedding; of TPUEmbeddingV0, "fused" where our update rule
        moves rows, "own" where an optimizer's update does.
    """

    name: str
    vocabularies: tuple[int, ...] = (96,)
    width: int = 8
    features: tuple[int, ...] = (0,)
    batch: int = 16
    length: int = 1
    rule: str = ""
    combiner: str = "sum"
    weighted: bool = False
    buffer: int = 0
    bottom: tuple[int, ...] = ()
    top: tuple[int, ...] = ()
    dense: int = 0
    taped: str = ""

    @property
    def ids(self) -> int:
        """The ids of one replica."""
        return self.batch * len(self.features) * self.length

    @property
    def is_dlrm(self) -> bool:
        """Whether a model computes the gradients."""
        return bool(self.bottom)

    def layers(self) -> list[tuple[int, int]]:
        """Inputs and outputs of each dense layer of a DLRM, bottom first."""
        if not self.is_dlrm:
            return []
        vectors = len(self.features) + 1
        pairs = vectors * (vectors - 1) // 2
        bottom = [self.dense, *self.bottom, self.width]
        top = [self.width + pairs, *self.top, 1]
        return [
            *itertools.pairwise(bottom),
            *itertools.pairwise(top),
        ]


def programs() -> list[Program]:
    """All of them, of a size that runs anywhere."""
    tables = {"vocabularies": (40, 7, 96), "features": (0, 1, 2, 0)}
    return [
        Program("forward", length=3),
        *[
            Program(f"step, {rule}", rule=rule, length=2, batch=8)
            for rule in RULES
        ],
        Program("sequence", rule="Adagrad", combiner="", length=4, batch=8),
        Program(
            "weighted",
            rule="Adagrad",
            combiner="sqrtn",
            weighted=True,
            length=4,
        ),
        Program("weighted mean", combiner="mean", weighted=True, length=4),
        Program("stacked tables", rule="Adam", length=2, **tables),
        Program("small buffer", rule="Adagrad", length=4, buffer=2),
        Program(
            "DLRM",
            rule="Adagrad",
            vocabularies=(50,) * 6,
            features=tuple(range(6)),
            batch=8,
            bottom=(16,),
            top=(16,),
            dense=13,
        ),
        Program("V0, SGD", rule="SGD", length=2, taped="fused"),
        Program(
            "V0, Adagrad",
            rule="Adagrad",
            combiner="mean",
            weighted=True,
            length=3,
            buffer=2,
            taped="fused",
            **tables,
        ),
        Program(
            "V0, Keras' momentum",
            rule="Momentum",
            length=2,
            taped="own",
            **tables,
        ),
    ]


def at_chip_size(program: Program, ids: int = 4096) -> Program:
    """The same program as large as it would be on TPUs.

    Args:
      program: not of that size.
      ids: of a replica, where there is no model.
    """
    if program.is_dlrm:
        # 26 tables: of four chips, each has 1 GB of rows and as much of slots.
        return dataclasses.replace(
            program,
            vocabularies=(312_500,) * 26,
            features=tuple(range(26)),
            width=128,
            # The compiler takes minutes for a sort of 50,000 ids.
            batch=256,
            bottom=(512, 256),
            top=(1024, 1024, 512),
            buffer=0,
        )
    return dataclasses.replace(
        program,
        vocabularies=tuple(
            500_000 // len(program.vocabularies) for _ in program.vocabularies
        ),
        # Rows of whole lanes: others are laid out anew for each step.
        width=128,
        batch=ids // program.length // len(program.features),
        # A small one stays small beside the ids that there are now.
        buffer=64 if program.buffer else 0,
    )


def rows_of_shard(program: Program, replicas: int) -> list[int]:
    """Of each table, the rows that a replica has."""
    return [-(-size // replicas) for size in program.vocabularies]


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A program for a number of replicas, lowered to StableHLO.

    The first `state` inputs are tables, slots and dense weights; the first
    `state` outputs are their new values (none for a forward pass).

    Attributes:
      program, replicas, buffer: what it is.
      rule: the rule's text; "" for none.
      slots: per slot its name, width and initial value.
      state: how many inputs come back changed.
      at_chip_size: whether it is to be compiled, not run.
      file: its text.
    """

    program: Program
    replicas: int
    buffer: int
    rule: str
    slots: tuple[tuple[str, int, float], ...]
    state: int
    at_chip_size: bool
    file: str

    def text(self, folder: pathlib.Path) -> str:
        """The StableHLO."""
        return (folder / self.file).read_text()

    def as_json(self) -> dict[str, Any]:
        """What `read_lowered` reads."""
        return dataclasses.asdict(self)


def read_lowered(folder: pathlib.Path) -> list[Lowered]:
    """What lies in a folder of lowered programs."""
    found = []
    for entry in json.loads((folder / "programs.json").read_text()):
        fields = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in entry.pop("program").items()
        }
        entry["slots"] = tuple(tuple(slot) for slot in entry["slots"])
        found.append(Lowered(program=Program(**fields), **entry))
    return found
