"""Names of layers in the policies of Stable-Baselines3 and the modules of RLlib."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.interop.module_layers import ACTION_VALUES, POLICY, VALUE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Naming:
    """Names of a library's layers.

    Args:
        library: Name of the library.
        branches: For each network, its stages in order; each stage is a list of alternatives, of
            which the first that has layers counts. `{i}` is the number of a critic.
        log_std: Names of the parameter with the logarithm of the standard deviation.
        log_std_head: Name of a layer that outputs it, next to the policy's last one.
        ignored: Pattern of the arrays that are not needed to act or to train on.
        critics_differ: Reason why critics of actions cannot be imported; None if they can.
        flattens_channels_first: Whether an image, or the output of convolutions, is flattened
            channel by channel.
        scales_images: Whether 8-bit images are divided by 255.
        squashes: Whether actions in a Box that are sampled from a normal are scaled from [-1, 1];
            None if that is a setting as it is here.
    """

    library: str
    branches: Mapping[str, Sequence[Sequence[str]]]
    log_std: Sequence[str]
    log_std_head: str | None = None
    ignored: str
    critics_differ: str | None = None
    flattens_channels_first: bool
    scales_images: bool
    squashes: bool | None

    def is_ignored(self, name: str) -> bool:
        """Return whether an array is not needed."""
        return re.match(self.ignored, name) is not None


_SB3_CRITIC = [["critic.features_extractor"], ["critic.qf{i}"]]
SB3 = Naming(
    library="Stable-Baselines3",
    branches={
        POLICY: [
            ["actor.features_extractor", "pi_features_extractor", "features_extractor"],
            ["lstm_actor"],
            ["actor.latent_pi", "mlp_extractor.policy_net"],
            ["actor.mu", "action_net"],
        ],
        VALUE: [
            ["vf_features_extractor", "features_extractor"],
            ["lstm_critic", "lstm_actor"],
            ["mlp_extractor.value_net"],
            ["value_net"],
        ],
        ACTION_VALUES: [["q_net.features_extractor"], ["q_net.q_net"]],
        "critic {i}": _SB3_CRITIC,
    },
    log_std=["log_std"],
    log_std_head="actor.log_std",
    ignored=r"(critic_target|actor_target|q_net_target)\.|.*\.num_batches_tracked$",
    flattens_channels_first=True,
    scales_images=True,
    squashes=False,
)

_RLLIB_ACTOR = ("encoder.actor_encoder", "encoder.encoder", "pi_encoder")
_RLLIB_CRITIC = ("encoder.critic_encoder", "encoder.encoder", "encoder")


def _list_rllib_stages(encoders: Sequence[str], head: str) -> list[list[str]]:
    """Return the stages of a network: what encodes observations, what remembers them, the head."""
    return [
        [f"{name}.{part}" for name in encoders for part in ("tokenizer", "net")],
        [f"{name}.{part}" for name in encoders for part in ("lstm", "gru")],
        [head],
    ]


RLLIB = Naming(
    library="RLlib",
    branches={
        POLICY: _list_rllib_stages(_RLLIB_ACTOR, "pi"),
        VALUE: _list_rllib_stages(_RLLIB_CRITIC, "vf"),
        ACTION_VALUES: _list_rllib_stages(("encoder",), "af"),
    },
    log_std=["pi.log_std"],
    ignored=r"_?target_|qf_|qf\.|.*log_std_clip_param_const$",
    critics_differ="RLlib's critics encode observations and actions apart, and these do not",
    flattens_channels_first=False,
    scales_images=False,
    squashes=None,
)

NAMINGS: Mapping[str, Naming] = {"sb3": SB3, "rllib": RLLIB}


def get_naming(name: str) -> Naming:
    """Return the naming of a library.

    Raises:
        ConfigError: If the name is unknown.
    """
    if name not in NAMINGS:
        raise ConfigError(
            f"mapping is {name!r}, which is not known.{did_you_mean(name, NAMINGS)} Known: "
            f"{', '.join(map(repr, NAMINGS))}, or a dict {{'name of their layer': "
            "'path/of/yours'}."
        )
    return NAMINGS[name]


def get_stages(naming: Naming, branch: str) -> Sequence[Sequence[str]] | None:
    """Return the stages of a network; None if the library has no such one."""
    if branch in naming.branches:
        return naming.branches[branch]
    stem, _, number = branch.rpartition(" ")
    stages = naming.branches.get(f"{stem} {{i}}")
    if stages is None:
        return None
    return [[name.replace("{i}", number) for name in stage] for stage in stages]
