"""Actions whose parts are chosen one after another, each knowing those before it.

The components are the choices of the action space first, in the order of its leaves (each entry of
a MultiDiscrete and each bit is one), then its Boxes. The network gives for component i its own
inputs bᵢ and, for each earlier component j, a matrix Wᵢⱼ: the inputs of i's distribution are
bᵢ + Σⱼ Wᵢⱼ f(aⱼ), where f is one-hot of a choice and the values of a Box. So one pass of the network
is enough to act, and to evaluate an action.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float

from jaxrl.core.spaces import choices, flat, leaf_dtype, leaf_spaces
from jaxrl.core.struct import pytree, static
from jaxrl.core.types import Key, PyTree
from jaxrl.distributions.base import Categorical, DiagGaussian
from jaxrl.distributions.from_space import (
    ActionDistribution,
    action_distribution,
    masks_of,
    structure_of,
)
from jaxrl.distributions.joint import total
from jaxrl.errors import ConfigError
from jaxrl.modules.rl_module import RLModule

MAX_PREFIXES = 1024
"""Ways to choose all components but the last, up to which entropy and KL are summed over them."""


@dataclasses.dataclass(frozen=True)
class Component:
    """One step of an action: an entry of a leaf with `num_choices`, or a whole Box (0 of them)."""

    leaf: int
    entry: int
    num_choices: int
    event_shape: tuple[int, ...]

    @property
    def num_features(self) -> int:
        """Numbers by which later components know this one."""
        return self.num_choices or math.prod(self.event_shape)

    @property
    def num_inputs(self) -> int:
        """Numbers that its distribution is made of."""
        return self.num_choices or 2 * math.prod(self.event_shape)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the components lie in an action and their numbers among the inputs."""

    components: tuple[Component, ...]
    leaves: tuple[tuple[tuple[int, ...], str], ...]
    structure: Any
    log_std_clip: float

    @property
    def input_dim(self) -> int:
        """Numbers that a network gives."""
        return sum(
            own.num_inputs * (1 + sum(earlier.num_features for earlier in self.components[:i]))
            for i, own in enumerate(self.components)
        )

    @property
    def is_exact(self) -> bool:
        """Whether entropy and KL are summed over all ways to choose what comes before."""
        sizes = [component.num_choices for component in self.components[:-1]]
        return 0 < math.prod(sizes) <= MAX_PREFIXES

    def unpacked(self, action: PyTree) -> list[Array]:
        """The components of an action."""
        leaves = self.structure.flatten_up_to(action)
        found: list[Array] = []
        for component in self.components:
            leaf, (shape, _) = leaves[component.leaf], self.leaves[component.leaf]
            if component.num_choices and shape:
                leaf = flat(leaf, len(shape))[..., component.entry]
            found.append(leaf)
        return found

    def packed(self, values: list[Array]) -> PyTree:
        """The action of these components."""
        leaves: list[Array] = []
        for number, (shape, dtype) in enumerate(self.leaves):
            own = [v for c, v in zip(self.components, values, strict=True) if c.leaf == number]
            is_choice = any(c.num_choices for c in self.components if c.leaf == number)
            value = own[0]
            if is_choice and shape:
                value = jnp.stack(own, axis=-1).reshape(*value.shape, *shape)
            leaves.append(value.astype(dtype))
        return self.structure.unflatten(leaves)


@pytree
class Autoregressive:
    """The chain of the components' distributions.

    `own` are their inputs bᵢ, `others` the matrices Wᵢⱼ of each for the earlier ones.
    """

    own: tuple[Float[Array, "*batch d"], ...]
    others: tuple[tuple[Float[Array, "*batch d f"], ...], ...]
    masks: tuple[Bool[Array, "*batch d"] | None, ...]
    layout: Layout = static()

    @classmethod
    def from_inputs(
        cls, inputs: Float[Array, "*batch n"], mask: PyTree = None, *, layout: Layout, masks: Any
    ) -> "Autoregressive":
        own: list[Array] = []
        others: list[tuple[Array, ...]] = []
        start = 0

        def taken(size: int) -> Array:
            nonlocal start
            start += size
            return inputs[..., start - size : start]

        for i, component in enumerate(layout.components):
            rows = component.num_inputs
            own.append(taken(rows))
            sizes = [earlier.num_features for earlier in layout.components[:i]]
            matrices = [taken(rows * n).reshape(*inputs.shape[:-1], rows, n) for n in sizes]
            others.append(tuple(matrices))
        return cls(own=tuple(own), others=tuple(others), masks=masks(mask), layout=layout)

    def noise(self, key: Key) -> tuple[Array, ...]:
        keys = jax.random.split(key, len(self.own))
        blank = [jnp.zeros((*x.shape[:-1], c.num_features)) for x, c in self._with_components()]
        return tuple(self._given(i, blank[:i]).noise(keys[i]) for i in range(len(self.own)))

    def pick(self, noise: tuple[Array, ...]) -> PyTree:
        return self._in_turn(lambda i, dist: dist.pick(noise[i]))

    def sample(self, key: Key) -> PyTree:
        return self.pick(self.noise(key))

    def mode(self) -> PyTree:
        """Each component's most likely value after the earlier ones' (greedy, not a search)."""
        return self._in_turn(lambda i, dist: dist.mode())

    def log_prob(self, action: PyTree) -> Float[Array, "*batch"]:
        values = self.layout.unpacked(action)
        features = [self._features(i, value) for i, value in enumerate(values)]
        return total(
            [self._given(i, features[:i]).log_prob(value) for i, value in enumerate(values)]
        )

    def entropy(self) -> Float[Array, "*batch"]:
        """Σᵢ E[H(aᵢ | a before i)]; where it is not exact, along the mode instead of expected."""
        return self._chained(lambda i, features: self._given(i, features).entropy())

    def kl(self, other: "Autoregressive") -> Float[Array, "*batch"]:
        """Σᵢ E[KL(aᵢ | a before i)], as `entropy`."""
        return self._chained(
            lambda i, features: self._given(i, features).kl(other._given(i, features))
        )

    def _with_components(self) -> Any:
        return zip(self.own, self.layout.components, strict=True)

    def _given(self, number: int, features: list[Array]) -> Any:
        """The distribution of a component after the earlier ones."""
        component, inputs = self.layout.components[number], self.own[number]
        for matrix, known in zip(self.others[number], features, strict=True):
            inputs = inputs + jnp.sum(matrix * known[..., None, :], axis=-1)
        if component.num_choices:
            return Categorical.from_inputs(inputs, self.masks[number])
        clip, shape = self.layout.log_std_clip, component.event_shape
        return DiagGaussian.from_inputs(inputs, event_shape=shape, log_std_clip=clip)

    def _features(self, number: int, value: Array) -> Array:
        component = self.layout.components[number]
        if component.num_choices:
            return jax.nn.one_hot(value, component.num_choices, dtype=jnp.float32)
        return flat(value, len(component.event_shape))

    def _in_turn(self, choose: Callable[[int, Any], Array]) -> PyTree:
        values: list[Array] = []
        features: list[Array] = []
        for number in range(len(self.own)):
            values.append(choose(number, self._given(number, features)))
            features.append(self._features(number, values[-1]))
        return self.layout.packed(values)

    def _chained(self, term: Callable[[int, list[Array]], Array]) -> Array:
        if self.layout.is_exact:
            return self._expected(term, [])
        values = self.layout.unpacked(self.mode())
        features = [self._features(i, value) for i, value in enumerate(values)]
        return total([term(i, features[:i]) for i in range(len(values))])

    def _expected(self, term: Callable[[int, list[Array]], Array], features: list[Array]) -> Array:
        """The terms from the next component on, expected over all ways to choose from there."""
        number = len(features)
        here = term(number, features)
        if number == len(self.own) - 1:
            return here
        probs = self._given(number, features).probs()

        def after(choice: Array) -> Array:
            known = jnp.broadcast_to(choice.reshape((1,) * (probs.ndim - 1) + (-1,)), probs.shape)
            return self._expected(term, [*features, known])

        rest = jax.vmap(after, out_axes=-1)(jnp.eye(probs.shape[-1]))
        return here + jnp.sum(probs * rest, axis=-1)


def autoregressive_distribution(
    space: gymnasium.Space[Any], *, log_std_clip: float = 20.0
) -> ActionDistribution:
    """The distribution of an action space whose parts are chosen one after another.

    Args:
        space: With at least two components.
        log_std_clip: Clamp of the log standard deviation; infinity for none.

    Raises:
        ConfigError: There is nothing to choose after something else.
        SpaceError: A part of the space is not supported.
    """
    independent = action_distribution(space, log_std_clip=log_std_clip)
    leaves = [leaf for _, leaf in leaf_spaces(space)]
    components = tuple(
        sorted(
            (own for i, leaf in enumerate(leaves) for own in _components(i, leaf)),
            key=lambda component: component.num_choices == 0,
        )
    )
    if len(components) < 2:
        raise ConfigError(
            f"autoregressive_actions=True chooses the parts of an action one after another, but "
            f"{space} has a single one; leave it out, or act in a MultiDiscrete, MultiBinary, Dict "
            "or Tuple."
        )
    layout = Layout(
        components=components,
        leaves=tuple((tuple(leaf.shape), leaf_dtype(leaf).name) for leaf in leaves),
        structure=structure_of(space),
        log_std_clip=log_std_clip,
    )
    build = partial(Autoregressive.from_inputs, layout=layout, masks=partial(_masks, space, layout))
    return ActionDistribution(
        family=Autoregressive,
        input_dim=layout.input_dim,
        event_shape=independent.event_shape,
        maskable=independent.maskable,
        build=build,
        mask_dim=independent.mask_dim or independent.input_dim,
        is_exact=layout.is_exact,
    )


def _components(number: int, leaf: Any) -> list[Component]:
    if isinstance(leaf, spaces.Box):
        return [Component(number, 0, 0, tuple(leaf.shape))]
    if isinstance(leaf, spaces.MultiBinary):
        sizes = [2] * int(np.prod(leaf.shape))
    else:
        sizes = [size for size, _ in choices(leaf)[1]]
    return [Component(number, entry, size, ()) for entry, size in enumerate(sizes)]


def _masks(
    space: gymnasium.Space[Any], layout: Layout, mask: PyTree
) -> tuple[Bool[Array, "*batch d"] | None, ...]:
    """What is legal for each component."""
    of_leaves, found = masks_of(space, mask), []
    ends: dict[int, int] = {}
    for component in layout.components:
        own = of_leaves[component.leaf]
        start = ends.get(component.leaf, 0)
        ends[component.leaf] = start + component.num_choices
        found.append(None if own is None else own[..., start : ends[component.leaf]])
    return tuple(found)


def refuse_inexact(module: RLModule, settings: Any) -> None:
    """Refuse losses of an entropy or a divergence that is not exact.

    Args:
        module: Whose actions are drawn.
        settings: Of the algorithm's losses.

    Raises:
        ConfigError: A loss needs it.
    """
    if module.distribution.is_exact:
        return
    given = vars(settings)
    for name, off in (("use_kl_loss", False), ("entropy_coeff", 0.0)):
        if given.get(name, off) != off:
            raise ConfigError(
                f"{name}={given[name]!r} needs sums over all actions, which with "
                f"autoregressive_actions=True are too many in {module.action_space} (more than "
                f"{MAX_PREFIXES} choices before the last part, or two Boxes); set {name}={off}, or "
                "autoregressive_actions=False."
            )
