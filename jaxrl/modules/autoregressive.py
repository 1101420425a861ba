"""Actions whose parts are chosen one after another, each conditioned on those before it.

The components are first the choices of the action space, in the order of its leaves (each entry of
a MultiDiscrete and each bit is one), then its Boxes. For component i the network outputs its own
inputs bᵢ and, for each earlier component j, a matrix Wᵢⱼ: the inputs of i's distribution are bᵢ +
Σⱼ Wᵢⱼ f(aⱼ), where f is the one-hot encoding of a choice and the values of a Box. One forward pass
is thus enough to act, and to evaluate an action.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.core.space_arrays import flatten_last_axes, get_choices, get_leaf_dtype
from jaxrl.core.spaces import get_leaf_spaces
from jaxrl.core.struct import pytree, static
from jaxrl.core.types import ActionMask, Key, PyTree, TreeStructure
from jaxrl.distributions.base import Categorical, DiagGaussian, Distribution, sum_terms
from jaxrl.distributions.from_space import (
    ActionDistribution,
    get_action_structure,
    make_action_distribution,
    split_mask,
)
from jaxrl.errors import ConfigError
from jaxrl.modules.rl_module import RLModule

MAX_PREFIXES = 1024
"""Maximum number of prefixes (choices of all components but the last) for exact entropy and KL."""


@dataclasses.dataclass(frozen=True)
class ActionComponent:
    """One step of an action: an entry of a leaf with `num_choices`, or a whole Box (0 choices)."""

    leaf: int
    entry: int
    num_choices: int
    event_shape: tuple[int, ...]

    @property
    def num_features(self) -> int:
        """Number of features that later components are conditioned on."""
        return self.num_choices or math.prod(self.event_shape)

    @property
    def num_inputs(self) -> int:
        """Number of inputs of the component's distribution."""
        return self.num_choices or 2 * math.prod(self.event_shape)


@dataclasses.dataclass(frozen=True)
class ActionLayout:
    """Positions of the components in an action and of their inputs in the network's output."""

    components: tuple[ActionComponent, ...]
    leaves: tuple[tuple[tuple[int, ...], str], ...]
    structure: TreeStructure
    log_std_clip: float

    @property
    def input_dim(self) -> int:
        """Number of network outputs."""
        return sum(
            component.num_inputs
            * (1 + sum(earlier.num_features for earlier in self.components[:i]))
            for i, component in enumerate(self.components)
        )

    @property
    def is_exact(self) -> bool:
        """Return whether entropy and KL are summed over all prefixes."""
        sizes = [component.num_choices for component in self.components[:-1]]
        return 0 < math.prod(sizes) <= MAX_PREFIXES

    def unpack(self, action: PyTree) -> list[Array]:
        """Split an action into its components."""
        leaves = self.structure.flatten_up_to(action)
        values: list[Array] = []
        for component in self.components:
            leaf, (shape, _) = leaves[component.leaf], self.leaves[component.leaf]
            if component.num_choices and shape:
                leaf = flatten_last_axes(leaf, len(shape))[..., component.entry]
            values.append(leaf)
        return values

    def pack(self, values: list[Array]) -> PyTree:
        """Join components into an action."""
        leaves: list[Array] = []
        for index, (shape, dtype) in enumerate(self.leaves):
            leaf_values = [
                v for c, v in zip(self.components, values, strict=True) if c.leaf == index
            ]
            is_choice = any(c.num_choices for c in self.components if c.leaf == index)
            value = leaf_values[0]
            if is_choice and shape:
                value = jnp.stack(leaf_values, axis=-1).reshape(*value.shape, *shape)
            leaves.append(value.astype(dtype))
        return self.structure.unflatten(leaves)


@pytree
class Autoregressive:
    """Chain of the components' distributions.

    `own` are their inputs bᵢ, `others` the matrices Wᵢⱼ of each for the earlier ones.
    """

    own: tuple[Float[Array, "*batch d"], ...]
    others: tuple[tuple[Float[Array, "*batch d f"], ...], ...]
    masks: tuple[ActionMask | None, ...]
    layout: ActionLayout = static()

    @classmethod
    def from_inputs(
        cls,
        inputs: Float[Array, "*batch n"],
        mask: PyTree = None,
        *,
        layout: ActionLayout,
        masks: Callable[[PyTree], tuple[ActionMask | None, ...]],
    ) -> "Autoregressive":
        own: list[Array] = []
        others: list[tuple[Array, ...]] = []
        start = 0

        def take(size: int) -> Array:
            nonlocal start
            start += size
            return inputs[..., start - size : start]

        for i, component in enumerate(layout.components):
            rows = component.num_inputs
            own.append(take(rows))
            sizes = [earlier.num_features for earlier in layout.components[:i]]
            matrices = [take(rows * n).reshape(*inputs.shape[:-1], rows, n) for n in sizes]
            others.append(tuple(matrices))
        return cls(own=tuple(own), others=tuple(others), masks=masks(mask), layout=layout)

    def sample_noise(self, key: Key) -> tuple[Array, ...]:
        keys = jax.random.split(key, len(self.own))
        zero_features = [
            jnp.zeros((*x.shape[:-1], c.num_features), jnp.float32)
            for x, c in self._with_components()
        ]
        return tuple(
            self._condition(i, zero_features[:i]).sample_noise(keys[i])
            for i in range(len(self.own))
        )

    def from_noise(self, noise: tuple[Array, ...]) -> PyTree:
        return self._choose_in_turn(lambda i, dist: dist.from_noise(noise[i]))

    def sample(self, key: Key) -> PyTree:
        return self.from_noise(self.sample_noise(key))

    def mode(self) -> PyTree:
        """Return each component's most likely value given the earlier ones (greedy, no search)."""
        return self._choose_in_turn(lambda i, dist: dist.mode())

    def log_prob(self, action: PyTree) -> Float[Array, "*batch"]:
        values = self.layout.unpack(action)
        features = [self._encode_value(i, value) for i, value in enumerate(values)]
        return sum_terms(
            [self._condition(i, features[:i]).log_prob(value) for i, value in enumerate(values)]
        )

    def entropy(self) -> Float[Array, "*batch"]:
        """Compute Σᵢ E[H(aᵢ | a before i)]; if not exact, at the mode."""
        return self._sum_terms(lambda i, features: self._condition(i, features).entropy())

    def kl(self, other: "Autoregressive") -> Float[Array, "*batch"]:
        """Compute Σᵢ E[KL(aᵢ | a before i)]; if not exact, at the mode."""
        return self._sum_terms(
            lambda i, features: self._condition(i, features).kl(other._condition(i, features))
        )

    def _with_components(self) -> Iterator[tuple[Array, ActionComponent]]:
        return zip(self.own, self.layout.components, strict=True)

    def _condition(self, number: int, features: list[Array]) -> Any:
        """Return the distribution of a component given the features of the earlier ones."""
        component, inputs = self.layout.components[number], self.own[number]
        for matrix, earlier in zip(self.others[number], features, strict=True):
            inputs = inputs + jnp.sum(matrix * earlier[..., None, :], axis=-1)
        if component.num_choices:
            return Categorical.from_inputs(inputs, self.masks[number])
        clip, shape = self.layout.log_std_clip, component.event_shape
        return DiagGaussian.from_inputs(inputs, event_shape=shape, log_std_clip=clip)

    def _encode_value(self, number: int, value: Array) -> Array:
        component = self.layout.components[number]
        if component.num_choices:
            return jax.nn.one_hot(value, component.num_choices, dtype=jnp.float32)
        return flatten_last_axes(value, len(component.event_shape))

    def _choose_in_turn(self, choose: Callable[[int, Distribution], Array]) -> PyTree:
        values: list[Array] = []
        features: list[Array] = []
        for number in range(len(self.own)):
            values.append(choose(number, self._condition(number, features)))
            features.append(self._encode_value(number, values[-1]))
        return self.layout.pack(values)

    def _sum_terms(self, term: Callable[[int, list[Array]], Array]) -> Array:
        if self.layout.is_exact:
            return self._sum_expected_terms(term, [])
        values = self.layout.unpack(self.mode())
        features = [self._encode_value(i, value) for i, value in enumerate(values)]
        return sum_terms([term(i, features[:i]) for i in range(len(values))])

    def _sum_expected_terms(
        self, term: Callable[[int, list[Array]], Array], features: list[Array]
    ) -> Array:
        """Sum the terms from the next component on, in expectation over all choices."""
        number = len(features)
        current_term = term(number, features)
        if number == len(self.own) - 1:
            return current_term
        probs = self._condition(number, features).probs()

        def compute_rest(choice: Array) -> Array:
            features_of_choice = jnp.broadcast_to(
                choice.reshape((1,) * (probs.ndim - 1) + (-1,)), probs.shape
            )
            return self._sum_expected_terms(term, [*features, features_of_choice])

        rest = jax.vmap(compute_rest, out_axes=-1)(jnp.eye(probs.shape[-1], dtype=jnp.float32))
        return current_term + jnp.sum(probs * rest, axis=-1)


def make_autoregressive_distribution(
    space: gymnasium.Space[Any], *, log_std_clip: float = 20.0
) -> ActionDistribution:
    """Return the distribution of an action space whose parts are chosen one after another.

    Args:
        space: Action space with at least two components.
        log_std_clip: Clamp of the log standard deviation; infinity for none.

    Raises:
        ConfigError: If the action has a single component.
        SpaceError: If a part of the space is not supported.
    """
    independent = make_action_distribution(space, log_std_clip=log_std_clip)
    leaves = [leaf for _, leaf in get_leaf_spaces(space)]
    components = tuple(
        sorted(
            (own for i, leaf in enumerate(leaves) for own in _split_components(i, leaf)),
            key=lambda component: component.num_choices == 0,
        )
    )
    if len(components) < 2:
        raise ConfigError(
            f"autoregressive_actions=True chooses the parts of an action one after another, but "
            f"{space} has a single one; leave it out, or act in a MultiDiscrete, MultiBinary, Dict "
            "or Tuple."
        )
    layout = ActionLayout(
        components=components,
        leaves=tuple((tuple(leaf.shape), get_leaf_dtype(leaf).name) for leaf in leaves),
        structure=get_action_structure(space),
        log_std_clip=log_std_clip,
    )
    build = partial(
        Autoregressive.from_inputs, layout=layout, masks=partial(_split_masks, space, layout)
    )
    return ActionDistribution(
        family=Autoregressive,
        input_dim=layout.input_dim,
        event_shape=independent.event_shape,
        maskable=independent.maskable,
        build=build,
        mask_dim=independent.mask_dim or independent.input_dim,
        is_exact=layout.is_exact,
    )


def _split_components(number: int, leaf: gymnasium.Space[Any]) -> list[ActionComponent]:
    if isinstance(leaf, spaces.Box):
        return [ActionComponent(number, 0, 0, tuple(leaf.shape))]
    if isinstance(leaf, spaces.MultiBinary):
        sizes = [2] * int(np.prod(leaf.shape))
    else:
        sizes = [size for size, _ in get_choices(leaf)[1]]
    return [ActionComponent(number, entry, size, ()) for entry, size in enumerate(sizes)]


def _split_masks(
    space: gymnasium.Space[Any], layout: ActionLayout, mask: PyTree
) -> tuple[ActionMask | None, ...]:
    """Return the mask of each component."""
    component_masks: list[Array | None]
    leaf_masks, component_masks = split_mask(space, mask), []
    ends: dict[int, int] = {}
    for component in layout.components:
        leaf_mask = leaf_masks[component.leaf]
        start = ends.get(component.leaf, 0)
        ends[component.leaf] = start + component.num_choices
        component_masks.append(
            None if leaf_mask is None else leaf_mask[..., start : ends[component.leaf]]
        )
    return tuple(component_masks)


def check_exact_entropy(module: RLModule, settings: object) -> None:
    """Raise if a loss needs an entropy or a divergence that is not exact.

    Args:
        module: Module whose actions are drawn.
        settings: Settings of the algorithm's losses.

    Raises:
        ConfigError: If a loss needs one.
    """
    if module.distribution.is_exact:
        return
    values = vars(settings)
    for name, disabled in (("use_kl_loss", False), ("entropy_coeff", 0.0)):
        if values.get(name, disabled) != disabled:
            raise ConfigError(
                f"{name}={values[name]!r} needs sums over all actions, which with "
                f"autoregressive_actions=True are too many in {module.action_space} (more than "
                f"{MAX_PREFIXES} choices before the last part, or two Boxes); set "
                f"{name}={disabled}, or autoregressive_actions=False."
            )
