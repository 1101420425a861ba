"""Planner: a module that searches with the policy and the values of another one.

The search is mctx's. With "gumbel" it is that of Danihelka et al. 2022
(https://openreview.net/forum?id=bERaNdoegnO), with "puct" that of AlphaZero (Silver et al. 2018) as RLlib
parametrizes it.
"""

import copy
import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias, cast

import gymnasium
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.core.keys import make_key
from jaxrl.core.spaces import STATE
from jaxrl.core.struct import pytree, where_rows
from jaxrl.core.types import Columns, Key, Keys, Params, Progress, PyTree
from jaxrl.distributions.base import MultiCategorical
from jaxrl.distributions.from_space import ActionDistribution
from jaxrl.distributions.joint_actions import JointActions, JointCategorical, find_joint_actions
from jaxrl.errors import ConfigError, ModuleError, did_you_mean
from jaxrl.modules.exploration import draw_random_noise, make_random_action
from jaxrl.modules.rl_module import Moment, RLModule, check_module

if TYPE_CHECKING:
    import mctx

RecurrentFn: TypeAlias = "mctx.RecurrentFn"
OBS = "obs"
"""Part of a planner's observations that the module inside sees, beside the state."""
MAX_JOINT_ACTIONS = 512
"""Largest number of combinations of several choices that a search tries."""
TINY = 1e-20
"""Probability that a policy's logarithm has where it is 0."""


@functools.cache
def load_mctx() -> ModuleType:
    """Import mctx.

    Raises:
        ConfigError: If it is not installed.
    """
    try:
        return importlib.import_module("mctx")
    except ImportError as error:
        raise ConfigError("Search needs mctx: pip install 'jaxrl[search]'.") from error


@pytree
class Plan:
    """Result of a search, `[B, ...]`.

    Attributes:
        action: Number of the chosen action.
        policy: Improved policy, probabilities of all joint actions.
        value: Value of the root after the search.
    """

    action: Int[Array, " B"]
    policy: Float[Array, "B n"]
    value: Float[Array, " B"]


class SearchMethod(Protocol):
    """Way of searching a tree from its root."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def plan(
        self,
        root: "mctx.RootFnOutput",
        imagine: RecurrentFn,
        params: Params,
        key: Key,
        num_simulations: int,
        is_illegal: Bool[Array, "B n"],
        explore: bool,
    ) -> Plan:
        """Search from the root. Consumes the key."""
        ...


def _to_raw(key: Key) -> UInt32[Array, " words"]:
    """Return a key as mctx carries it through its loops, in which a typed one counts as reused."""
    return jax.random.key_data(key)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GumbelSearch:
    """Full Gumbel MuZero: sequential halving at the root, and a policy that cannot become worse.

    The improved policy is softmax(logits + σ(completed Q)) (Danihelka et al. 2022, section 4). Without
    exploration there is no noise.

    Attributes:
        max_num_considered_actions: Number of actions that are considered at the root.
        gumbel_scale: Scale of the noise that draws them while exploring.
        value_scale: Scale of σ, c_scale in the paper.
        rescale_values: Whether the Q-values of a node are rescaled to [0, 1] before. Then errors count as
            much as true differences wherever these are small.
    """

    max_num_considered_actions: int = 16
    gumbel_scale: float = 1.0
    value_scale: float = 0.1
    rescale_values: bool = True

    def plan(
        self,
        root: "mctx.RootFnOutput",
        imagine: RecurrentFn,
        params: Params,
        key: Key,
        num_simulations: int,
        is_illegal: Bool[Array, "B n"],
        explore: bool,
    ) -> Plan:
        mctx = load_mctx()
        out = mctx.gumbel_muzero_policy(
            params,
            _to_raw(key),
            root,
            imagine,
            num_simulations,
            invalid_actions=is_illegal,
            max_num_considered_actions=self.max_num_considered_actions,
            gumbel_scale=self.gumbel_scale if explore else 0.0,
            qtransform=functools.partial(
                mctx.qtransform_completed_by_mix_value,
                value_scale=self.value_scale,
                rescale_values=self.rescale_values,
            ),
        )
        value = out.search_tree.summary().value
        return Plan(action=out.action, policy=out.action_weights, value=value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PuctSearch:
    """AlphaZero's search, whose policy are the visits to the power of `temperature`, as in RLlib.

    Without exploration there is no noise, and the most visited action is taken.

    Attributes:
        puct_coefficient: Weight of the policy among what is visited next.
        temperature: Exponent of the visits.
        dirichlet_epsilon: Weight of the noise in the root's policy while exploring; 0 is none.
        dirichlet_noise: Concentration of the noise.
        argmax_tree_policy: Whether the most visited action is taken while exploring, too.
    """

    puct_coefficient: float = 1.0
    temperature: float = 1.5
    dirichlet_epsilon: float = 0.25
    dirichlet_noise: float = 0.03
    argmax_tree_policy: bool = False

    def plan(
        self,
        root: "mctx.RootFnOutput",
        imagine: RecurrentFn,
        params: Params,
        key: Key,
        num_simulations: int,
        is_illegal: Bool[Array, "B n"],
        explore: bool,
    ) -> Plan:
        search_key, action_key = jax.random.split(key)
        out = load_mctx().muzero_policy(
            params,
            _to_raw(search_key),
            root,
            imagine,
            num_simulations,
            invalid_actions=is_illegal,
            dirichlet_fraction=self.dirichlet_epsilon if explore else 0.0,
            dirichlet_alpha=self.dirichlet_noise,
            pb_c_init=self.puct_coefficient,
        )
        summary = out.search_tree.summary()
        logits = self.temperature * jnp.log(summary.visit_probs + TINY)
        logits = jnp.where(is_illegal, -jnp.inf, logits)
        action = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        if explore and not self.argmax_tree_policy:
            action = jax.random.categorical(action_key, logits).astype(jnp.int32)
        return Plan(action=action, policy=jax.nn.softmax(logits), value=summary.value)


SEARCH_METHODS: Mapping[str, type[GumbelSearch] | type[PuctSearch]] = {
    "gumbel": GumbelSearch,
    "puct": PuctSearch,
}
"""Ways of searching by the type of the setting `search`."""
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "max_num_considered_actions": (1, 2**31 - 1),
    "gumbel_scale": (0.0, 1e6),
    "value_scale": (1e-6, 1e3),
    "puct_coefficient": (1e-6, 1e6),
    "temperature": (1e-3, 1e3),
    "dirichlet_epsilon": (0.0, 1.0),
    "dirichlet_noise": (1e-6, 1e6),
}


def find_search_problem(setting: object) -> str | None:
    """Return the problem with a setting `search` as a sentence, or None if it is valid."""
    arguments = {"type": setting} if isinstance(setting, str) else cast(Mapping[str, Any], setting)
    kind = arguments.get("type", "gumbel")
    if kind not in SEARCH_METHODS:
        known = ", ".join(map(repr, SEARCH_METHODS))
        return f"Its type is {kind!r}; known are {known}.{did_you_mean(str(kind), SEARCH_METHODS)}"
    known = {field.name: field.type for field in dataclasses.fields(SEARCH_METHODS[kind])}
    for name, value in cast(Mapping[str, Any], arguments).items():
        if name == "type":
            continue
        if name not in known:
            other = next(
                (k for k, method in SEARCH_METHODS.items() if name in method.__dataclass_fields__),
                None,
            )
            if other is not None:
                return f"{name!r} has no effect on {kind!r}: it is an argument of {other!r}."
            hint = did_you_mean(str(name), known)
            return f"{kind!r} has no argument {name!r}.{hint} It has {', '.join(known)}."
        if known[name] is bool:
            if not isinstance(value, bool):
                return f"{name} must be True or False, got {value!r}."
            continue
        low, high = _BOUNDS[name]
        is_number = isinstance(value, known[name] | int) and not isinstance(value, bool)
        if not (is_number and low <= value <= high):
            numbers = "a whole number" if known[name] is int else "a number"
            return f"{name} must be {numbers} from {low:g} to {high:g}, got {value!r}."
    return None


def make_search_method(setting: "str | Mapping[str, Any]") -> SearchMethod:
    """Return the way of searching that a valid setting `search` names."""
    arguments: dict[str, Any] = {"type": setting} if isinstance(setting, str) else dict(setting)
    return SEARCH_METHODS[arguments.pop("type", "gumbel")](**arguments)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """Settings of a planner.

    Attributes:
        num_simulations: Number of steps that a search imagines for each action.
        method: Way of searching.
        gamma: Discount factor, where the hyperparameters of the moment have none.
    """

    num_simulations: int
    method: SearchMethod
    gamma: float


def make_search(setting: Mapping[str, Any], module: RLModule) -> Search | None:
    """Return the search of a dictionary with `num_simulations` and `search`; None if it has no steps.

    Args:
        setting: `{"num_simulations": 64}`, with the way of searching as `"search"` if it is neither the
            module's own nor, of one that does not search, "gumbel".
        module: Module that is to search.

    Raises:
        ConfigError: If it has another key, or a wrong value.
    """
    known = ("num_simulations", "search")
    if not isinstance(setting, Mapping) or "num_simulations" not in setting:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"planner={setting!r} must be a dictionary with the number of steps to imagine for each "
            "action, as in {'num_simulations': 64}."
        )
    for name in setting:
        if name not in known:
            raise ConfigError(
                f"planner has no key {name!r}.{did_you_mean(name, known)} It has {', '.join(known)}."
            )
    number, search = setting["num_simulations"], setting.get("search", "gumbel")
    if type(number) is not int or not 0 <= number < 2**16:
        raise ConfigError(
            f"num_simulations={number!r} must be a whole number below {2**16}; 0 acts without search."
        )
    if not isinstance(search, str | Mapping):
        raise ConfigError(f"search={search!r} must be 'gumbel', 'puct' or a dictionary.")
    if (problem := find_search_problem(search)) is not None:
        raise ConfigError(f"search of planner: {problem}")
    if number == 0:
        return None
    own = module.search if isinstance(module, Planner) else None
    if own is not None and "search" not in setting:
        return dataclasses.replace(own, num_simulations=number)
    gamma = 1.0 if own is None else own.gamma
    return Search(num_simulations=number, method=make_search_method(search), gamma=gamma)


class ImaginedStep(Protocol):
    """Result of a step of a model; see `jaxrl.envs.model.Imagined`."""

    @property
    def obs(self) -> PyTree: ...
    @property
    def reward(self) -> Float[Array, ""]: ...
    @property
    def discount(self) -> Float[Array, ""]: ...
    @property
    def is_over(self) -> Bool[Array, ""]: ...


class Model(Protocol):
    """Model that a planner imagines steps by; see `jaxrl.envs.model.EnvModel`."""

    def step(self, key: Key, packed: PyTree, action: Int[Array, "*event"]) -> ImaginedStep:
        """Take one step from an observed state. Consumes the key."""
        ...


@pytree
class Node:
    """Node of a search tree, `[B, ...]`: where steps go on from, and whether the episode is over.

    After an end, rewards and values are 0.
    """

    state: PyTree
    is_over: Bool[Array, " B"]


@pytree
class PlannerDraws:
    """Random inputs of acting, `[B]`: keys of the searches, and of moves that explore instead."""

    key: Keys
    coin: Float[Array, " B"]
    move: PyTree


def _find_actions(inner: RLModule) -> JointActions:
    """Return the actions that a search tries.

    Raises:
        ModuleError: If they cannot be numbered, or are too many.
    """
    space = inner.action_space
    joint = find_joint_actions(space)
    if joint is None:
        raise ModuleError(
            "Search tries each action of a Discrete space, or of a MultiDiscrete one, and this one is "
            f"{space}: use SAC for a Box, and PPO for any space, without a planner."
        )
    if not joint.event_shape:
        return joint
    if joint.number > MAX_JOINT_ACTIONS:
        raise ModuleError(
            f"{space} has {' x '.join(map(str, joint.num_choices))} = {joint.number} joint actions, and "
            f"search tries each of up to {MAX_JOINT_ACTIONS}: use PPO without a planner, or fewer choices."
        )
    if inner.distribution.family is not MultiCategorical:
        raise ModuleError(
            f"{type(inner).__name__} draws the choices of {space} one after the other, and search takes "
            "them as independent: set autoregressive_actions=False."
        )
    return joint


class Planner(RLModule):
    """Module that acts by search, with the policy and the values of `inner`.

    Its parameters are those of `inner`, so that any checkpoint of a policy with values can search. It
    observes the environment's state, the part `"state"`, beside what `inner` sees, `"obs"`. Its
    `ACTION_DIST_INPUTS` are the logarithms of the improved policy, the target to learn from. With a
    hyperparameter `epsilon`, a legal action at random is explored instead of the searched one with this
    probability.

    A subclass with another model overrides `make_root` and `imagine`.
    """

    def __init__(
        self,
        *,
        inner: RLModule,
        search: Search,
        model: Model | None,
        observation_space: gymnasium.Space[Any],
    ) -> None:
        """Wrap a module.

        Raises:
            ConfigError: If mctx is missing.
            ModuleError: If `inner` is recurrent, has no values, or chooses other than one of several
                actions or of their combinations.
        """
        load_mctx()
        name = type(inner).__name__
        self.joint = _find_actions(inner)
        if inner.is_stateful or inner.initial_carry(1) is not None:
            raise ModuleError(
                f"{name} has a memory, which search does not carry through the steps that it imagines: "
                "take a module without one (leave use_lstm and use_attention out), or leave planner out."
            )
        check_module(inner, needs_values=True)
        self.inner, self.search, self.model = inner, search, model
        self._observe: Callable[[PyTree], PyTree] | None = None
        self._take: Callable[[PyTree], PyTree] = lambda action: action
        super().__init__(
            observation_space=observation_space,
            action_space=inner.action_space,
            model_config=inner.model_config,
            algorithm_config=inner.algorithm_config,
        )

    def make_distribution(self) -> ActionDistribution:
        if not self.joint.event_shape:
            return self.inner.distribution
        return dataclasses.replace(
            self.inner.distribution,
            family=JointCategorical,
            input_dim=self.joint.number,
            mask_dim=sum(self.joint.num_choices),
            build=functools.partial(JointCategorical.from_inputs, joint=self.joint),
        )

    @property
    def has_density(self) -> bool:
        """False: how likely a searched action was is not known."""
        return False

    def init(self, key: Key) -> Params:
        return self.inner.init(key)

    def bind(self, observe: Callable[[PyTree], PyTree], take: Callable[[PyTree], PyTree]) -> Self:
        """Return the planner with the connectors that imagined observations and actions pass."""
        module = copy.copy(self)
        module._observe, module._take = observe, take
        return module

    def get_seen(self, obs: PyTree) -> PyTree:
        """Return what the module inside sees of observations."""
        return obs[OBS]

    def action_mask(self, obs: PyTree | None) -> PyTree:
        return self.inner.action_mask(None if obs is None else self.get_seen(obs))

    def forward_train(self, params: Params, batch: Mapping[str, Any]) -> dict[str, Any]:
        return self.inner.forward_train(params, {Columns.OBS: self.get_seen(batch[Columns.OBS])})

    def compute_values(self, params: Params, obs: PyTree) -> Float[Array, "*batch"]:
        return self.inner.compute_values(params, self.get_seen(obs))

    def make_acting_params(self, params: Params, moment: Moment) -> Params:
        return self.inner.make_acting_params(params, moment)

    def draw(self, keys: Keys) -> PlannerDraws:
        """Draw keys of the searches, and moves that explore. Consumes the keys."""
        parts = jax.vmap(lambda key: jax.random.split(key, 3))(keys)
        return PlannerDraws(
            key=parts[:, 0],
            coin=jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32))(parts[:, 1]),
            move=draw_random_noise(self.action_space, parts[:, 2]),
        )

    def forward_inference(
        self,
        params: Params,
        obs: PyTree,
        carry: PyTree = None,
        hparams: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        env_index: Int[Array, " B"] | None = None,
        draws: PyTree = None,
    ) -> dict[str, Any]:
        """Return the actions that the search prefers, without noise.

        Without draws, chance moves of the model are the same at every call.
        """
        del progress, env_index
        if draws is None:
            num_rows = jax.tree.leaves(obs)[0].shape[0]
            keys = jax.random.split(make_key(0), num_rows)
        else:
            keys = draws.key
        found = self.plan(params, obs, keys, hparams or {}, explore=False)
        return self._name_outputs(self.joint.to_action(found.action), found, carry)

    def _explore(
        self, params: Params, obs: PyTree, carry: PyTree, draws: PyTree, moment: Moment
    ) -> dict[str, Any]:
        found = self.plan(params, obs, draws.key, moment.hparams, explore=True)
        action = self.joint.to_action(found.action)
        if (epsilon := moment.hparams.get("epsilon")) is not None:
            random, _ = make_random_action(self.action_space, draws.move, self.action_mask(obs))
            action = where_rows(draws.coin < epsilon, random.astype(action.dtype), action)
        return self._name_outputs(action, found, carry)

    def _name_outputs(
        self, action: Int[Array, " B *event"], found: Plan, carry: PyTree
    ) -> dict[str, Any]:
        return {
            Columns.ACTIONS: action,
            Columns.ACTION_DIST_INPUTS: jnp.log(found.policy + TINY),
            Columns.ACTION_LOGP: jnp.zeros(found.action.shape, jnp.float32),
            Columns.SEARCH_VALUE: found.value.astype(jnp.float32),
            Columns.STATE_OUT: carry,
        }

    def plan(
        self,
        params: Params,
        obs: PyTree,
        keys: Keys,
        hparams: Mapping[str, Any],
        *,
        explore: bool,
    ) -> Plan:
        """Search from each observation by itself, so that its draws are those of its environment.

        Args:
            params: Parameters.
            obs: The module's observations, `[B, ...]`.
            keys: A key for each. Consumed.
            hparams: Hyperparameters of the moment, of which `gamma` is read.
            explore: Whether the search has noise.
        """
        gamma = hparams.get("gamma", self.search.gamma)
        root, is_illegal = self.make_root(params, obs)

        def search(key: Key, root: PyTree, is_illegal: Bool[Array, " n"]) -> Plan:
            one = jax.tree.map(lambda x: x[None], (root, is_illegal))
            found = self.search.method.plan(
                one[0],
                cast("RecurrentFn", functools.partial(self.imagine, gamma=gamma)),
                params,
                key,
                self.search.num_simulations,
                one[1],
                explore,
            )
            return jax.tree.map(lambda x: x[0], found)

        return jax.vmap(search)(keys, root, is_illegal)

    def make_root(
        self, params: Params, obs: PyTree
    ) -> tuple["mctx.RootFnOutput", Bool[Array, "B n"]]:
        """Return the roots of the trees, and which actions are illegal there.

        Args:
            params: Parameters.
            obs: The module's observations, `[B, ...]`.
        """
        logits, value = self.evaluate(params, obs)
        mask = self.action_mask(obs)
        is_illegal = jnp.zeros(logits.shape, bool)
        if mask is not None:
            is_illegal = ~self.joint.combine_mask(mask)
        node = Node(state=obs[STATE], is_over=jnp.zeros(value.shape, bool))
        root = load_mctx().RootFnOutput(prior_logits=logits, value=value, embedding=node)
        return root, is_illegal

    def imagine(
        self,
        params: Params,
        key: UInt32[Array, " words"],
        action: Int[Array, " B"],
        node: Node,
        *,
        gamma: float | Float[Array, ""],
    ) -> tuple["mctx.RecurrentFnOutput", Node]:
        """Take a step from nodes of the trees, as mctx asks for it, with a raw key."""
        if self._observe is None or self.model is None:
            raise ModuleError(
                "A planner searches between the connectors of its environment: act with it by the "
                "Algorithm or its policy, or call bind(observe, take)."
            )
        keys = jax.random.split(jax.random.wrap_key_data(key), action.shape[0])
        step = jax.vmap(self.model.step)(keys, node.state, self._take(self.joint.to_action(action)))
        seen = self._observe(step.obs)
        logits, value = self.evaluate(params, seen)
        was_over, is_over = node.is_over, node.is_over | step.is_over
        reward = jnp.where(was_over, 0.0, step.reward)
        discount = jnp.where(is_over, 0.0, gamma * step.discount)
        out = load_mctx().RecurrentFnOutput(
            reward=reward.astype(jnp.float32),
            discount=discount.astype(jnp.float32),
            prior_logits=jnp.where(is_over[:, None], 0.0, logits),
            value=jnp.where(is_over, 0.0, value),
        )
        # An end keeps its state, from which no step is defined.
        state = where_rows(was_over, node.state, seen[STATE])
        return out, Node(state=state, is_over=is_over)

    def evaluate(
        self, params: Params, obs: PyTree
    ) -> tuple[Float[Array, "B n"], Float[Array, " B"]]:
        """Return the logits of all joint actions, low for illegal ones, and the values of who is to move."""
        out = self.inner.forward_train(params, {Columns.OBS: self.get_seen(obs)})
        inputs, mask = out[Columns.ACTION_DIST_INPUTS], self.action_mask(obs)
        logits = self.joint.combine_logits(inputs, mask)
        return logits.astype(jnp.float32), out[Columns.VF_PREDS].astype(jnp.float32)
