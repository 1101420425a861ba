"""ES and ARS against plain NumPy; members, devices, lanes and runners; what broken versions do not learn."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from scipy.stats import rankdata

from jaxrl import ARSConfig, ESConfig, RLModule
from jaxrl.algorithms import es
from jaxrl.algorithms.es import ARSLearner, ESLearner, Members, PerturbedModule
from jaxrl.assembly.assemble import assemble
from jaxrl.core.types import Columns, Counter, Progress, Rollout
from jaxrl.errors import ConfigError
from jaxrl.modules.rl_module import Moment
from tests.helpers import assert_close, assert_equal

STEPS, MEMBERS = 6, 8
SPACE = spaces.Box(-1.0, 1.0, (3,), np.float32)


def config_of(algo: str, num_envs: int = MEMBERS, steps: int = 20, **training: Any) -> Any:
    """Members on CartPole with episodes of at most 20 steps."""
    config: Any = {"ES": ESConfig, "ARS": ARSConfig}[algo]()
    config.environment("CartPole-v1", max_episode_steps=steps)
    config.env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=steps)
    config.training(train_batch_size=num_envs * steps, **training)
    hiddens = {"model_config": {"fcnet_hiddens": [4]}} if algo == "ES" else {}
    return config.rl_module(**hiddens).learners(num_devices=1).debugging(loggers=[], seed=1)


def learner_of(kind: type[ESLearner], **training: Any) -> tuple[ESLearner, Any]:
    """A learner with a step of size 1 down its gradient, and a state."""
    config: Any = {ESLearner: ESConfig, ARSLearner: ARSConfig}[kind]()
    config.training(optimizer="sgd", lr=1.0, **training).rl_module(
        model_config={"fcnet_hiddens": [4]}
    )
    module = config.get_rl_module_spec(SPACE, spaces.Discrete(2)).build()
    learner = kind(module=module, settings=config.training_settings)
    return learner, learner.init(jax.random.key(0))


def recorded(seed: int = 0) -> Rollout:
    """Rewards of members, with ends of both kinds and rows that are none at the end."""
    rng, shape = np.random.default_rng(seed), (STEPS, MEMBERS)
    truncated = rng.random(shape) < 0.2
    truncated[-2] = True
    mask = np.ones(shape, bool)
    mask[-1, ::3] = False
    truncated[-1] = mask[-1]
    return Rollout(
        obs=jnp.zeros((*shape, 3)),
        action=jnp.zeros(shape, jnp.int32),
        reward=jnp.asarray(rng.normal(size=shape), jnp.float32),
        terminated=jnp.asarray((rng.random(shape) < 0.2) & ~truncated),
        truncated=jnp.asarray(truncated),
        final_obs=jnp.zeros((*shape, 3)),
        is_first=jnp.zeros(shape, bool),
        mask=jnp.asarray(mask),
        extras={},
    )


def progress_of(train_batches: int) -> Progress:
    return replace(Progress.zeros(), train_batches=Counter.from_number(train_batches))


def members_of(module: Any, state: Any, progress: Progress) -> np.ndarray:
    """The flat parameters of every member, `[MEMBERS, P]`, as a rollout acts with them."""
    moment = Moment(
        hparams=state.hparams, progress=progress, env_index=jnp.arange(MEMBERS, dtype=jnp.int32)
    )
    acting = module.make_acting_params(state.sgd.params, moment)
    assert isinstance(acting, Members)
    leaves = jax.tree.leaves(acting.params)
    return np.concatenate([np.asarray(x).reshape(MEMBERS, -1) for x in leaves], axis=1)


def flat(params: Any) -> np.ndarray:
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(params)])


def fitness_of(rollout: Rollout, offset: float = 0.0) -> np.ndarray:
    """The mean return of each member's episodes, row by row."""
    fitness = []
    for b in range(MEMBERS):
        total, ends = 0.0, 0
        for t in range(STEPS):
            if rollout.mask[t, b]:
                total += float(rollout.reward[t, b]) - offset
                ends += bool(rollout.terminated[t, b] | rollout.truncated[t, b])
        fitness.append(total / max(ends, 1))
    return np.asarray(fitness)


def step(learner: Any, state: Any, rollout: Rollout, progress: Progress) -> tuple[Any, Any]:
    batch, prepared = learner.prepare(state, rollout, progress)
    rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    after, metrics = learner.update(state, rows, progress, jax.random.key(9))
    return after, {**prepared, **metrics}


@pytest.mark.parametrize("number", [2, 7, 64])
def test_ranks_are_scipys(number: int) -> None:
    values = np.random.default_rng(number).integers(0, 5, number).astype(np.float32)
    ranks = (rankdata(values) - 1) / (number - 1) - 0.5
    np.testing.assert_allclose(es.compute_centered_ranks(jnp.asarray(values)), ranks, atol=1e-6)


def test_neighbors_have_opposite_noise_and_every_batch_its_own() -> None:
    learner, state = learner_of(ESLearner, noise_stdev=0.5)
    center = flat(state.sgd.params)
    noise = [(members_of(learner.module, state, progress_of(n)) - center) / 0.5 for n in (0, 1)]
    np.testing.assert_allclose(noise[0][::2], -noise[0][1::2], atol=1e-5)
    rows = np.concatenate([noise[0][::2], noise[1][::2]])
    assert 0.8 < rows.std() < 1.2
    assert np.abs(np.corrcoef(rows) - np.eye(len(rows))).max() < 0.9
    other = learner.init(jax.random.key(1))  # another seed: other noise on the same parameters
    moved = replace(other, sgd=state.sgd)
    assert np.abs(members_of(learner.module, moved, progress_of(0)) - center).max() > 0
    assert not np.allclose(
        members_of(learner.module, moved, progress_of(0)),
        members_of(learner.module, state, progress_of(0)),
    )


@pytest.mark.parametrize("batch", [0, 3])
def test_es_steps_by_the_ranks_of_its_members(batch: int) -> None:
    """Members are those that the rollout acted with, so that noise is computed twice in the same way."""
    learner, state = learner_of(ESLearner, noise_stdev=0.3, l2_coeff=0.1)
    progress, rollout = progress_of(batch), recorded(batch)
    after, metrics = step(learner, state, rollout, progress)
    center = flat(state.sgd.params).astype(np.float64)
    noise = (members_of(learner.module, state, progress) - center) / 0.3
    fitness = fitness_of(rollout)
    ranks = (rankdata(fitness) - 1) / (MEMBERS - 1) - 0.5
    gradient = ranks @ noise / (MEMBERS * 0.3) - 0.1 * center
    np.testing.assert_allclose(flat(after.sgd.params), center + gradient, atol=2e-5)
    assert metrics["fitness_mean"] == pytest.approx(fitness.mean(), abs=1e-5)
    assert metrics["fitness_max"] == pytest.approx(fitness.max(), abs=1e-5)


@pytest.mark.parametrize(("used", "offset"), [(None, 0.0), (2, 0.5)])
def test_ars_steps_by_its_best_pairs(used: int | None, offset: float) -> None:
    learner, state = learner_of(ARSLearner, noise_stdev=0.3, rollouts_used=used, offset=offset)
    progress, rollout = progress_of(2), recorded(5)
    after, _ = step(learner, state, rollout, progress)
    center = flat(state.sgd.params).astype(np.float64)
    noise = ((members_of(learner.module, state, progress) - center) / 0.3)[::2]
    fitness = fitness_of(rollout, offset)
    up, down = fitness[::2], fitness[1::2]
    best = np.argsort(-np.maximum(up, down))[: used or MEMBERS // 2]
    spread = np.concatenate([up[best], down[best]]).std()
    gradient = (up - down)[best] @ noise[best] / (len(best) * spread)
    np.testing.assert_allclose(flat(after.sgd.params), center + gradient, atol=2e-5)


def test_equal_returns_change_nothing() -> None:
    for kind in (ESLearner, ARSLearner):
        learner, state = learner_of(kind, **({"l2_coeff": 0.0} if kind is ESLearner else {}))
        rollout = replace(recorded(), reward=jnp.zeros((STEPS, MEMBERS)))
        after, metrics = step(learner, state, rollout, progress_of(0))
        assert_close(after.sgd.params, state.sgd.params)
        assert metrics["num_nonfinite_updates"] == 0


def test_actions_are_those_of_each_members_parameters() -> None:
    learner, state = learner_of(ESLearner, noise_stdev=2.0)
    module: Any = learner.module
    obs = jnp.asarray(np.random.default_rng(0).normal(size=(MEMBERS, 3)), jnp.float32)
    moment = Moment(hparams=state.hparams, progress=progress_of(0), env_index=jnp.arange(MEMBERS))
    acting = module.make_acting_params(state.sgd.params, moment)

    def act(params: Any) -> Any:
        return module.forward_exploration(
            params, obs, None, state.hparams, progress_of(0), moment.env_index, None
        )[Columns.ACTIONS]

    one_by_one = [act(jax.tree.map(lambda x, i=i: x[i], acting.params))[i] for i in range(MEMBERS)]
    np.testing.assert_array_equal(act(acting), np.stack(one_by_one))
    assert len(set(map(int, act(acting)))) == 2
    inferred = module.forward_inference(state.sgd.params, obs)[Columns.ACTIONS]
    np.testing.assert_array_equal(act(state.sgd.params), inferred)


def test_noise_is_added_to_numbers_alone() -> None:
    space = spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2,), np.float32), "b": spaces.Discrete(3)})
    module = PerturbedModule(observation_space=SPACE, action_space=space, model_config={})
    params = module.init(jax.random.key(0))
    obs = jnp.ones((4, 3))
    draws = module.draw(jax.random.split(jax.random.key(1), 4))
    inputs = (obs, None, {"action_noise_std": jnp.float32(0.5)}, Progress.zeros(), jnp.arange(4))
    noisy = module.forward_exploration(params, *inputs, draws)[Columns.ACTIONS]
    plain = module.forward_inference(params, obs)[Columns.ACTIONS]
    np.testing.assert_array_equal(noisy["b"], plain["b"])
    np.testing.assert_allclose(noisy["a"] - plain["a"], 0.5 * draws["a"], atol=1e-6)
    assert len(np.unique(draws["a"])) == 8


# --- runs ---


def state_after(config: Any, batches: int = 3) -> Any:
    with config.reporting(min_sample_timesteps_per_iteration=0).build() as algorithm:
        for _ in range(batches):
            algorithm.train()
        return jax.device_get(algorithm.state)


@pytest.mark.allow_key_reuse
def test_a_rollout_in_the_program_has_whole_episodes_from_their_start() -> None:
    assembly = assemble(config_of("ES"))
    run = assembly.run
    state = jax.jit(run.init)(jax.random.key(0), assembly.jax_env.params)
    for _ in range(2):
        state, data = jax.jit(run.collect)(state)
        rows = data.rollout
        assert rows.is_first[0].all()
        ended = (rows.terminated | rows.truncated) & rows.mask
        after = np.cumsum(np.asarray(ended)[::-1], axis=0)[::-1] > 0
        np.testing.assert_array_equal(rows.mask, after)
        assert (~np.asarray(rows.mask)).any()
        assert data.num_env_steps == np.asarray(rows.mask).sum()
        assert np.asarray(data.record.ended).sum() == np.asarray(ended).sum() >= MEMBERS


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("algo", ["ES", "ARS"])
@pytest.mark.parametrize("num_devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_devices_share_a_population(algo: str, num_devices: int) -> None:
    one = state_after(config_of(algo, lr=0.05), batches=1)
    several = state_after(config_of(algo, lr=0.05).learners(num_devices=num_devices), batches=1)
    assert_close(several.learner.sgd, one.learner.sgd, rtol=1e-4, atol=1e-5)


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("algo", ["ES", pytest.param("ARS", marks=pytest.mark.slow)])
def test_a_resumed_run_is_the_run(algo: str, tmp_path: Any) -> None:
    config = config_of(algo, lr=0.05)
    with config.build() as algorithm:
        algorithm.train()
        algorithm.save(tmp_path / "checkpoint")
        algorithm.train()
        want = algorithm.get_state()["train_state"]
    with type(algorithm).from_checkpoint(tmp_path / "checkpoint") as resumed:
        resumed.train()
        assert_equal(resumed.get_state()["train_state"], want)


@pytest.mark.allow_key_reuse
def test_lanes_have_noise_and_settings_of_their_own() -> None:
    from jaxrl import grid

    config = config_of("ES").training(noise_stdev=grid([0.05, 0.5]), lr=grid([0.01, 0.1]))
    with config.sweep(seeds=2).build() as sweep:
        sweep.train()
        for index in (1, 6):
            lane = sweep.lanes[index]
            alone = lane.config.copy(copy_frozen=False).debugging(seed=lane.seed)
            with alone.learners(num_devices=1).build() as single:
                single.train()
                state = sweep._runs[index].algorithm.state
                want = single.state
                assert_close(state.learner.sgd, want.learner.sgd, rtol=1e-4, atol=1e-5)


@pytest.mark.allow_key_reuse
def test_members_on_the_host_act_with_the_noise_that_is_learned_from() -> None:
    """On the host a run learns as in the program, from episodes that begin elsewhere."""
    config = config_of("ARS", lr=0.05).env_runners(placement="host")
    with config.build() as algorithm:
        first = jax.device_get(algorithm.state)
        group: Any = algorithm.env_runner_group
        group.sync_weights(algorithm.learner_group.get_weights(0))
        (fragment,) = group.next_batch()
        module: Any = algorithm.get_module()._pure
        hparams, progress = first.learner.hparams, first.progress
        moment = Moment(hparams=hparams, progress=progress, env_index=jnp.arange(MEMBERS))
        acting = module.make_acting_params(first.learner.sgd.params, moment)
        rows = fragment.rollout
        for t in (0, 3):
            out = module.forward_exploration(
                acting, jnp.asarray(rows.obs[t]), None, hparams, progress, moment.env_index, None
            )
            np.testing.assert_allclose(
                rows.extras[Columns.ACTION_DIST_INPUTS][t],
                out[Columns.ACTION_DIST_INPUTS],
                atol=1e-5,
            )
        result = algorithm.train()
    assert result["learners"]["default_policy"]["fitness_mean"] > 0


# --- learning ---


def final_return(config: Any, generations: int = 25) -> float:
    with config.build() as algorithm:
        for _ in range(generations):
            algorithm.train()
        found = algorithm.evaluate()
    return found["env_runners"]["episode_return_mean"]


def searching(**training: Any) -> Any:
    config = ARSConfig().environment("CartPole-v1")
    config.env_runners(num_envs_per_env_runner=32, rollout_fragment_length=500)
    config.training(lr=0.05, noise_stdev=0.05, rollouts_used=8, train_batch_size=16_000, **training)
    config.evaluation(evaluation_duration=20).reporting(min_sample_timesteps_per_iteration=0)
    return config.learners(num_devices=1).debugging(loggers=[], seed=0)


@pytest.mark.allow_key_reuse
def test_ars_solves_cartpole() -> None:
    assert final_return(searching()) >= 475


@pytest.mark.allow_key_reuse
def test_a_search_whose_pairs_have_the_same_noise_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = PerturbedModule.make_acting_params

    def broken(self: Any, params: Any, moment: Moment) -> Any:
        return honest(self, params, replace(moment, env_index=moment.env_index // 2 * 2))

    monkeypatch.setattr(PerturbedModule, "make_acting_params", broken)
    assert final_return(searching()) < 475


@pytest.mark.slow
@pytest.mark.allow_key_reuse
def test_a_search_sees_small_numbers_through_its_filter() -> None:
    found = []
    for observation_filter in ("MeanStdFilter", "NoFilter"):
        config = ARSConfig().environment("MountainCarContinuous-v0")
        config.env_runners(
            num_envs_per_env_runner=32,
            rollout_fragment_length=999,
            observation_filter=observation_filter,
        )
        config.training(lr=0.05, noise_stdev=0.1, rollouts_used=8, train_batch_size=31_968)
        config.evaluation(evaluation_duration=20).reporting(min_sample_timesteps_per_iteration=0)
        config.learners(num_devices=1).debugging(loggers=[], seed=0)
        found.append(final_return(config, 60))
    assert found[0] >= 80
    assert found[1] <= 10


# --- bad input ---

BAD: dict[str, tuple[Any, str]] = {
    "odd": (lambda: config_of("ES", 7), "set num_envs_per_env_runner to 8"),
    "truncated": (
        lambda: config_of("ES").env_runners(batch_mode="truncate_episodes"),
        "leave it at 'complete_episodes'",
    ),
    "explore": (lambda: config_of("ES").env_runners(explore=False), "perturbs no parameters"),
    "gamma": (lambda: config_of("ARS", gamma=0.9), "gamma=0.9 has no effect on ARS"),
    "pairs": (lambda: config_of("ARS", rollouts_used=5), "rollouts_used=5 of 4 pairs"),
    "memory": (
        lambda: config_of("ES").rl_module(model_config={"use_lstm": True}),
        "gradients through time",
    ),
    "values": (
        lambda: config_of("ES").rl_module(model_config={"vf_share_layers": True}),
        "vf_share_layers=True has no effect on ES and ARS",
    ),
    "short": (
        lambda: config_of("ES").environment(max_episode_steps=50),
        "50 steps, got rollout_fragment_length=20: set it to 50",
    ),
    "endless": (
        lambda: config_of("ES").environment("probe-value-v0", max_episode_steps=None),
        "set max_episode_steps",
    ),
    "simulators": (
        lambda: config_of("ES").env_runners(placement="external"),
        "'env' .* has no effect with placement='external'",
    ),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_answered(case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        make().build()


def test_a_module_without_own_parameters_acts_with_the_learners() -> None:
    params = {"w": jnp.ones(2)}
    module = RLModule.__new__(RLModule)
    moment = Moment(hparams={}, progress=Progress.zeros(), env_index=jnp.arange(2))
    assert module.make_acting_params(params, moment) is params


def test_rllibs_names_are_understood() -> None:
    config: Any = ARSConfig().training(
        num_rollouts=30, sgd_stepsize=0.02, noise_size=250_000_000, report_length=10
    )
    assert (config.num_envs_per_env_runner, config.lr) == (60, 0.02)
    config = ESConfig().training(episodes_per_batch=100, stepsize=0.03, eval_prob=0.003)
    assert (config.num_envs_per_env_runner, config.lr) == (100, 0.03)
    with pytest.raises(ConfigError, match="evaluates the unperturbed policy"):
        ESConfig().training(eval_prob=0.5)
