"""Context passed to environment creators."""

from collections.abc import Mapping
from typing import Any


class EnvContext(dict[str, Any]):
    """The `env_config`, with the indices of the environment and its worker (RLlib's names)."""

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        *,
        worker_index: int = 0,
        vector_index: int = 0,
        num_workers: int = 0,
        remote: bool = False,
    ) -> None:
        super().__init__(env_config or {})
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.num_workers = num_workers
        self.remote = remote

    def copy_with_overrides(
        self,
        env_config: Mapping[str, Any] | None = None,
        *,
        worker_index: int | None = None,
        vector_index: int | None = None,
        num_workers: int | None = None,
        remote: bool | None = None,
    ) -> "EnvContext":
        """Return a copy with the given values replaced."""
        return EnvContext(
            self if env_config is None else env_config,
            worker_index=self.worker_index if worker_index is None else worker_index,
            vector_index=self.vector_index if vector_index is None else vector_index,
            num_workers=self.num_workers if num_workers is None else num_workers,
            remote=self.remote if remote is None else remote,
        )
