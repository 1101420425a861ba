"""Policy to estimate on whole recorded episodes: probabilities of actions, its own actions, and Q."""

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int

from jaxrl.assembly.offline import ActionConversion, convert_rows, join_actions, split_rows
from jaxrl.config.settings.offline import FQESettings
from jaxrl.connectors.checks import check_action_inverse
from jaxrl.connectors.pipelines import ActionPipeline
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Columns, Key, Params, PyTree
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError, DataError
from jaxrl.modules.policy_and_critics import CRITIC, StochasticPolicyModule
from jaxrl.modules.rl_module import RLModule
from jaxrl.offline.checks import locate
from jaxrl.offline.recorded import RecordedData
from jaxrl.offline.stitch import merge_parts
from jaxrl.training.rollout import ActorCarry, ActorState, PolicyStep

MAX_LOG_PROB = 1e-3
"""Log-probability of a choice above which it is none; rounding may leave it slightly above 0."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WholeEpisodes:
    """Episodes that were recorded from their first step to their end.

    Attributes:
        source: First of the files that they are from.
        parts: Episodes, with the module's actions.
        behavior_log_prob: Log-probability of each action for the policy that recorded it, by episode;
            None if it was not recorded.
        num_dropped: Number of parts of episodes that were not whole.
        num_dropped_steps: Number of their steps.
    """

    source: str
    parts: Sequence[EpisodePart]
    behavior_log_prob: Sequence[Float[np.ndarray, " L"]] | None
    num_dropped: int
    num_dropped_steps: int = 0

    @property
    def has_density(self) -> bool:
        """True if the probabilities of the actions were recorded."""
        return self.behavior_log_prob is not None

    @property
    def lengths(self) -> Int[np.ndarray, " E"]:
        """Number of steps of each episode."""
        return np.asarray([len(part) for part in self.parts])

    @property
    def mask(self) -> Bool[np.ndarray, "E H"]:
        """Rows of padded arrays that are steps."""
        return np.arange(self.lengths.max()) < self.lengths[:, None]

    def pad(self, rows: Sequence[np.ndarray]) -> Float[np.ndarray, "E H"]:
        """Lay one number per step out as `[E, H]`, in float64, with zeros after each end."""
        out = np.zeros(self.mask.shape)
        for i, values in enumerate(rows):
            out[i, : len(values)] = values
        return out


def read_whole_episodes(
    data: RecordedData,
    pipeline: ActionPipeline,
    recorded: Iterable[EpisodePart] | None = None,
    *,
    split_by_episode: bool = True,
    ignore_final_observation: bool = False,
) -> WholeEpisodes:
    """Read the episodes that are whole.

    Recorded densities are of the actions as they were recorded: where these are the environment's,
    they are converted to those of the module's actions.

    Args:
        data: Recorded data.
        pipeline: Action connectors of the target policy.
        recorded: Parts of their episodes, those of one episode in order of time; None for all.
        split_by_episode: Whether episodes are those of the data; False makes each row one.
        ignore_final_observation: Whether an episode that was truncated ends one step earlier, at an
            observation that was acted on, because its final one is not known.

    Raises:
        ConfigError: If the recorded actions cannot be converted to the module's.
        DataError: If no episode is whole, or the data are damaged.
    """
    conversion = None
    if not data.actions_are_normalized and len(pipeline):
        check_action_inverse(pipeline)
        conversion = ActionConversion(pipeline=pipeline)
    parts: list[EpisodePart] = []
    dropped: list[int] = []
    for part in merge_parts(data.iter_parts() if recorded is None else recorded):
        is_whole = part.t_started == 0 and (part.terminated or part.truncated) and data.has_past
        needs_final = ignore_final_observation and split_by_episode
        kept = _without_last_row(part) if needs_final else part
        if kept is not None and not split_by_episode:
            parts += _split_rows(kept)
        elif kept is not None and is_whole:
            parts.append(kept)
        else:
            dropped.append(len(part))
    if not parts:
        raise DataError(
            f"{data.files[0]} has no whole episode, from its first step to a termination or "
            "truncation, which estimates are made from: record whole episodes."
        )
    log_probs = None
    if data.has_density and all(Columns.ACTION_LOGP in part.extras for part in parts):
        log_probs = [_read_log_probs(data, part) for part in parts]
    if conversion is not None:
        if log_probs is not None:
            scales = split_rows(_compute_log_scale(pipeline, join_actions(parts)), parts)
            log_probs = [one + scale for one, scale in zip(log_probs, scales, strict=True)]
        parts = conversion.convert_parts(parts)
    return WholeEpisodes(
        source=str(data.files[0]),
        parts=parts,
        behavior_log_prob=log_probs,
        num_dropped=len(dropped),
        num_dropped_steps=sum(dropped),
    )


def _read_log_probs(data: RecordedData, part: EpisodePart) -> Float[np.ndarray, " L"]:
    """Return the recorded log-probabilities of a part.

    Raises:
        DataError: If one is none: not finite or, of an action that is a choice, above 0.
    """
    found = np.asarray(part.extras[Columns.ACTION_LOGP], np.float64)
    space, where = data.action_space, locate(part, str(data.files[0]))
    if found.size != len(part):
        raise DataError(
            f"{where}: {Columns.ACTION_LOGP} must have one number a step, got the shape {found.shape}."
        )
    found = found.reshape(-1)
    is_choice = isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    largest = MAX_LOG_PROB if is_choice else np.inf
    is_valid = np.isfinite(found) & (found <= largest)
    if not is_valid.all():
        row = int(np.argmin(is_valid))
        raise DataError(
            f"{where}: {Columns.ACTION_LOGP} is {found[row]:g} at t={part.t_started + row}, and must be the "
            f"logarithm of the probability with which an action of {space} was drawn: record that, or "
            "has_density=False."
        )
    return found


def join_episodes(sources: Sequence[WholeEpisodes]) -> WholeEpisodes:
    """Return the episodes of several sources, with densities if all of them have some."""
    if len(sources) == 1:
        return sources[0]
    log_probs: list[np.ndarray] | None = []
    for source in sources:
        if log_probs is not None and source.behavior_log_prob is not None:
            log_probs += source.behavior_log_prob
        else:
            log_probs = None
    return WholeEpisodes(
        source=sources[0].source,
        parts=[part for source in sources for part in source.parts],
        behavior_log_prob=log_probs,
        num_dropped=sum(source.num_dropped for source in sources),
        num_dropped_steps=sum(source.num_dropped_steps for source in sources),
    )


def _without_last_row(part: EpisodePart) -> EpisodePart | None:
    """Return a part without a last row whose successor is not known; None if no row is left."""
    if part.terminated:
        return part
    if len(part) == 1:
        return None
    head = part.split(len(part) - 1)[0]
    return dataclasses.replace(head, truncated=part.truncated, is_cut=part.is_cut)


def _split_rows(part: EpisodePart) -> list[EpisodePart]:
    """Return every row of a part as an episode that ends with it, as those of a bandit do."""

    def take(tree: PyTree, i: int, number: int = 1) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[i : i + number], tree)

    return [
        dataclasses.replace(
            part,
            t_started=0,
            obs=take(part.obs, i, 2),
            action=take(part.action, i),
            reward=part.reward[i : i + 1],
            extras=take(part.extras, i),
            version=part.version[i : i + 1],
            terminated=True,
            truncated=False,
            is_cut=False,
            carry=None,
        )
        for i in range(len(part))
    ]


def _compute_log_scale(pipeline: ActionPipeline, action: PyTree) -> Float[np.ndarray, " N"]:
    """Compute the log-density of the module's actions u less that of the environment's a, -log |du/da|.

    Raises:
        DataError: If actions are nested, so that they have no single density.
    """
    space = pipeline.space
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return np.zeros(len(action))
    if not isinstance(space, spaces.Box):
        raise DataError(
            f"The densities of recorded actions of {space} cannot be converted to those of the "
            "policy's actions: record them with output=..., or use the methods dm and fqe."
        )
    size = int(np.prod(space.shape))

    def invert(flat: jax.Array) -> jax.Array:
        return pipeline.inverse(flat.reshape(1, *space.shape)).reshape(size)

    flat = np.asarray(action, np.float32).reshape(len(action), size)
    jacobian = convert_rows(jax.jit(jax.vmap(jax.jacfwd(invert))), flat)
    return -np.linalg.slogdet(np.asarray(jacobian, np.float64))[1]


_BLOCK_ROWS = 2**13


@pytree
class FQERows:
    """N transitions of episodes, whose M observations include those after the ends.

    Attributes:
        obs: Observations, `[M, ...]`.
        target: Probabilities `[M, n]`, or actions `[M, K, ...]`, of the target policy.
        index: Observation of each transition; its successor is the next one.
        action: Recorded actions.
        reward: Rewards.
        terminated: Whether the episode was terminated.
    """

    obs: PyTree
    target: Float[Array, "M ..."]
    index: Int[Array, " N"]
    action: PyTree
    reward: Float[Array, " N"]
    terminated: Bool[Array, " N"]


@pytree
class _Fit:
    critic: Params
    target: Params
    optimizer: Any


class FittedQ:
    """Q function of the target policy.

    Its network is that of SAC's critic, with the default model settings.

    Args:
        module: Module of the target policy, for its spaces.
        settings: Settings of the fits.
    """

    def __init__(self, module: RLModule, settings: FQESettings) -> None:
        space = module.action_space
        if isinstance(space, spaces.Box):  # the values of the bounds matter to a policy alone
            space = spaces.Box(-1.0, 1.0, space.shape, np.float32)
        self.module = StochasticPolicyModule(
            observation_space=module.observation_space,
            action_space=space,
            algorithm_config={"num_critics": 1},
        )
        self._settings = settings
        self._optimizer = optax.adam(settings.lr)
        self._fit = jax.jit(self._run)
        self._evaluate = jax.jit(self._compute_block)

    def fit(self, rows: FQERows, chosen: Int[np.ndarray, " k"], gamma: float, key: Key) -> Params:
        """Fit the critic to some of the transitions.

        Args:
            rows: All transitions; rewards are scaled by the caller.
            chosen: Indices of the transitions to learn from.
            gamma: Discount factor.
            key: Key, which is consumed.
        """
        padded = np.zeros(len(rows.reward), np.int32)
        padded[: len(chosen)] = chosen
        return self._fit(rows, padded, np.int32(len(chosen)), np.float32(gamma), key)

    def compute(
        self, critic: Params, rows: FQERows
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " M"]]:
        """Compute Q of the transitions, and V of the observations for the target policy."""
        number = len(rows.target)
        q_value, value = np.zeros(len(rows.reward)), np.zeros(number)
        index = np.asarray(rows.index)
        # Each observation that was acted on has its action; the others take any.
        owner = np.zeros(number, np.int32)
        owner[index] = np.arange(len(index))
        for first in range(0, number, _BLOCK_ROWS):
            block = np.minimum(np.arange(first, first + _BLOCK_ROWS), number - 1).astype(np.int32)
            q, v = jax.device_get(self._evaluate(critic, rows, block, owner[block]))
            size = min(_BLOCK_ROWS, number - first)
            value[first : first + size] = v[:size]
            at = np.flatnonzero((index >= first) & (index < first + size))
            q_value[at] = q[index[at] - first]
        return q_value, value

    def _run(
        self,
        rows: FQERows,
        chosen: Int[Array, " N"],
        num_chosen: Int[Array, ""],
        gamma: Float[Array, ""],
        key: Key,
    ) -> Params:
        init_key, run_key = jax.random.split(key)
        critic = self.module.init(init_key)[CRITIC]
        start = _Fit(critic=critic, target=critic, optimizer=self._optimizer.init(critic))

        def update(i: Int[Array, ""], fit: _Fit) -> _Fit:
            drawn = jax.random.randint(
                jax.random.fold_in(run_key, i),
                (self._settings.batch_size,),
                0,
                num_chosen,
                jnp.int32,
            )
            at = chosen[drawn]
            after = rows.index[at] + 1
            value = self._compute_values(fit.target, rows, after)
            goal = rows.reward[at] + gamma * jnp.where(rows.terminated[at], 0.0, value)

            def loss(critic: Params) -> Float[Array, ""]:
                return jnp.mean((self._compute_q(critic, rows, rows.index[at], at) - goal) ** 2)

            grads = jax.grad(loss)(fit.critic)
            updates, optimizer = self._optimizer.update(grads, fit.optimizer)
            critic = cast(Params, optax.apply_updates(fit.critic, updates))
            target = optax.incremental_update(critic, fit.target, self._settings.tau)
            return _Fit(critic=critic, target=cast(Params, target), optimizer=optimizer)

        return jax.lax.fori_loop(0, self._settings.num_updates, update, start).critic

    def _compute_block(
        self, critic: Params, rows: FQERows, block: Int[Array, " n"], owner: Int[Array, " n"]
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        return self._compute_q(critic, rows, block, owner), self._compute_values(
            critic, rows, block
        )

    def _compute_q(
        self, critic: Params, rows: FQERows, index: Int[Array, " n"], at: Int[Array, " n"]
    ) -> Float[Array, " n"]:
        """Compute Q of recorded actions: observation `index`, transition `at`."""
        obs = jax.tree.map(lambda x: x[index], rows.obs)
        action = rows.action[at]
        if not self.module.is_discrete:
            return self.module.compute_first_q_values(critic, obs, action)
        q_values = self.module.compute_first_q_values(critic, obs)
        return jnp.take_along_axis(q_values, action[:, None].astype(jnp.int32), axis=1)[:, 0]

    def _compute_values(
        self, critic: Params, rows: FQERows, index: Int[Array, " n"]
    ) -> Float[Array, " n"]:
        """Compute V for the target policy: the mean of Q over its actions."""
        obs = jax.tree.map(lambda x: x[index], rows.obs)
        target = rows.target[index]
        if self.module.is_discrete:
            return jnp.sum(target * self.module.compute_first_q_values(critic, obs), axis=-1)
        compute = partial(self.module.compute_first_q_values, critic, obs)
        return jnp.mean(jax.vmap(compute, in_axes=1)(target), axis=0)


def scale_rewards(rows: FQERows, scale: float) -> FQERows:
    """Return the rows with rewards divided by a scale."""
    return replace(rows, reward=np.asarray(rows.reward / scale, np.float32))


MAX_ROWS = 2**14
"""Maximum number of rows of one call of the compiled program."""


@pytree
class TargetRows:
    """Target policy at all observations of an episode, `[L+1, ...]`; the last is after its end.

    Attributes:
        obs: Observations as the module sees them.
        log_prob: Log-probability of each recorded action, except in the last row.
        action: `n` probabilities of discrete actions, or K actions of a Box; None if not requested.
    """

    obs: PyTree
    log_prob: Float[Array, " rows"]
    action: Float[Array, "rows ..."] | None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """Policy whose return is estimated.

    Attributes:
        policy_step: Module and connectors.
        actor: Parameters and connector statistics; None if the policy is only checked.
        explore: Whether it samples its actions.
        num_actions: Number of actions that are sampled per observation of a Box's policy.
        compiled: Compiled functions, which copies with other parameters share.
    """

    policy_step: PolicyStep
    actor: ActorState | None
    explore: bool
    num_actions: int = 8
    compiled: dict[Any, Any] = dataclasses.field(default_factory=dict[Any, Any])

    @property
    def module(self) -> RLModule:
        """Module of the policy."""
        return self.policy_step.module

    @property
    def has_probability(self) -> bool:
        """True if the probability, or density, of an action is known."""
        if self.explore:
            return self.module.explores_by_distribution
        return isinstance(self.module.action_space, spaces.Discrete)

    @property
    def has_modeled_actions(self) -> bool:
        """True if a value function of the actions can be fitted."""
        return isinstance(self.module.action_space, spaces.Discrete | spaces.Box)

    def check(self, *, needs_probability: bool, needs_model: bool) -> None:
        """Check that the policy can be estimated.

        Raises:
            ConfigError: If it cannot.
        """
        space = self.module.action_space
        if self.explore and not self.module.explores_by_distribution:
            raise ConfigError(
                f"explore=True has no known probabilities for {type(self.module).__name__}, which "
                "explores in its own way: use explore=False, the policy without exploration."
            )
        if needs_probability and not self.has_probability:
            raise ConfigError(
                f"Importance sampling needs the probability of recorded actions of {space}, which "
                "a policy without exploration has no density of: use the methods dm and fqe, or "
                "explore=True."
            )
        if needs_model and not self.has_modeled_actions:
            raise ConfigError(
                f"The methods dm, dr and fqe need Discrete or Box actions, got {space}: use is, "
                "pdis, wis or wpdis."
            )

    def follow(self, episodes: WholeEpisodes, key: Key, *, needs_actions: bool) -> list[TargetRows]:
        """Compute the policy at the observations of all episodes, in NumPy.

        Args:
            episodes: Episodes with the module's actions.
            key: Key of sampled actions, which is consumed.
            needs_actions: Whether the policy's own actions are needed as well.
        """
        assert self.actor is not None
        longest = int(episodes.lengths.max())
        num_columns = max(1, min(len(episodes.parts), MAX_ROWS // (longest + 1)))
        compute = self.compiled.get(needs_actions)
        if compute is None:
            compute = jax.jit(partial(self._follow_columns, needs_actions=needs_actions))
            self.compiled[needs_actions] = compute
        rows: list[TargetRows] = []
        for first in range(0, len(episodes.parts), num_columns):
            parts = list(episodes.parts[first : first + num_columns])
            blank = [parts[0]] * (num_columns - len(parts))
            columns = _pad_columns([*parts, *blank], longest)
            out = jax.device_get(compute(self.actor, *columns, jax.random.fold_in(key, first)))
            rows += [
                jax.tree.map(lambda x, i=i, part=part: x[: len(part) + 1, i], out)
                for i, part in enumerate(parts)
            ]
        return rows

    def get_model(self, settings: FQESettings) -> FittedQ:
        """Return the value function with some settings."""
        if settings not in self.compiled:
            self.compiled[settings] = FittedQ(self.module, settings)
        return self.compiled[settings]

    def _follow_columns(
        self,
        actor: ActorState,
        obs: PyTree,
        action: PyTree,
        reward: Float[Array, "T B"],
        key: Key,
        *,
        needs_actions: bool,
    ) -> TargetRows:
        """Compute the policy at columns `[T, B]`, each of which is one episode."""
        num_columns = reward.shape[1]
        no_start = jnp.zeros((num_columns,), jnp.bool_)

        def step(
            carry: ActorCarry, row: tuple[PyTree, PyTree, Array, Bool[Array, " B"], Key]
        ) -> tuple[ActorCarry, TargetRows]:
            obs, action, reward, is_first, key = row
            out, seen = self.policy_step.follow(actor, obs, carry, is_first, action)
            rows = TargetRows(
                obs=seen,
                log_prob=self._compute_log_prob(out, seen, action),
                action=self._compute_actions(out, seen, key) if needs_actions else None,
            )
            return self.policy_step.advance(out[Columns.STATE_OUT], reward, no_start), rows

        first = jnp.zeros(reward.shape, jnp.bool_).at[0].set(True)
        keys = jax.random.split(key, len(reward))
        start = self.policy_step.initial_carry(num_columns)
        return jax.lax.scan(step, start, (obs, action, reward, first, keys))[1]

    def _compute_log_prob(
        self, out: dict[str, Array], obs: PyTree, action: PyTree
    ) -> Float[Array, " B"]:
        if not self.has_probability:
            return jnp.zeros(out[Columns.ACTIONS].shape[:1], jnp.float32)
        if self.explore:
            return self.module.action_dist(out[Columns.ACTION_DIST_INPUTS], obs).log_prob(action)
        return jnp.where(out[Columns.ACTIONS] == action, 0.0, -jnp.inf)

    def _compute_actions(
        self, out: dict[str, Array], obs: PyTree, key: Key
    ) -> Float[Array, "B ..."]:
        """Return probabilities `[B, n]` of discrete actions, or K actions `[B, K, ...]` of a Box."""
        space, greedy = self.module.action_space, out[Columns.ACTIONS]
        if isinstance(space, spaces.Discrete):
            if not self.explore:
                return jax.nn.one_hot(greedy, int(space.n), dtype=jnp.float32)
            dist = self.module.action_dist(out[Columns.ACTION_DIST_INPUTS], obs)
            choices = [dist.log_prob(jnp.full_like(greedy, i)) for i in range(int(space.n))]
            return jnp.exp(jnp.stack(choices, axis=-1))
        if not self.explore:
            return greedy[:, None]
        dist = self.module.action_dist(out[Columns.ACTION_DIST_INPUTS], obs)
        keys = jax.random.split(key, self.num_actions)
        return jnp.stack([dist.sample(each) for each in keys], axis=1)


def _pad_columns(parts: list[EpisodePart], longest: int) -> tuple[PyTree, PyTree, np.ndarray]:
    """Lay episodes out as columns `[longest + 1, B]` of observations, actions and rewards.

    Rows after an episode's end repeat its last one.
    """

    def lay(*leaves: np.ndarray) -> np.ndarray:
        rows = np.arange(longest + 1)
        return np.stack([leaf[np.minimum(rows, len(leaf) - 1)] for leaf in leaves], axis=1)

    obs = jax.tree.map(lay, *(part.obs for part in parts))
    action = jax.tree.map(lay, *(part.action for part in parts))
    return obs, action, lay(*(np.asarray(part.reward, np.float32) for part in parts))
