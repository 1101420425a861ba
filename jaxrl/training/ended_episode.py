"""An episode of environments in the compiled program, which records no steps for the host."""

import dataclasses
from typing import NoReturn

_INSTEAD = {
    "total_reward": "get_return() is it",
    "length": "len(episode) is it",
    "get_length": "len(episode) is it",
}


@dataclasses.dataclass(frozen=True)
class EndedEpisode:
    """One episode that ended, as `on_episode_end` receives it.

    It answers to what RLlib's episodes have, as far as there are data: its return and its length.
    """

    episode_return: float
    episode_length: int
    env_index: int
    env_step: int

    is_done = True

    def get_return(self) -> float:
        """The sum of its rewards."""
        return self.episode_return

    def __len__(self) -> int:
        return self.episode_length

    def env_steps(self) -> int:
        """Its length."""
        return self.episode_length

    def agent_steps(self) -> int:
        """Its length: there is one agent."""
        return self.episode_length

    def __getattr__(self, name: str) -> NoReturn:
        instead = _INSTEAD.get(name)
        if name.startswith("__") or not hasattr(type(self), "__dataclass_fields__"):
            raise AttributeError(name)
        fields = ", ".join(field.name for field in dataclasses.fields(self))
        raise AttributeError(
            f"An episode of the compiled program has no '{name}': "
            + (
                instead
                or f"it has {fields}, get_return() and len(); placement='host' records steps"
            )
            + "."
        )
