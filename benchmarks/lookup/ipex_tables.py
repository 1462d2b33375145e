"""Intel's merged EmbeddingBags (IPEX 2.8.0, torch 2.8.0): one op, all tables."""

from __future__ import annotations

from typing import Any

import intel_extension_for_pytorch as ipex
import numpy as np
import torch

from benchmarks.lookup import contender
from benchmarks.lookup.torch_tables import TorchTables
from benchmarks.lookup.workload import Batch, Tables


class Merged(TorchTables):
    """MergedEmbeddingBag; WithAdaGrad, which updates in its backward pass."""

    def __init__(self, tables: Tables, threads: int) -> None:
        super().__init__(tables, threads)
        bags = [
            torch.nn.EmbeddingBag(
                tables.rows,
                tables.width,
                mode="mean",
                sparse=bool(tables.rule),
                include_last_offset=True,
                _weight=torch.full(
                    (tables.rows, tables.width), contender.VALUE
                ),
            )
            for _ in range(tables.count)
        ]
        kinds = ipex.nn.modules
        if not tables.rule:
            kind = kinds.MergedEmbeddingBag
            self._bags = kind.from_embeddingbag_list(bags)
            return
        self._bags = kinds.MergedEmbeddingBagWithAdaGrad.from_embeddingbag_list(
            bags, lr=contender.LEARNING_RATE, eps=contender.EPSILON
        )
        for accumulators in self._bags.adagrad_args.hessian:
            accumulators.fill_(contender.FIRST_ACCUMULATOR)

    def sent(self, batch: Batch) -> tuple[list[Any], list[Any]]:
        features = [batch.feature(f) for f in range(batch.features)]
        return (
            [torch.from_numpy(ids.copy()) for ids, _ in features],
            [torch.from_numpy(splits.copy()) for _, splits in features],
        )

    def sent_gradient(self, batch: int) -> list[Any]:
        return list(torch.from_numpy(self.gradient(batch)))

    def look_up(self, batch: Any) -> Any:
        return self._bags(*batch)

    def train(self, batch: Any, gradient: Any) -> list[Any]:
        out = self._bags(*batch)
        torch.autograd.backward(out, gradient)
        return [one.detach() for one in out]

    def consume(self, out: Any) -> None:
        sum(one.numpy()[0, 0] for one in out)

    def values(self) -> np.ndarray:
        return np.stack([one.detach().numpy() for one in self._bags.weights])
