"""SAC (Haarnoja et al. 2018b, https://arxiv.org/abs/1812.05905), and its discrete form.

The action space selects the form: a Box is acted in with a squashed Gaussian, a Discrete space with
the probabilities of all actions (Christodoulou 2019, https://arxiv.org/abs/1910.07207). Names and
defaults are RLlib's. Deviations from RLlib: the policy is improved by the critics after their step,
as in the paper (RLlib: all gradients at the same parameters); critics take the action beside the
observation's features (RLlib: each has an encoder and a third one fuses them); importance weights
apply to all three losses; log standard deviations range from -20 to 2 (RLlib: from -5); 'auto' in a
Discrete space is 0.98 log n, as in RLlib's old API stack (new: -1).
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import fluent
from jaxrl.config.settings.actor_critic import (
    SAC_REPLAY_BUFFER,
    SoftActorCriticTraining,
    TwinTraining,
)
from jaxrl.core.hparams import HParams, build_hparams
from jaxrl.core.keys import draw_normal_rows
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, Metrics, Params, Progress, PyTree, Transition
from jaxrl.distributions.base import Categorical, SquashedGaussian
from jaxrl.learners.actor_critic import (
    COMBINED_METRICS,
    LOG_ALPHA,
    LR_NAMES,
    ActorCriticLearner,
    choose_critics,
    combine_metrics,
    compute_smallest_targets,
    critic_loss,
    get_part,
    replace_part,
    step_when_due,
)
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES, SgdState, compute_gradient_norms, select
from jaxrl.learners.target_network import TargetNetwork, init_target, update_target
from jaxrl.modules.model_config import RELU_ACTIVATIONS
from jaxrl.modules.policy_and_critics import CRITIC, POLICY, StochasticPolicyModule
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.ops.losses import masked_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class SACTraining(TwinTraining):
    """Settings of Haarnoja et al. 2018b; names and defaults are RLlib's."""


LOG_PROB = "log_prob"
DISCRETE_ENTROPY_FRACTION = 0.98
"""Fraction of the maximum entropy that 'auto' aims at.

Christodoulou 2019, appendix; RLlib uses the same.
"""


@pytree
class Delay:
    """Updates since the policy's last step, and that step's metrics by part."""

    age: Int[Array, ""]
    metrics: dict[str, Metrics]


@pytree
class SoftActorCriticState:
    """Learner state; `temperature` is log α with its optimizer, `target` that of the critics.

    Without a target network it is empty. `delay` is that of the policy, None if there is none.
    """

    sgd: SgdState
    temperature: SgdState
    target: TargetNetwork
    hparams: HParams
    delay: Delay | None = None


@pytree
class DrawnActions:
    """Actions of the policy at observations `[N, ...]`.

    Attributes:
        action: One action of a Box per observation; None for discrete actions.
        log_prob: Log-probability of it; of discrete actions, its mean.
        probs: Probabilities of all discrete actions; None in a Box.
    """

    action: PyTree
    log_prob: Float[Array, " N"]
    probs: Float[Array, "N actions"] | None = None


@pytree
class PolicyUpdate:
    """Result of a step of the policy and the temperature."""

    policy: SgdState
    temperature: SgdState
    metrics: dict[str, Metrics]


@dataclasses.dataclass(frozen=True, eq=False)
class SoftActorCritic(ActorCriticLearner[SoftActorCriticState], abc.ABC):
    """Base of SAC's and TQC's learners, which define the critics' targets and value estimate."""

    module: StochasticPolicyModule
    settings: SoftActorCriticTraining

    lr_names: ClassVar[Mapping[str, str]] = LR_NAMES
    delayed_metrics: ClassVar[tuple[str, ...]] = ("policy_loss", "logps")
    """Metrics of the policy's loss that are reported until its next step."""

    @abc.abstractmethod
    def reduce_critics(self, q: Float[Array, "critics N *n"]) -> Float[Array, " N *n"]:
        """Reduce the outputs of all critics to the value that the policy maximizes."""

    @abc.abstractmethod
    def compute_td_targets(
        self,
        next_out: Float[Array, "critics N *n"],
        batch: Transition,
        drawn: DrawnActions,
        alpha: Float[Array, ""],
    ) -> tuple[Float[Array, " N *n"], Metrics]:
        """Compute the targets of the critics, and metrics; they carry no gradient.

        Args:
            next_out: Outputs of the critics of the targets at s' and a'.
            batch: Minibatch, `[N, ...]`.
            drawn: Actions a' of the policy.
            alpha: Temperature.
        """

    @abc.abstractmethod
    def critic_loss(
        self, out: Float[Array, "critics N *n"], batch: Transition, targets: Float[Array, " N *n"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute the mean loss of the critics, and metrics with the `td_error` `[N]`.

        Args:
            out: Outputs of the critics at the rows.
            batch: Minibatch, `[N, ...]`.
            targets: Targets y.
        """

    def choose_critics(self, key: Key) -> tuple[Int[Array, " chosen"] | None, Key]:
        """Draw the critics of the targets; None is all, and then the key is not used.

        Returns:
            The critics, and the key for further draws.
        """
        return None, key

    def init(self, key: Key) -> SoftActorCriticState:
        params, hparams = self.module.init(key), build_hparams(self.settings)
        values = self.settings.at(hparams, Progress.zeros())
        log_alpha = jnp.log(jnp.asarray(self.settings.initial_alpha, jnp.float32))
        return SoftActorCriticState(
            sgd=self.init_parts(params, values),
            temperature=self.init_parts({LOG_ALPHA: log_alpha}, values),
            target=init_target(params[CRITIC] if self.settings.use_target_network else {}),
            hparams=hparams,
            delay=None if self.settings.policy_delay == 1 else self._init_delay(params[POLICY]),
        )

    def _init_delay(self, policy: Params) -> Delay:
        parts: dict[str, Params] = {POLICY: policy, LOG_ALPHA: jnp.zeros((), jnp.float32)}
        own = {POLICY: self.delayed_metrics, LOG_ALPHA: ("alpha_loss", "target_entropy")}
        names = {
            part: [*COMBINED_METRICS, *own[part]]
            + (list(compute_gradient_norms({part: params})) if self.log_gradients else [])
            for part, params in parts.items()
        }
        zero = jnp.zeros((), jnp.float32)
        metrics = {part: dict.fromkeys(of_part, zero) for part, of_part in names.items()}
        return Delay(age=jnp.zeros((), jnp.int32), metrics=metrics)

    def without_delays(self, state: SoftActorCriticState) -> SoftActorCriticState:
        if state.delay is None:
            return state
        age = jnp.full_like(state.delay.age, self.settings.policy_delay)
        return replace(state, delay=replace(state.delay, age=age))

    def update(
        self, state: SoftActorCriticState, batch: Transition, progress: Progress, key: Key
    ) -> tuple[SoftActorCriticState, Metrics]:
        """Step the critics, then, when due, the policy by the new critics and the temperature.

        If anything is non-finite, nothing changes.
        """
        critic_key, actor_key = jax.random.split(key)
        values = self.settings.at(state.hparams, progress)
        log_alpha = state.temperature.params[LOG_ALPHA]
        alpha = jnp.exp(log_alpha)
        sgd, critic = self.step_critics(state, batch, alpha, values, critic_key)
        delay, settings = state.delay, self.settings

        def policy_step() -> PolicyUpdate:
            stepped, actor = self.step_policy(
                replace(state, sgd=sgd), batch, alpha, values, progress, actor_key
            )
            log_prob = actor.pop(LOG_PROB)
            temperature, entropy = self.step_part(
                LOG_ALPHA,
                lambda log_alpha: self.alpha_loss(log_alpha, batch, log_prob),
                state.temperature,
                values,
            )
            steps = {POLICY: actor, LOG_ALPHA: entropy}
            if delay is not None:
                steps = {
                    part: {name: steps[part][name] for name in metrics}
                    for part, metrics in delay.metrics.items()
                }
            policy = get_part(stepped, POLICY)
            return PolicyUpdate(policy=policy, temperature=temperature, metrics=steps)

        if delay is None:
            actor = policy_step()
        else:
            skipped = PolicyUpdate(
                policy=get_part(sgd, POLICY),
                temperature=state.temperature,
                metrics=delay.metrics,
            )
            actor, age = step_when_due(delay.age, settings.policy_delay, policy_step, skipped)
            delay = Delay(age=age, metrics=actor.metrics)
        metrics = combine_metrics(critic, *actor.metrics.values())
        target = state.target
        if settings.use_target_network:
            frequency, tau = settings.target_network_update_freq, values.tau
            target = update_target(target, sgd.params[CRITIC], metrics, progress, tau, frequency)
        updated = replace(
            state,
            sgd=replace_part(sgd, POLICY, actor.policy),
            temperature=actor.temperature,
            delay=delay,
        )
        state = select(metrics[NUM_NONFINITE_UPDATES] < 0.5, updated, state)
        return replace(state, target=target), {
            **metrics,
            "alpha_value": alpha,
            "log_alpha_value": log_alpha,
            "curr_actor_lr": values.actor_lr,
            "curr_critic_lr": values.critic_lr,
        }

    def step_critics(
        self,
        state: SoftActorCriticState,
        batch: Transition,
        alpha: Float[Array, ""],
        values: Any,
        key: Key,
    ) -> tuple[SgdState, Metrics]:
        """Step the critics towards their targets. Consumes the key."""
        return self.approach_targets(state, batch, alpha, values, key)

    def approach_targets(
        self,
        state: SoftActorCriticState,
        batch: Transition,
        alpha: Float[Array, ""],
        values: SoftActorCriticTraining,
        key: Key,
        penalty_fn: Callable[[Params], tuple[Float[Array, ""], Metrics]] | None = None,
    ) -> tuple[SgdState, Metrics]:
        """Step the critics towards their targets, and against a penalty if there is one.

        Args:
            state: State before the update.
            batch: Minibatch, `[N, ...]`.
            alpha: Temperature in the targets.
            values: Settings with the values of the moment.
            key: Key of the actions after the rows. Consumed.
            penalty_fn: Further loss of the critics' parameters, with metrics; None for no other.
        """
        chosen, key = self.choose_critics(key)
        drawn = self.draw_actions(state.sgd.params[POLICY], batch.next_obs, key)

        def loss(
            critic: Params,
            out: Float[Array, "critics N *n"],
            next_out: Float[Array, "critics N *n"],
        ) -> tuple[Float[Array, ""], Metrics]:
            next_out = next_out if chosen is None else next_out[chosen]
            targets, others = self.compute_td_targets(next_out, batch, drawn, alpha)
            value, metrics = self.critic_loss(out, batch, targets)
            if penalty_fn is None:
                return value, {**metrics, **others}
            penalty, penalized = penalty_fn(critic)
            return value + penalty, {**metrics, **others, **penalized}

        target = state.target.params if self.settings.use_target_network else None
        return self.step_bootstrapped_critics(state.sgd, target, batch, drawn.action, loss, values)

    def step_policy(
        self,
        state: SoftActorCriticState,
        batch: Transition,
        alpha: Float[Array, ""],
        values: Any,
        progress: Progress,
        key: Key,
    ) -> tuple[SgdState, Metrics]:
        """Step the policy by the critics of the state. Consumes the key.

        The metrics have the log-probability of each row as `LOG_PROB`.
        """
        del progress
        critics = state.sgd.params[CRITIC]
        return self.step_part(
            POLICY,
            lambda policy: self.actor_loss(policy, critics, batch, alpha, key),
            state.sgd,
            values,
        )

    def compute_soft_value(
        self, policy: Params, critic: Params, obs: PyTree, alpha: Float[Array, ""], key: Key
    ) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Compute E_a[Q(s, a) − α log π(a|s)] and E_a[log π(a|s)] of observations `[N, ...]`.

        The expectation is exact over discrete actions (Christodoulou 2019, eq. 10), and one
        reparameterized sample of continuous ones. Consumes the key.
        """
        drawn = self.draw_actions(policy, obs, key)
        q = self.reduce_critics(self.module.compute_q_values(critic, obs, drawn.action))
        q = q if drawn.probs is None else jnp.sum(drawn.probs * q, axis=-1)
        return q - alpha * drawn.log_prob, drawn.log_prob

    def draw_actions(self, policy: Params, obs: PyTree, key: Key) -> DrawnActions:
        """Draw an action of a Box per observation, or return all discrete ones. Consumes the key."""
        dist = self.module.policy_dist(policy, obs)
        if self.module.is_discrete:
            assert isinstance(dist, Categorical)
            log_probs = dist.log_probs()
            probs = jnp.exp(log_probs)
            log_prob = jnp.sum(probs * log_probs, axis=-1)
            return DrawnActions(action=None, log_prob=log_prob, probs=probs)
        assert isinstance(dist, SquashedGaussian)
        noise = draw_normal_rows(key, dist.mean.shape, self.axis_name)
        action, log_prob = dist.from_noise_and_log_prob(noise)
        return DrawnActions(action=action, log_prob=log_prob)

    def actor_loss(
        self,
        policy: Params,
        critic: Params,
        batch: Transition,
        alpha: Float[Array, ""],
        key: Key,
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute E[w (α log π(a|s) − Q(s, a))], a ~ π(·|s)  (Haarnoja et al. 2018b, eq. 9).

        Args:
            policy: Policy parameters, which the gradient is taken for.
            critic: Parameters of all critics.
            batch: Minibatch, `[N, ...]`.
            alpha: Temperature.
            key: Key of the action samples. Consumed.
        """
        value, log_prob = self.compute_soft_value(policy, critic, batch.obs, alpha, key)
        loss = -jnp.mean(batch.weight * value)
        logps = masked_mean(log_prob, batch.weight > 0.0, self.axis_name)
        return loss, {"policy_loss": loss, "logps": logps, LOG_PROB: log_prob}

    def alpha_loss(
        self, log_alpha: Float[Array, ""], batch: Transition, log_prob: Float[Array, " N"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute −log α E[w (log π(a|s) + H̄)]: α falls while the entropy exceeds H̄.

        Haarnoja et al. 2018b, eq. 18, with log α for α as in their code and RLlib's.

        Args:
            log_alpha: Log temperature, which the gradient is taken for.
            batch: Minibatch, `[N, ...]`.
            log_prob: Log-probability of the policy at each row.
        """
        target = self.compute_target_entropy(batch.obs, log_prob)
        loss = -log_alpha * jnp.mean(batch.weight * (log_prob + target))
        return loss, {"alpha_loss": loss, "target_entropy": jnp.mean(target)}

    def compute_target_entropy(
        self, obs: PyTree, log_prob: Float[Array, " N"]
    ) -> Float[Array, " N"]:
        """Compute the target entropy H̄ of each row."""
        setting = self.settings.target_entropy
        if setting != "auto":
            return jnp.full_like(log_prob, setting)
        if not self.module.is_discrete:
            return jnp.full_like(log_prob, -math.prod(self.module.distribution.event_shape))
        mask = self.module.action_mask(obs)
        if mask is None:
            num_actions = self.module.distribution.input_dim
            return jnp.full_like(log_prob, DISCRETE_ENTROPY_FRACTION * math.log(num_actions))
        num_legal = jnp.sum(mask.astype(jnp.float32), axis=-1)
        return DISCRETE_ENTROPY_FRACTION * jnp.log(jnp.maximum(num_legal, 1.0))


@dataclasses.dataclass(frozen=True, eq=False)
class SACLearner(SoftActorCritic):
    """Critics of the entropy-regularized return, of which the smallest is used."""

    settings: TwinTraining

    def reduce_critics(self, q: Float[Array, "critics N *n"]) -> Float[Array, " N *n"]:
        """Compute the smallest value, or where some critics are drawn for the targets the mean.

        The mean is that of Chen et al. 2021, algorithm 1.
        """
        reduce = jnp.mean if self.settings.draws_critics else jnp.min
        return reduce(q, axis=0)

    def choose_critics(self, key: Key) -> tuple[Int[Array, " chosen"] | None, Key]:
        return choose_critics(self.settings, key)

    def compute_td_targets(
        self,
        next_out: Float[Array, "critics N *n"],
        batch: Transition,
        drawn: DrawnActions,
        alpha: Float[Array, ""],
    ) -> tuple[Float[Array, " N *atoms"], Metrics]:
        """Compute y = r + γ (minₖ Q'ₖ(s', a') − α log π(a'|s')), a' ~ π(·|s').

        Haarnoja et al. 2018b, eq. 5-6, see `compute_smallest_targets`.
        """
        cost, support = alpha * drawn.log_prob, self.module.support
        return compute_smallest_targets(
            next_out, batch, support, cost, drawn.probs, axis_name=self.axis_name
        )

    def critic_loss(
        self, out: Float[Array, "critics N *n"], batch: Transition, targets: Float[Array, " N *n"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """Compute Σₖ E[w l(Qₖ(s, a) − y)], with l set by `td_error_loss_fn`, or C51's.

        In Haarnoja et al. 2018b, eq. 5, l is ½ e².
        """
        out, loss_fn = self.module.select_taken(out, batch.action), self.settings.td_error_loss_fn
        support = self.module.support
        return critic_loss(out, targets, batch.weight, loss_fn, self.axis_name, support)


UNIFORM_BUFFER = {**SAC_REPLAY_BUFFER, "type": "uniform"}
"""Buffer of the papers that SAC's presets are from."""


class SACConfig(AlgorithmConfig):
    """Configuration of SAC."""

    algo_name = "SAC"
    training_settings: SACTraining = SACTraining(
        train_batch_size=256,
        tau=0.005,
        num_steps_sampled_before_learning_starts=1500,
        replay_buffer_config=SAC_REPLAY_BUFFER,
    )
    reporting_settings = dataclasses.replace(
        AlgorithmConfig.reporting_settings, min_sample_timesteps_per_iteration=1000
    )
    training = fluent("training_settings", SACTraining)

    def get_default_learner_class(self) -> type[SoftActorCritic]:
        return SACLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=StochasticPolicyModule, model_config=RELU_ACTIVATIONS)


class RNNSACConfig(SACConfig):
    """SAC with an LSTM, from sequences (RLlib 2.3's RNNSAC).

    The train batch of 320 rows is 16 sequences of `max_seq_len`, 20; RLlib's is 256 rows.
    """

    algo_name = "RNNSAC"
    training_settings: SACTraining = dataclasses.replace(
        SACConfig.training_settings, train_batch_size=320, zero_init_states=True
    )

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        model_config = {**RELU_ACTIVATIONS, "use_lstm": True}
        return RLModuleSpec(module_class=StochasticPolicyModule, model_config=model_config)


class CrossQConfig(SACConfig):
    """SAC with batch-renormalized wide critics and no target network (Bhatt et al. 2024).

    https://arxiv.org/abs/1902.05605. Values are those of the authors' code. Deviations from it: the
    policy is not renormalized, and b1 is 0.5 for the temperature too.
    """

    algo_name = "CrossQ"
    training_settings: SACTraining = dataclasses.replace(
        SACConfig.training_settings,
        use_target_network=False,
        policy_delay=3,
        optimizer={"name": "adam", "b1": 0.5},
        actor_lr=1e-3,
        critic_lr=1e-3,
        alpha_lr=1e-3,
        td_error_loss_fn="mse",
        num_steps_sampled_before_learning_starts=5000,
        initial_random_timesteps=5000,
        replay_buffer_config=UNIFORM_BUFFER,
    )

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        model_config = {
            **RELU_ACTIVATIONS,
            "critic_use_batchrenorm": True,
            "critic_fcnet_hiddens": [2048, 2048],
        }
        return RLModuleSpec(module_class=StochasticPolicyModule, model_config=model_config)


class REDQConfig(SACConfig):
    """SAC with ten critics, two of which give the targets, and 20 updates per step (Chen et al. 2021).

    https://arxiv.org/abs/2101.05982. Values are those of the authors' code: the policy learns with every
    20th update, and the target entropy is the one number that differs, which is theirs by environment.
    """

    algo_name = "REDQ"
    training_settings: SACTraining = dataclasses.replace(
        SACConfig.training_settings,
        num_critics=10,
        num_target_critics=2,
        policy_delay=20,
        training_intensity=5120.0,  # 20 batches of 256 for every step
        actor_lr=3e-4,
        critic_lr=3e-4,
        alpha_lr=3e-4,
        td_error_loss_fn="mse",
        num_steps_sampled_before_learning_starts=5000,
        initial_random_timesteps=5000,
        replay_buffer_config=UNIFORM_BUFFER,
    )
