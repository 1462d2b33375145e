"""torch's EmbeddingBag and FBGEMM's tables, on the CPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.lookup import contender
from benchmarks.lookup.contender import Contender, Round
from benchmarks.lookup.workload import Batch, Tables


class TorchTables(Contender):
    """What both share."""

    def __init__(self, tables: Tables, threads: int) -> None:
        super().__init__(tables, threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)

    def rounds(
        self, batches: Sequence[Batch], form: str, *, train: bool
    ) -> Round:
        sent = [self.sent(batch) for batch in batches]
        gradient = self.sent_gradient(batches[0].size) if train else None

        def run() -> None:
            for batch in sent:
                if train:
                    self.consume(self.train(batch, gradient))
                else:
                    with torch.no_grad():
                        self.consume(self.look_up(batch))

        return run


class EmbeddingBag(TorchTables):
    """One nn.EmbeddingBag a table; optim.Adagrad on sparse gradients."""

    def __init__(self, tables: Tables, threads: int) -> None:
        super().__init__(tables, threads)
        self._bags = torch.nn.ModuleList(
            torch.nn.EmbeddingBag(
                tables.rows,
                tables.width,
                mode="mean",
                sparse=True,
                _weight=torch.full(
                    (tables.rows, tables.width), contender.VALUE
                ),
            )
            for _ in range(tables.count)
        )
        if tables.rule:
            self._optimizer = torch.optim.Adagrad(
                self._bags.parameters(),
                lr=contender.LEARNING_RATE,
                initial_accumulator_value=contender.FIRST_ACCUMULATOR,
            )

    def sent(self, batch: Batch) -> list[tuple[Any, Any]]:
        features = map(batch.feature, range(batch.features))
        return [
            (torch.from_numpy(ids.copy()), torch.from_numpy(splits[:-1].copy()))
            for ids, splits in features
        ]

    def sent_gradient(self, batch: int) -> list[Any]:
        return list(torch.from_numpy(self.gradient(batch)))

    def look_up(self, batch: Any) -> list[Any]:
        bags = list(self._bags) * (len(batch) // len(self._bags))
        return [bag(*one) for bag, one in zip(bags, batch)]

    def train(self, batch: Any, gradient: Any) -> list[Any]:
        out = self.look_up(batch)
        torch.autograd.backward(out, gradient)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return [one.detach() for one in out]

    def consume(self, out: list[Any]) -> None:
        sum(one.numpy()[0, 0] for one in out)


class Fbgemm(TorchTables):
    """SplitTableBatchedEmbeddingBags with exact Adagrad."""

    rule = "EXACT_ADAGRAD"

    def __init__(self, tables: Tables, threads: int) -> None:
        super().__init__(tables, threads)
        from fbgemm_gpu import split_table_batched_embeddings_ops_common as ops
        from fbgemm_gpu import (
            split_table_batched_embeddings_ops_training as training,
        )

        place = (ops.EmbeddingLocation.HOST, training.ComputeDevice.CPU)
        self._tables = training.SplitTableBatchedEmbeddingBagsCodegen(
            [(tables.rows, tables.width, *place)] * tables.count,
            feature_table_map=[0] * tables.features if tables.shared else None,
            optimizer=getattr(training.OptimType, self.rule),
            learning_rate=contender.LEARNING_RATE,
            eps=contender.EPSILON,
            pooling_mode=ops.PoolingMode.MEAN,
        )
        self._tables.init_embedding_weights_uniform(
            contender.VALUE, contender.VALUE
        )

    def sent(self, batch: Batch) -> tuple[Any, Any]:
        return torch.from_numpy(batch.ids), torch.from_numpy(batch.splits)

    def sent_gradient(self, batch: int) -> Any:
        width = self.tables.features * self.tables.width
        return torch.full((batch, width), contender.GRADIENT)

    def look_up(self, batch: Any) -> Any:
        return self._tables(*batch)

    def train(self, batch: Any, gradient: Any) -> Any:
        out = self._tables(*batch)
        out.backward(gradient)
        return out.detach()

    def consume(self, out: Any) -> None:
        float(np.sum(out.numpy()[0, :: self.tables.width]))


class FbgemmRowWise(Fbgemm):
    """The same with one accumulator a row."""

    rule = "EXACT_ROWWISE_ADAGRAD"
