"""The tables of an embedding, by their configs and by their names."""

from __future__ import annotations

from typing import Any

from tfembed import errors

__all__ = ["TablesByConfig"]


class TablesByConfig(dict[Any, Any]):
    """A dict by TableConfig that answers for the tables' names too.

    `tables["users"]`, `tables.get("users")` and `"users" in tables` find the
    table whose TableConfig has that name. Iteration gives the configs, as in
    TensorFlow.
    """

    def __missing__(self, key: Any) -> Any:
        config = self._config(key)
        if config is None:
            raise errors.MissingTableError(
                f"There is no table {key!r}; the tables are "
                f"{[config.name for config in self]}. Give a name, or the "
                "TableConfig."
            )
        return self[config]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or self._config(key) is not None

    def get(self, key: Any, default: Any = None) -> Any:
        """The table of a config or name; `default` where there is none."""
        config = self._config(key)
        return super().get(key if config is None else config, default)

    def _config(self, name: object) -> Any:
        if not isinstance(name, str):
            return None
        return next((config for config in self if config.name == name), None)
