"""Defaults of algorithms, and values of their settings that are refused."""

from typing import Any

import pytest

from jaxrl import (
    A2CConfig,
    AWACConfig,
    BCConfig,
    CQLConfig,
    CRRConfig,
    DQNConfig,
    IQLConfig,
    JaxrlError,
    MARWILConfig,
    PGConfig,
    SACConfig,
    TD3Config,
    TQCConfig,
)

INFINITE = float("inf")
DEFAULTS: list[tuple[Any, dict[str, Any]]] = [
    # rllib_contrib's A2C (whose settings are A3C's) and rllib's PG, but for their train batches
    (A2CConfig, {"lr": 1e-4, "grad_clip": 40.0, "lambda_": 1.0}),
    (A2CConfig, {"vf_loss_coeff": 0.5, "entropy_coeff": 0.01}),
    (PGConfig, {"lr": 4e-4, "grad_clip": None, "use_critic": False, "entropy_coeff": 0.0}),
    # RLlib's IQL, CQL, MARWIL and BC, and the CRR that it had
    (IQLConfig, {"beta": 0.1, "expectile": 0.8, "twin_q": True, "target_network_update_freq": 0}),
    (IQLConfig, dict.fromkeys(("actor_lr", "critic_lr", "value_lr"), 3e-4)),
    (CRRConfig, {"weight_type": "bin", "temperature": 1.0, "max_weight": 20.0}),
    (CRRConfig, {"n_action_sample": 4}),
    (CQLConfig, {"bc_iters": 20_000, "temperature": 1.0, "num_actions": 10, "min_q_weight": 5.0}),
    (CQLConfig, {"lagrangian": False, "lagrangian_thresh": 5.0}),
    (CQLConfig, {"deterministic_backup": True, "twin_q": True}),
    (CQLConfig, dict.fromkeys(("actor_lr", "critic_lr", "alpha_lr"), 3e-4)),
    (MARWILConfig, {"beta": 1.0, "vf_coeff": 1.0, "lambda_": 1.0, "grad_clip": None}),
    (MARWILConfig, {"moving_average_sqd_adv_norm_start": 100.0}),
    (MARWILConfig, {"moving_average_sqd_adv_norm_update_rate": 1e-8}),
    *(
        (config, {"lr": 1e-4, "train_batch_size": 2000, "bc_logstd_coeff": 0.0})
        for config in (MARWILConfig, BCConfig)
    ),
]


@pytest.mark.parametrize(("config", "wanted"), DEFAULTS)
def test_defaults_are_those_of_rllib(config: Any, wanted: dict[str, Any]) -> None:
    assert {name: config()[name] for name in wanted} == wanted


def test_algorithms_of_recorded_data_say_so() -> None:
    assert all(x.requires_data for x in (IQLConfig, CRRConfig, CQLConfig, MARWILConfig, BCConfig))
    assert not AWACConfig.requires_data


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (IQLConfig, {"expectile": 1.0}, r"expectile must be above 0 and below 1"),
    (IQLConfig, {"beta": -1.0}, r"beta must be at least 0"),
    (IQLConfig, {"value_lr": -1.0}, r"value_lr must be"),
    (AWACConfig, {"temperature": 0.0}, r"temperature must be above 0"),
    (AWACConfig, {"max_weight": 0.0}, r"max_weight must be above 0"),
    (AWACConfig, {"n_action_sample": 0}, r"n_action_sample must be at least 1"),
    (CRRConfig, {"weight_type": "softmax"}, r"weight_type must be"),
    (CRRConfig, {"advantage_type": "expectation"}, r"advantage_type must be"),
    (
        CRRConfig,
        {"target_update_grad_intervals": 100},
        r"target_network_update_freq counts .* updates times train_batch_size",
    ),
    (CQLConfig, {"bc_iters": -1}, r"bc_iters must be at least 0"),
    (CQLConfig, {"temperature": 0.0}, r"temperature must be above 0"),
    (CQLConfig, {"num_actions": 0}, r"num_actions must be at least 1"),
    (CQLConfig, {"min_q_weight": -1.0}, r"min_q_weight must be at least 0"),
    (CQLConfig, {"lagrangian_thresh": INFINITE}, r"lagrangian_thresh must be finite"),
    (MARWILConfig, {"lambda_": 1.1}, r"lambda_ must be between 0 and 1"),
    (MARWILConfig, {"beta": -1.0}, r"beta must be at least 0, got -1.0"),
    (MARWILConfig, {"vf_coeff": -1.0}, r"vf_coeff must be at least 0"),
    (MARWILConfig, {"bc_logstd_coeff": -0.1}, r"bc_logstd_coeff must be at least 0"),
    (MARWILConfig, {"moving_average_sqd_adv_norm_start": 0.0}, r"must be above 0"),
    (MARWILConfig, {"moving_average_sqd_adv_norm_update_rate": 1.5}, r"must be between 0 and 1"),
    (
        DQNConfig,
        {"num_atoms": 11, "num_quantiles": 5},
        r"num_atoms=11 .* num_quantiles=5 .* exclude",
    ),
    (
        DQNConfig,
        {"num_atoms": 11, "v_min": 2.0, "v_max": 1.0},
        r"v_min must be below v_max, got 2.0 and 1",
    ),
    (DQNConfig, {"epsilon": 1.5}, r"epsilon must be between 0 and 1, got 1.5"),
    (DQNConfig, {"epsilon": [[0, 1.0], [10, -0.1]]}, r"epsilon must be between 0 and 1"),
    (DQNConfig, {"epsilon": [[5, 1.0]]}, r"epsilon must start at timestep 0"),
    (DQNConfig, {"epsilon_ladder": -1.0}, r"epsilon_ladder must be above 0, got -1"),
    (DQNConfig, {"num_atoms": 0}, r"num_atoms must be at least 1 .*, got 0"),
    (DQNConfig, {"num_quantiles": 0}, r"num_quantiles must be at least 1 .*, got 0"),
    (DQNConfig, {"sigma0": 0.0}, r"sigma0 must be above 0, got 0"),
    (DQNConfig, {"v_max": INFINITE}, r"v_max must be finite"),
    (DQNConfig, {"td_error_loss_fn": "hubert"}, r"td_error_loss_fn .*Did you mean 'huber'"),
    (DQNConfig, {"hiddens": [64]}, r"'hiddens' .*head_fcnet_hiddens"),
    (
        DQNConfig,
        {"margin_coeff": 1.0},
        r"margin_coeff=1.0 is the weight of a loss on recorded rows, and",
    ),
    (DQNConfig, {"margin": 0.5}, r"margin=0.5 has no effect with margin_coeff=0"),
    (DQNConfig, {"adam_epsilon": 1e-3}, r"'adam_epsilon' .*'eps'"),
    (
        DQNConfig,
        {"categorical_distribution_temperature": 0.5},
        r"'categorical_dist.*epsilon",
    ),
    (
        SACConfig,
        {"lr": 1e-3},
        r"lr must be None, since every part has its own learning rate .*, got 0.001",
    ),
    (SACConfig, {"actor_lr": -1.0}, r"actor_lr must be at least 0"),
    (SACConfig, {"critic_lr": [[5, 1e-3]]}, r"critic_lr must start at timestep 0"),
    (SACConfig, {"initial_alpha": 0.0}, r"initial_alpha must be above 0"),
    (SACConfig, {"target_entropy": "automatic"}, r"target_entropy .*Did you mean 'auto'"),
    (SACConfig, {"tau": 1.5}, r"tau must be between 0 and 1"),
    (
        SACConfig,
        {"q_model_config": {"fcnet_hiddens": [8]}},
        r"'q_model_config' .*applies to the policy and the critics",
    ),
    (
        SACConfig,
        {"optimization_config": {"actor_learning_rate": 1e-2}},
        r"'optimization_config' .*actor_lr, critic_lr and alpha_lr",
    ),
    (SACConfig, {"_deterministic_loss": True}, r"'_deterministic_loss' .*actions are sampled"),
    (TD3Config, {"policy_delay": 0}, r"policy_delay must be at least 1"),
    (TD3Config, {"target_noise": -0.1}, r"target_noise must be at least 0"),
    (
        TD3Config,
        {"exploration_noise": 0.1},
        r"'ou', got 0\.1\. Give a number as exploration_sigma=0\.1\.",
    ),
    (TD3Config, {"exploration_noise": "gausssian"}, r"exploration_noise .*Did you mean 'gaussian'"),
    (
        TD3Config,
        {"exploration_sigma_max": 0.5},
        r"exploration_sigma_max=0\.5 .*but there is one: raise num_envs_per_env_runner",
    ),
    (
        TD3Config,
        {"exploration_sigma_max": 0.05},
        r"at least exploration_sigma=0\.1, got 0\.05",
    ),
    (TD3Config, {"exploration_sigma_max": -1.0}, r"exploration_sigma_max must be at least 0"),
    (TD3Config, {"ou_theta": 1.5}, r"ou_theta must be between 0 and 1"),
    (TD3Config, {"lr": 1e-3}, r"lr must be None"),
    (TD3Config, {"l2_reg": 1e-6}, r"'l2_reg' .*weight_decay"),
    (TD3Config, {"huber_threshold": 2.0}, r"'huber_threshold' .*becomes linear at 1"),
    (TD3Config, {"critic_hiddens": [400]}, r"'critic_hiddens' .*fcnet_hiddens"),
    (
        TQCConfig,
        {"n_quantiles": 3, "top_quantiles_to_drop_per_net": 3},
        r"top_quantiles_to_drop_per_net=3 leaves nothing of n_quantiles=3; use at most 2",
    ),
    (TQCConfig, {"n_critics": 0}, r"n_critics must be at least 1"),
    (TQCConfig, {"twin_q": False}, r"'twin_q' .*n_critics is the number"),
    (TQCConfig, {"td_error_loss_fn": "mse"}, r"no setting 'td_error_loss_fn'"),
]


@pytest.mark.parametrize(("config", "settings", "message"), WRONG)
def test_wrong_settings_are_one_sentence(
    config: Any, settings: dict[str, Any], message: str
) -> None:
    env = "Pendulum-v1" if config in (SACConfig, TD3Config, TQCConfig) else "CartPole-v1"
    with pytest.raises(JaxrlError, match=message) as caught:
        config().environment(env).training(**settings).validate()
    assert "\n" not in str(caught.value)
