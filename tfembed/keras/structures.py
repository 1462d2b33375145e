"""Structures of inputs as Keras gives them back from a file."""

from __future__ import annotations

from typing import Any

__all__ = ["with_tuples"]


def with_tuples(inputs: Any, feature_config: Any) -> Any:
    """`inputs` with tuples for lists where `feature_config` has tuples.

    Keras writes the tuples among a layer's arguments as lists. Other differences
    of the structures stay, for those to refuse who take them.
    """
    if isinstance(inputs, dict) and isinstance(feature_config, dict):
        return {
            key: with_tuples(value, feature_config.get(key))
            for key, value in inputs.items()
        }
    kinds = (list, tuple)
    if type(inputs) not in kinds or type(feature_config) not in kinds:
        return inputs
    if len(inputs) != len(feature_config):
        return inputs
    items = [
        with_tuples(value, feature)
        for value, feature in zip(inputs, feature_config, strict=True)
    ]
    is_list = type(inputs) is list and type(feature_config) is list
    return items if is_list else tuple(items)
