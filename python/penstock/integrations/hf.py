"""transformers' Trainer (docs/pytorch_trainer.md).

trainer = transformers.Trainer(…, optimizer_cls_and_kwargs=(penstock.AdamW, {"nvme_path": …}),
                               callbacks=[TrainerCallback()])
trainer = Trainer(…, penstock_config="ds_config.json")
"""

from __future__ import annotations

import os
import pathlib
import secrets
import shutil
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import transformers

from penstock._config import ConfigLike
from penstock._device import is_elsewhere
from penstock._init import Weights
from penstock._initialize import initialize
from penstock._module_optimizer import ModuleOptimizer
from penstock._named_commit import NamedCommit
from penstock._offloaded import OffloadedOptimizer
from penstock._universal_files import load_file
from penstock.errors import InvalidArgumentError, PenstockError
from penstock.integrations._trainer_config import engine_config, uses_nvme

__all__ = ["Trainer", "TrainerCallback"]

_OPTIMIZER = "optimizer.pt"  # transformers' name
_SNAPSHOT = "penstock"  # within a checkpoint


def _ours(optimizer: Any) -> OffloadedOptimizer | ModuleOptimizer | None:
    """Returns the optimizer of this package that a trainer has, within accelerate's wrapper."""
    inner = getattr(optimizer, "optimizer", optimizer)
    return inner if isinstance(inner, (OffloadedOptimizer, ModuleOptimizer)) else None


class TrainerCallback(transformers.TrainerCallback):
    """Keeps a snapshot of the states in each checkpoint's folder.

    So training can resume from every checkpoint, not only from the last one. The Trainer removes a
    snapshot with its checkpoint.
    """

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        optimizer = _ours(others.get("optimizer"))
        if optimizer is None:
            raise InvalidArgumentError(
                "penstock: penstock.integrations.TrainerCallback was given to a trainer whose "
                "optimizer is not of penstock; give optimizer_cls_and_kwargs=(penstock.AdamW, {…}), "
                "or leave out the callback"
            )
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        saved = os.path.join(folder, _OPTIMIZER)
        if args.save_only_model or getattr(optimizer, "in_doubt", False):  # then none was saved
            return
        if not os.path.exists(saved):
            warnings.warn(
                f"penstock: {saved} is not there, so checkpoint {state.global_step} has no snapshot",
                stacklevel=2,
            )
            return
        state_dict = torch.load(saved, weights_only=True)
        if state_dict["penstock"] is None:
            return  # before the first step
        place = os.path.join(folder, _SNAPSHOT)
        shutil.rmtree(place, ignore_errors=True)  # of an overwritten checkpoint
        state_dict["penstock"]["snapshot"] = optimizer.snapshot(place)
        torch.save(state_dict, saved + ".new")
        os.replace(saved + ".new", saved)


def _commit_of(checkpoint: str) -> dict[str, Any] | None:
    """Returns the entry of our commit in a checkpoint; None if it has none."""
    path = os.path.join(checkpoint, _OPTIMIZER)
    if not os.path.exists(path):
        return None
    state = load_file(pathlib.Path(path))
    said: dict[str, Any] | None = state.get("penstock") if isinstance(state, Mapping) else None
    if said is not None:
        NamedCommit(said)  # raises
    if said is not None and os.path.isdir(os.path.join(checkpoint, _SNAPSHOT)):
        said["snapshot"] = os.path.join(checkpoint, _SNAPSHOT)  # the folder may have been moved
    return said


class Trainer(transformers.Trainer):
    """transformers' Trainer with parameters and states at home as in a DeepSpeed configuration.

    Checkpoints are transformers' own, with real weights; states are in commits that they name.

    Args:
        penstock_config: the configuration, as a mapping or a file. ``"auto"`` takes the value of
            the training arguments; other values than theirs are refused.
        penstock_weights: the argument ``weights`` of ``penstock.initialize``, for a model that was
            made within ``penstock.init``.
        args, kwargs: of ``transformers.Trainer``.
    """

    def __init__(
        self,
        *args: Any,
        penstock_config: ConfigLike,
        penstock_weights: Weights = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.args._n_gpu = 1  # a model on several would be copied to each
        self._train_batch_size = self.args.train_batch_size
        self._weights = penstock_weights
        self._penstock_config = engine_config(penstock_config, self.args)
        self._commit: Mapping[str, Any] | None = None
        self._own: ModuleOptimizer | None = None
        self._check_arguments()
        # The module keeps its dtype, as with accelerate's DeepSpeed plugin.
        self.accelerator.native_amp = False
        self.accelerator.device_placement = False
        self.add_callback(TrainerCallback())

    def _check_arguments(self) -> None:
        problem = None
        if self.optimizer is not None or self.optimizer_cls_and_kwargs is not None:
            problem = (
                "an optimizer is given; leave it out: penstock_config and the arguments say it"
            )
        elif self.args.load_best_model_at_end:
            problem = (
                "load_best_model_at_end writes weights into a trained module; load the best "
                "checkpoint by from_pretrained instead"
            )
        elif self.args.optim not in ("adamw_torch", "adamw_torch_fused", "adamw_hf"):
            problem = f"optim is {self.args.optim}; give optimizer.type in penstock_config instead"
        if problem is not None:
            raise InvalidArgumentError(f"penstock: penstock.integrations.hf.Trainer: {problem}")

    def _groups(self, model: torch.nn.Module) -> list[dict[str, Any]]:
        """Returns the parameter groups of transformers: with weight decay, and without."""
        decayed = set(self.get_decay_parameter_names(model))
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        decay = self._penstock_config["optimizer"]["params"].get("weight_decay", 0.0)
        groups = [
            {"params": [p for name, p in named if name in decayed], "weight_decay": decay},
            {"params": [p for name, p in named if name not in decayed], "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def _run_folder(self) -> str | None:
        """Returns the folder of the run: a checkpoint's, or a new one. None: in nvme_path."""
        if uses_nvme(self._penstock_config):
            return None
        if self._commit is not None and os.path.isdir(self._commit["run"]):
            return str(self._commit["run"])
        return os.path.join(str(self.args.output_dir), f"penstock-{secrets.token_hex(8)}")

    def _move_model_to_device(self, model: torch.nn.Module, device: torch.device) -> None:
        """Leaves the model where it is: penstock brings its weights to the device."""

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluates; a model that is not in training yet is also given to penstock, if it computes
        on another device than its own."""
        model: Any = self.model
        if self.optimizer is None and is_elsewhere(model, self.args.device):
            self.create_optimizer()
        return super().evaluation_loop(*args, **kwargs)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """Gives the module to penstock, and returns its optimizer."""
        if self.optimizer is None:
            self.optimizer = self._make(model)
        if self._commit is not None and self._own is not None:
            commit, self._commit = self._commit, None
            self._own.load_state_dict({"penstock": commit, "param_groups": ()})
        return self.optimizer

    def _make(self, model: torch.nn.Module | None) -> ModuleOptimizer:
        module: Any = self.model if model is None else model
        if self._penstock_config.get("bf16", {}).get("enabled"):
            module.to(torch.bfloat16)
        _, self._own = initialize(
            module,
            self._penstock_config,
            model_parameters=self._groups(module),
            run=self._run_folder(),
            seed=self.args.seed,
            weights=self._weights,
            device=self.args.device,
        )
        return self._own

    def _penstock(self) -> ModuleOptimizer:
        if self._own is None:
            raise PenstockError("penstock: the trainer has no optimizer yet; call train() first")
        return self._own

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        # It is the micro-batch's part of the step's loss, which is the mean of what is reported.
        self._penstock().report_loss(loss * self.current_gradient_accumulation_steps)
        return loss

    def _clip_grad_norm(self, model: torch.nn.Module) -> torch.Tensor:
        return self._penstock().clip_grad_norm_(self.args.max_grad_norm)

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        return self._penstock().gradient_norm() if grad_norm is None else grad_norm

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Saves a checkpoint, unless the last commit is in doubt, whose place this one's would take."""
        if self._own is not None and self._own.in_doubt:
            warnings.warn(
                f"penstock: checkpoint {self.state.global_step} is not saved, because no loss since "
                "the last commit was finite",
                stacklevel=2,
            )
            return
        super()._save_checkpoint(model, trial)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: torch.nn.Module | None = None
    ) -> None:
        """Notes the commit of a checkpoint, which has its weights. A checkpoint without one is
        loaded."""
        self._commit = _commit_of(resume_from_checkpoint)
        if self._commit is None:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def close(self) -> None:
        """Frees everything; unsaved steps are lost, and so are the weights."""
        if self._own is not None:
            self._own.close()
