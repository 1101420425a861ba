"""How long the sequences are that a module which remembers learns from."""

from jaxrl.config.batch_plan.arithmetic import BatchPlan
from jaxrl.config.batch_plan.divisors import divisors
from jaxrl.config.batch_plan.replay import ReplayPlan
from jaxrl.errors import ConfigError
from jaxrl.modules.encoder_module import EncoderModule
from jaxrl.modules.rl_module import RLModule

DEFAULT_MAX_SEQ_LEN = 20


def max_seq_len(module: RLModule) -> int:
    """The setting, for modules of the library; RLlib's default for others."""
    if isinstance(module, EncoderModule):
        return module.settings.max_seq_len
    return DEFAULT_MAX_SEQ_LEN


def sequence_length(plan: BatchPlan, module: RLModule) -> int | None:
    """Rows of a sequence in the minibatches of a train batch; None where there are none.

    The largest number up to `max_seq_len` that divides the rollout, with whole sequences in every
    minibatch of each shard.

    Raises:
        ConfigError: That is less than half of what was asked for.
    """
    if isinstance(plan, ReplayPlan) or not module.is_stateful:
        return None
    if plan.sequence_length is not None:
        return plan.sequence_length
    steps, most = plan.rollout_fragment_length, max_seq_len(module)
    columns = plan.num_envs // plan.num_shards
    whole = [n for n in divisors(steps) if (steps // n * columns) % plan.num_minibatches == 0]
    length = max((n for n in whole if n <= most), default=0)
    if 2 * length < min(most, steps):
        longer = [n for n in whole if n > most]
        rows = min(most, steps) * plan.num_shards
        instead = f"max_seq_len to {longer[0]}, or " if longer else ""
        raise ConfigError(
            f"max_seq_len={most} must allow sequences that divide rollout_fragment_length={steps} "
            f"and leave each minibatch (minibatch_size={plan.minibatch_size}) whole ones of every "
            f"shard, but the longest that do have {length} rows; set {instead}"
            f"minibatch_size to a multiple of {rows}, beside a rollout_fragment_length that is one of "
            f"{min(most, steps)}."
        )
    return length
