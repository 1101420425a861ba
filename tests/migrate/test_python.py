"""Rules for Python code: what each turns into, with comments and layout kept."""

import ast
import textwrap

import pytest

from jaxrl.errors import ConfigError
from jaxrl.migrate.python_file import migrate_python
from jaxrl.migrate.report import Migration

PPO = "from ray.rllib.algorithms.ppo import PPOConfig\n"
OURS = "from jaxrl import PPOConfig\n"


def migrate(code: str) -> Migration:
    """The migration of code, which must stay Python and be final."""
    migration = migrate_python(textwrap.dedent(code))
    ast.parse(migration.new)
    again = migrate_python(migration.new)
    assert again.new == migration.new, "a second run changes it"
    return migration


def new(code: str) -> str:
    return migrate(code).new


def by_hand(code: str) -> list[tuple[int, str, str]]:
    return [(item.line, item.what, item.advice) for item in migrate(code).by_hand]


IMPORTS = {
    "a config": (PPO, OURS),
    "an alias": (
        "from ray.rllib.algorithms.ppo import PPOConfig as Config\nConfig()\n",
        "from jaxrl import PPOConfig as Config\nConfig()\n",
    ),
    "the old name of a class": (
        "from ray.rllib.agents.impala import ImpalaConfig\nc = ImpalaConfig()\n",
        "from jaxrl import IMPALAConfig\nc = IMPALAConfig()\n",
    ),
    "a taken name": (
        "from ray.rllib.callbacks.callbacks import RLlibCallback as R\nCallbacks = R\n",
        "from jaxrl.callbacks import Callbacks as R\nCallbacks = R\n",
    ),
    "a module with an alias": (
        "import ray.rllib.algorithms.ppo as ppo\nc = ppo.PPOConfig()\n",
        "import jaxrl\nc = jaxrl.PPOConfig()\n",
    ),
    "the package": (
        "from ray import rllib\nc = rllib.algorithms.ppo.PPOConfig()\n",
        "import jaxrl\nc = jaxrl.PPOConfig()\n",
    ),
    "a path in full": (
        "import ray.rllib\nray.init()\nc = ray.rllib.algorithms.ppo.PPOConfig()\n",
        "import ray\nimport jaxrl\nray.init()\nc = jaxrl.PPOConfig()\n",
    ),
    "layout": (
        "from ray.rllib.utils.metrics import (\n    TIMERS as T,  # where\n)\nr[T]['x']\n",
        "from jaxrl.metrics import (\n    TIMERS as T,  # where\n)\nr[T]['x']\n",
    ),
    "inside a function": (
        "def f():\n    from ray.rllib.algorithms.sac import SACConfig  # slow\n    return SACConfig()\n",
        "def f():\n    from jaxrl import SACConfig  # slow\n    return SACConfig()\n",
    ),
    "the environment registry": (
        f"{PPO}from ray import tune\ntune.register_env('x', f)\n",
        f"{OURS}from ray import tune\nimport jaxrl\njaxrl.register_env('x', f)\n",
    ),
}


@pytest.mark.parametrize("case", IMPORTS)
def test_imports(case: str) -> None:
    before, after = IMPORTS[case]
    assert new(before) == after


def test_a_name_that_is_taken_becomes_an_alias() -> None:
    code = "from ray.rllib.algorithms.callbacks import DefaultCallbacks\nclass Callbacks(DefaultCallbacks): ...\nc = Callbacks\n"
    expected = "from jaxrl.callbacks import Callbacks as DefaultCallbacks"
    assert new(code) == "\n".join([expected, *code.splitlines()[1:], ""])


def test_decorators_of_annotations_are_removed() -> None:
    code = """
    from ray.rllib.utils.annotations import override
    class A(B):
        @override(B)
        def f(self): ...
    """
    after = new(f"{PPO}{textwrap.dedent(code)}")
    assert "override" not in after
    assert "class A(B):\n    def f(self): ..." in after


def test_what_has_no_counterpart_stays_and_is_listed() -> None:
    code = (
        "from ray.rllib.models import ModelCatalog\n"
        "from ray.rllib.algorithms.ppo import *\n"
        "from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner\n"
        "from ray.rllib.algorithms.maml import MAMLConfig\n"
    )
    migration = migrate(code)
    assert migration.new == code
    assert [item.line for item in migration.by_hand] == [1, 2, 3, 4]
    assert "rl_module(network=...)" in migration.by_hand[0].advice
    assert "one by one" in migration.by_hand[1].advice
    assert "PPO" in migration.by_hand[3].advice


CHAINS = {
    "rollouts": (
        ".rollouts(num_rollout_workers=2, num_envs_per_worker=4)",
        ".env_runners(num_env_runners=2, num_envs_per_env_runner=4)",
    ),
    "framework": (
        ".framework('torch', eager_tracing=True).training(lr=1e-3)",
        ".training(lr=1e-3)",
    ),
    "epochs": (
        ".training(num_sgd_iter=3, sgd_minibatch_size=64)",
        ".training(num_epochs=3, minibatch_size=64)",
    ),
    "the model moves": (
        ".training(lr=1e-3, model={'fcnet_hiddens': [8]}).build()",
        ".training(lr=1e-3).rl_module(model_config={'fcnet_hiddens': [8]}).build()",
    ),
    "into a call that exists": (
        ".training(model={'fcnet_hiddens': [8]}).rl_module(rl_module_spec=spec)",
        ".rl_module(rl_module_spec=spec, model_config={'fcnet_hiddens': [8]})",
    ),
    "no GPU": (".resources(num_gpus=0, num_gpus_per_worker=0)", ""),
    "a GPU": (".resources(num_gpus=1)", ".learners(num_gpus_per_learner=1)"),
    "a workers' CPU": (
        ".resources(num_gpus=0, num_cpus_per_worker=2)",
        ".env_runners(num_cpus_per_env_runner=2)",
    ),
    "exploration": (".exploration(explore=False)", ".env_runners(explore=False)"),
    "api stack": (".api_stack(enable_rl_module_and_learner=False)", ""),
    "experimental": (".experimental(_disable_preprocessor_api=False)", ""),
    "no schedule": (".training(lr_schedule=None, gamma=0.9)", ".training(gamma=0.9)"),
    "a schedule": (
        ".training(lr=1e-3, lr_schedule=[[0, 1e-3], [100, 0.0]])",
        ".training(lr=[[0, 1e-3], [100, 0.0]])",
    ),
    "evaluation": (
        ".evaluation(evaluation_num_workers=1, evaluation_config={'num_workers': 1})",
        ".evaluation(evaluation_num_env_runners=1, evaluation_config={'num_env_runners': 1})",
    ),
    "neutral settings of models": (
        ".training(model={'custom_model': None, 'fcnet_activation': 'relu'})",
        ".rl_module(model_config={'fcnet_activation': 'relu'})",
    ),
}


@pytest.mark.parametrize("case", CHAINS)
def test_chains(case: str) -> None:
    before, after = CHAINS[case]
    assert new(f"{PPO}c = PPOConfig(){before}\n") == f"{OURS}c = PPOConfig(){after}\n"


def test_a_name_assigned_from_a_config_is_followed() -> None:
    code = f"""{PPO}
def make():
    return PPOConfig().environment("CartPole-v1")

class Run:
    def __init__(self, given: PPOConfig):
        self.config = make()
        self.config.rollouts(num_rollout_workers=1)
        given.training(num_sgd_iter=1)
        given.num_workers = 2

config = make()
config = config.framework("tf2")
config.framework(framework="torch")
config.training(num_sgd_iter=2)
config["num_workers"] = 3
algo = config.build()
"""
    after = new(code)
    assert "self.config.env_runners(num_env_runners=1)" in after
    assert "given.training(num_epochs=1)" in after
    assert "given.num_env_runners = 2" in after
    assert "framework" not in after
    assert "config.training(num_epochs=2)\nconfig.num_env_runners = 3\nalgo" in after


def test_epsilon_greedy_exploration_is_a_schedule() -> None:
    code = (
        "from ray.rllib.algorithms.dqn import DQNConfig\n"
        "c = DQNConfig().exploration(exploration_config={'type': 'EpsilonGreedy', "
        "'initial_epsilon': 1.0, 'final_epsilon': 0.1, 'epsilon_timesteps': 500})\n"
    )
    assert new(code).endswith("DQNConfig().training(epsilon=[[0, 1.0], [500, 0.1]])\n")


def test_comments_and_layout_stay() -> None:
    code = f"""{PPO}
# Why PPO.
config = (
    PPOConfig()  # the algorithm
    .environment("CartPole-v1")
    # The framework:
    .framework("torch")  # not tf
    .rollouts(
        # one is enough
        num_rollout_workers=1,  # a worker
    )
    .resources(
        num_gpus=0,  # none
        num_cpus_per_worker=1,  # per worker
    )
    .training(lr=1e-3,   gamma=0.9)
    # the end
)
config.framework("torch")  # again
settings = {{
    "framework": "torch",  # first
    "num_workers": 1,  # second
    # third
    "num_gpus": 0,
}}
from ray import tune
tune.run("PPO", config=settings)
"""
    after = new(code)
    for comment in [line.split("#")[1] for line in code.splitlines() if "#" in line]:
        assert f"#{comment}" in after, comment
    assert "framework(" not in after
    assert ".training(lr=1e-3,   gamma=0.9)" in after
    assert "tune.run(PPO, config=settings)" in after


def test_settings_without_a_counterpart_stay_and_are_listed() -> None:
    code = f"""{PPO}
c = PPOConfig()
c.training(entropy_coef=0.9)
c.training(model={{"custom_model": "mine"}})
c.multi_agent(policy_map_cache=3)
c.rollouts(observation_filter="Unknown")
c.fly(1)
c.num_learner_threads
"""
    found = by_hand(code)
    assert [line for line, _, _ in found] == [4, 5, 6, 7, 8, 9]
    assert "did you mean 'entropy_coeff'" in found[0][2]
    assert "rl_module(network=...)" in found[1][2]
    assert "MeanStdFilter" in found[3][2]
    assert 'observation_filter="Unknown"' in new(code)


def test_dictionaries_of_settings() -> None:
    code = """
    from ray import tune
    from ray.rllib.agents import ppo

    config = ppo.DEFAULT_CONFIG.copy()
    config["num_workers"] = 2
    config["framework"] = "torch"
    config.update({"num_sgd_iter": 3, "num_gpus": 0})
    trainer = ppo.PPOTrainer(config=config, env="CartPole-v1")
    param = dict(num_workers=1, framework="tf")
    tune.Tuner("PPO", param_space=param)
    own = {"num_workers": 3}
    """
    after = new(code)
    assert 'config = {}\nconfig["num_env_runners"] = 2\nconfig.update({"num_epochs": 3})' in after
    assert 'trainer = PPOConfig.from_dict(config).build(env="CartPole-v1")' in after
    assert "param = dict(num_env_runners=1)" in after
    assert "tune.Tuner(PPO, param_space=param)" in after
    assert 'own = {"num_workers": 3}' in after
    assert "from jaxrl import PPO, PPOConfig" in after


def test_a_default_config_that_is_read_keeps_its_settings() -> None:
    code = "from ray.rllib.agents.ppo import DEFAULT_CONFIG\nc = DEFAULT_CONFIG.copy()\nprint(c['lr'])\n"
    assert "c = PPOConfig().to_dict()" in new(code)


CONSTRUCTORS = {
    "PPO(config=c)": "c.build()",
    "PPO(c, env='E')": "c.build(env='E')",
    "PPO(config={'num_workers': 1})": "PPOConfig.from_dict({'num_env_runners': 1}).build()",
    "PPO(env='E')": "PPOConfig().build(env='E')",
    "PPO(config=PPOConfig().framework('torch')).train()": "PPOConfig().build().train()",
}


@pytest.mark.parametrize("before", CONSTRUCTORS)
def test_classes_of_algorithms_are_built_from_their_configs(before: str) -> None:
    code = f"from ray.rllib.algorithms.ppo import PPO, PPOConfig\nc = PPOConfig()\nx = {before}\n"
    assert new(code) == f"{OURS}c = PPOConfig()\nx = {CONSTRUCTORS[before]}\n"


def test_class_methods_of_algorithms() -> None:
    code = (
        "from ray.rllib.algorithms.ppo import PPO\n"
        "a = PPO.from_checkpoint(p)\na.save_to_path(q)\nb = PPO.with_updates(name='x')\n"
    )
    after = new(code)
    assert "a = Algorithm.from_checkpoint(p)\na.save(q)\n" in after
    assert "from jaxrl import Algorithm, PPO\n" in after
    assert [line for line, _, _ in by_hand(code)] == [4]


def test_stop_criteria_of_another_file() -> None:
    code = f"{PPO}stop = {{'timesteps_total': 10, 'training_iteration': 2}}\n"
    assert "{'num_env_steps_sampled_lifetime': 10, 'training_iteration': 2}" in new(code)


def test_keywords_of_update() -> None:
    code = "from ray.rllib.agents.ppo import DEFAULT_CONFIG as D\nc = D.copy()\nc.update(framework='torch', num_workers=3)\n"
    assert new(code) == "c = {}\nc.update(num_env_runners=3)\n"


def test_an_unclear_constructor_and_a_subclass_are_listed() -> None:
    code = (
        "from ray.rllib.algorithms.ppo import PPO\n"
        "def f(config) -> PPO:\n    return PPO(config=config)\n"
        "class Mine(PPO):\n    pass\n"
    )
    found = by_hand(code)
    assert [line for line, _, _ in found] == [3, 4]
    assert "config.build()" in found[0][2]
    assert "algo_class" in found[1][2]
    assert "-> Algorithm" in new(code)


def test_a_subclass_with_resources_of_its_own_is_a_trainable_here_too() -> None:
    head = "from ray.rllib.algorithms.ppo import PPO\nclass Mine(PPO):\n"
    resources = (
        "    @classmethod\n    def default_resource_request(cls, config):\n        return 1\n"
    )
    assert by_hand(head + resources) == []
    assert by_hand(f"{head}{resources}    def training_step(self):\n        return {{}}\n")


RESULTS = {
    'r["episode_reward_mean"]': 'r["env_runners"]["episode_return_mean"]',
    "r['sampler_results']['episode_len_mean']": "r['env_runners']['episode_len_mean']",
    'r["evaluation"]["episode_reward_max"]': 'r["evaluation"]["env_runners"]["episode_return_max"]',
    'r["info"]["learner"]["default_policy"]["learner_stats"]["kl"]': (
        'r["learners"]["default_policy"]["kl"]'
    ),
    'r["info"]["learner"]["p0"]["learner_stats"]["kl"]': 'r["learners"]["p0"]["kl"]',
    'r["info"]["learner"]["p0"]["learner_stats"]': 'r["learners"]["p0"]',
    'r["timesteps_total"] + 1': 'r["num_env_steps_sampled_lifetime"] + 1',
    'r.get("episode_reward_mean", 0)': 'r.get("env_runners", {}).get("episode_return_mean", 0)',
    'r["training_iteration"]': 'r["training_iteration"]',
    'algo.evaluate()["evaluation"]["episode_reward_mean"]': (
        'algo.evaluate()["env_runners"]["episode_return_mean"]'
    ),
    'unknown["episode_reward_mean"]': 'unknown["env_runners"]["episode_return_mean"]',
    'unknown["episode_len_mean"]': 'unknown["episode_len_mean"]',
    'own["episode_reward_mean"]': 'own["episode_reward_mean"]',
    'results.get_dataframe()["episode_reward_mean"]': (
        'results.get_dataframe()["env_runners/episode_return_mean"]'
    ),
    'results.get_best_result("episode_reward_mean", "max")': (
        'results.get_best_result("env_runners/episode_return_mean", "max")'
    ),
    'f(metric="episode_reward_mean")': 'f(metric="env_runners/episode_return_mean")',
    'print("episode_reward_mean")': 'print("episode_reward_mean")',
}


@pytest.mark.parametrize("before", RESULTS)
def test_result_keys(before: str) -> None:
    setup = (
        "from ray import tune\ndef f(): ...\nc = PPOConfig()\nalgo = c.build()\nr = algo.train()\n"
        "own = {'episode_reward_mean': 1}\nresults = tune.Tuner(f).fit()\n"
    )
    assert new(f"{PPO}{setup}x = {before}\n") == f"{OURS}{setup}x = {RESULTS[before]}\n"


def test_stop_criteria_and_metrics_of_tune() -> None:
    code = f"""{PPO}
from ray import air, tune
from ray.tune.schedulers import ASHAScheduler

STOP = {{"episode_reward_mean": 150, "timesteps_total": 1000}}
METRIC = "episode_reward_mean"
tune.Tuner(
    "PPO",
    param_space=PPOConfig(),
    run_config=air.RunConfig(stop=STOP),
    tune_config=tune.TuneConfig(metric=METRIC, scheduler=ASHAScheduler(metric=METRIC)),
)
"""
    after = new(code)
    assert (
        'STOP = {"env_runners/episode_return_mean": 150, "num_env_steps_sampled_lifetime": 1000}'
        in after
    )
    assert 'METRIC = "env_runners/episode_return_mean"' in after
    assert "run_config=tune.RunConfig(stop=STOP)" in after
    assert "from ray import tune\n" in after


def test_a_name_known_at_run_time_registers_the_algorithms() -> None:
    code = f"{PPO}from ray import tune\ntune.run(args.run, config={{'num_workers': 1}})\n"
    after = new(code)
    assert "import jaxrl.tune" in after
    assert "{'num_env_runners': 1}" in after


METHODS = {
    "algo.save().checkpoint.path": "algo.save()",
    "saved.checkpoint.path": "saved",
    "algo.save_to_path(p)": "algo.save(p)",
    "algo.compute_action(obs)": "algo.compute_single_action(obs)",
    "algo.workers.foreach_worker(f)": "algo.env_runner_group.foreach_env_runner(f)",
    "algo.logdir": "algo.run_dir",
    "algo.get_policy()": "algo.get_policy()",
}


@pytest.mark.parametrize("before", METHODS)
def test_methods(before: str) -> None:
    setup = "algo = PPOConfig().build()\nsaved = algo.save()\n"
    assert new(f"{PPO}{setup}x = {before}\n") == f"{OURS}{setup}x = {METHODS[before]}\n"


def test_methods_without_a_counterpart_are_listed() -> None:
    code = (
        f"{PPO}algo = PPOConfig().build()\n"
        "algo.get_policy().config\n"
        "algo.workers.remote_workers()\n"
        "algo.import_model('d')\n"
        "algo.fly()\n"
    )
    found = by_hand(code)
    assert [line for line, _, _ in found] == [3, 4, 5, 6]
    assert "algorithm.config" in found[0][2]


def test_runners_that_a_function_is_called_with() -> None:
    code = (
        f"{PPO}algo = PPOConfig().build()\n"
        "algo.workers.foreach_worker(lambda worker: worker.foreach_env(f))\n"
        "algo.workers.foreach_worker_with_id(lambda i, worker: worker.foreach_env(f))\n"
        "algo.workers.foreach_worker(lambda worker, i=2: i.foreach_env(f))\n"
        "sorted([], key=lambda worker: worker.foreach_env(f))\n"
    )
    found = sorted((line, what) for line, what, _ in by_hand(code))
    assert found == [
        (3, "env_runner.foreach_env()"),
        (4, "env_runner.foreach_env()"),
    ]


def test_callbacks() -> None:
    code = """
    from ray.rllib.algorithms.callbacks import DefaultCallbacks

    class Mine(DefaultCallbacks):
        def on_trainer_init(self, *, trainer, **kwargs):
            print(trainer.iteration)

        def on_train_result(self, *, trainer, result, **kwargs):
            print(trainer, result["episode_reward_mean"], f(trainer=1))

        def on_episode_end(self, *, worker, base_env, policies, episode, **kwargs):
            print(episode.total_reward, episode.length, worker.index)

        def on_learn_on_batch(self, *, policy, train_batch, result, **kwargs):
            pass
    """
    migration = migrate(code)
    assert "class Mine(Callbacks):" in migration.new
    assert "def on_algorithm_init(self, *, algorithm, **kwargs):" in migration.new
    assert (
        'print(algorithm, result["env_runners"]["episode_return_mean"], f(trainer=1))'
        in migration.new
    )
    assert "def on_episode_end(self, *, env_runner, env, episode, **kwargs):" in migration.new
    assert "print(episode.get_return(), len(episode), env_runner.index)" in migration.new
    assert [(item.line, item.what) for item in migration.by_hand] == [(14, "on_learn_on_batch()")]


def test_arguments_that_are_passed_stay_and_others_are_removed_or_listed() -> None:
    code = """
    from ray.rllib.callbacks.callbacks import RLlibCallback
    class Mine(RLlibCallback):
        def on_train_result(self, *, algorithm, metrics_logger, result, **kwargs):
            print(result)
        def on_episode_end(self, *, episode, env, env_index, metrics_logger, **kwargs):
            metrics_logger.log_value("x", len(episode))
        def on_episode_step(self, *, episode, env_runner, metrics_logger, env, **kwargs):
            metrics_logger.log_value("x", env)
        def on_checkpoint_loaded(self, *, algorithm, policies, **kwargs):
            print(algorithm)
        def on_evaluate_start(self, *, algorithm, policies, **kwargs):
            print(policies)
    """
    after = new(code)
    assert "def on_train_result(self, *, algorithm, metrics_logger, result, **kwargs):" in after
    assert "def on_episode_end(self, *, episode, env, env_index, metrics_logger" in after
    assert "def on_checkpoint_loaded(self, *, algorithm, **kwargs):" in after
    ((line, what, advice),) = by_hand(code)
    assert (line, what) == (12, "on_evaluate_start(policies)")
    assert "passed are algorithm, metrics_logger" in advice


def test_code_without_rllib_stays_as_it_is() -> None:
    code = "import gymnasium\nconfig = {'num_workers': 1}\nr['episode_reward_mean']\n"
    migration = migrate(code)
    assert migration.new == code
    assert not migration.uses_rllib


def test_what_was_left_is_listed_again() -> None:
    code = f"{PPO}c = PPOConfig().multi_agent(policies=p).training(num_sgd_iter=1)\n"
    first = migrate(code)
    second = migrate(first.new)
    assert [item.what for item in second.by_hand] == [item.what for item in first.by_hand]


def test_line_ends_and_indentation_stay() -> None:
    code = f"{PPO}if True:\n\tc = PPOConfig().framework('torch')\n".replace("\n", "\r\n")
    expected = f"{OURS}if True:\n\tc = PPOConfig()\n".replace("\n", "\r\n")
    assert migrate_python(code).new == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (f"{PPO}x = (\n", "line 2: not valid Python"),
        (f"{PPO}print 'done'\n", "line 2: it is Python 2"),
        (f"{PPO}raise ValueError, 'no'\n", "line 2: it is Python 2"),
    ],
)
def test_code_that_is_not_python_is_refused(code: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        migrate_python(code, "train.py")


def test_methods_of_learners_are_listed_with_what_they_are_here() -> None:
    found = by_hand(
        """\
        from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
        class Mine(PPOTorchLearner):
            def configure_optimizers_for_module(self, module_id, config=None):
                self.register_optimizer(module_id=module_id, optimizer=make(config.lr))
            def before_gradient_based_update(self, *, timesteps):
                self.count = timesteps
            def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
                return 0.0
        class Other:
            def compute_losses(self):
                self.register_optimizer()
        """
    )
    assert [(line, what) for line, what, _ in found[1:]] == [
        (3, "configure_optimizers_for_module()"),
        (4, "learner.register_optimizer()"),
        (5, "before_gradient_based_update()"),
        (7, "compute_loss_for_module()"),
    ]
    assert "progress.env_steps are the timesteps" in found[3][2]


INFERENCE = """
import numpy as np
import torch
from ray.rllib.algorithms.ppo import PPOConfig

algo = PPOConfig().environment("CartPole-v1").build()
result = algo.train()
result.pop("config")
module = algo.get_module()
obs = np.zeros(4)
out = module.forward_inference({"obs": torch.from_numpy(obs).unsqueeze(0)})
best = torch.argmax(out["action_dist_inputs"], dim=-1)
action = out["actions"][0].detach()
fine = module.forward_inference({"obs": obs[None]})
other = torch.zeros(3).numpy()
"""


def test_tensors_in_an_inference_loop_are_listed() -> None:
    found = [(line, what) for line, what, _ in by_hand(INFERENCE)]
    assert found == [
        (11, "forward_inference() of tensors"),
        (12, "torch.argmax() of a module's output"),
        (13, ".detach() of a module's output"),
    ]


EXPLORE = """
from ray.rllib.algorithms.dqn import DQNConfig

explore = {"type": "EpsilonGreedy", "epsilon_timesteps": 5000}
explore_more = {"type": "EpsilonGreedy", "epsilon_timesteps": 5000}
explore_more["final_epsilon"] = 0.5
config = DQNConfig().exploration(exploration_config=explore)
other = DQNConfig().exploration(exploration_config=explore_more)
"""


def test_a_literal_that_has_a_name_is_read_unless_it_is_changed() -> None:
    migration = migrate(EXPLORE)
    assert "DQNConfig().training(epsilon=[[0, 1.0], [5000, 0.02]])" in migration.new
    assert [(item.line, item.what) for item in migration.by_hand] == [(8, "exploration_config")]


def test_what_is_always_checked_and_what_no_space_is_are_listed() -> None:
    code = (
        PPO
        + """
from ray.rllib.policy.policy import Policy
from ray.rllib.utils.spaces.simplex import Simplex
space = Simplex(shape=(3,))
PPOConfig().experimental(_validate_config=False)
class Mine(Policy):
    pass
"""
    )
    simplex, validate, mine = by_hand(code)
    assert "softmax" in simplex[2]
    assert validate[2].startswith("settings are always validated")
    assert "HeuristicRLModule" in mine[2]
