"""Methods of `Algorithm` that export its policy, RLlib's among them."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.metrics import DEFAULT_MODULE

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.modules.rl_module import RLModule
    from jaxrl.policy.policy import Policy

_RLLIB_FORMATS = ("checkpoint", "model")


class ExportMethods:
    """Methods that export the current policy of an algorithm."""

    if TYPE_CHECKING:
        config: Config

        @property
        def iteration(self) -> int: ...
        @property
        def run_dir(self) -> str: ...
        def get_module(self, module_id: str) -> RLModule: ...
        def get_policy(self, policy_id: str) -> Policy: ...
        def save(self, checkpoint_dir: str | None = None) -> str: ...

    def export(
        self,
        folder: str | os.PathLike[str],
        formats: Sequence[str] = ("numpy",),
        explore: Sequence[bool] = (False, True),
        policy_id: str = DEFAULT_MODULE,
    ) -> str:
        """Write the current policy as files that run without jaxrl, and return their folder.

        Connectors, masks, memory and the conversion of actions are inside. `export/numpy_program.py`
        runs the files with NumPy alone; its `NumpyPolicy` has the methods of `Policy`.

        Args:
            folder: New or empty folder.
            formats: "numpy", for any language that reads JSON and arrays; "stablehlo", for JAX;
                "onnx", for runtimes of ONNX.
            explore: Actions to export: the most likely one (False), a sampled one (True), or both.
            policy_id: Id of the module, in a run of several agents.

        Raises:
            ExportError: If the module has an operation without a counterpart, the folder is not
                empty, or a format is unknown.
        """
        return self._export(folder, formats, explore, policy_id=policy_id)

    def _export(
        self,
        folder: str | os.PathLike[str],
        formats: Sequence[str],
        explore: Sequence[bool] = (False, True),
        opset: int | None = None,
        policy_id: str = DEFAULT_MODULE,
    ) -> str:
        from jaxrl.export.artifact import describe_run, make_export

        policy = self.get_policy(policy_id)
        self.get_module(policy_id)  # raises for an unknown id
        source = describe_run(self.config, self.iteration)
        exported = make_export(
            policy.inference,
            policy.actor,
            formats=formats,
            explore=explore,
            source=source,
            opset=opset,
        )
        return str(exported.write(folder))

    def export_policy_model(
        self, export_dir: str, policy_id: str = DEFAULT_MODULE, onnx: int | None = None
    ) -> str:
        """Export the policy; RLlib's name of `export`.

        Args:
            export_dir: New or empty folder.
            policy_id: Id of the module, in a run of several agents.
            onnx: Version of ONNX's operators to write ONNX files of as well, at least 17, which is
                written for older ones; None writes none.

        Raises:
            ExportError: As `export`, or if onnx does not know the version.
        """
        formats = ("numpy",) if onnx is None else ("numpy", "onnx")
        return self._export(export_dir, formats, opset=onnx, policy_id=policy_id)

    def export_policy_checkpoint(self, export_dir: str, policy_id: str = DEFAULT_MODULE) -> str:
        """Export the policy; RLlib's name of `export`."""
        return self.export(export_dir, policy_id=policy_id)

    def export_model(
        self, export_formats: str | Sequence[str], export_dir: str | None = None
    ) -> dict[str, str]:
        """Export in RLlib's formats, and return the path of each.

        Args:
            export_formats: "model", for `export`, and "checkpoint", for `save`.
            export_dir: Folder of the checkpoint and of the folder `exported`; None is the run's.

        Raises:
            ConfigError: If there is no such format.
        """
        names = [export_formats] if isinstance(export_formats, str) else export_formats
        for name in names:
            if name not in _RLLIB_FORMATS:
                raise ConfigError(
                    f"There is no export format {name!r}; formats are {', '.join(_RLLIB_FORMATS)}."
                    f"{did_you_mean(name, _RLLIB_FORMATS)}"
                )
        folder = export_dir or self.run_dir
        return {
            name: self.save(folder)
            if name == "checkpoint"
            else self.export(os.path.join(folder, "exported"))
            for name in names
        }
