"""``deepspeed.initialize``, and the engine that it returns."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

import penstock
from penstock import _cuda
from penstock._config import ConfigLike, merged, read_config
from penstock._files import explaining, path_of
from penstock._init import has_no_values
from penstock._module_optimizer import ModuleOptimizer
from penstock._universal_files import save_file
from penstock.compat.deepspeed._checkpoints import read_checkpoint, write_checkpoint
from penstock.compat.deepspeed._schedulers import scheduler_of
from penstock.errors import InvalidArgumentError

_TORCH = {torch.optim.AdamW: True, torch.optim.Adam: False}  # whether decay is decoupled


def _config_of(args: Any, config: ConfigLike, config_params: ConfigLike) -> dict[str, Any]:
    for given in (config, config_params, getattr(args, "deepspeed_config", None)):
        if given is not None:
            return read_config(given)
    raise InvalidArgumentError(
        "penstock: initialize got no configuration; give config=, or args with deepspeed_config"
    )


def _section_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns ``optimizer`` of a configuration for an optimizer of torch."""
    decoupled = _TORCH.get(type(optimizer))
    if decoupled is None:
        raise InvalidArgumentError(
            f"penstock: initialize got a {type(optimizer).__name__}; give torch.optim.AdamW or "
            "Adam, or name the optimizer in the configuration"
        )
    options = optimizer.defaults
    params = {key: options[key] for key in ("lr", "eps", "weight_decay")}
    params["betas"] = list(options["betas"])
    return {"type": "Adam", "params": {**params, "adam_w_mode": decoupled}}


def _groups_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    keys = ("params", "lr", "betas", "eps", "weight_decay")
    return [{key: group[key] for key in keys} for group in optimizer.param_groups]


def _loader(config: Mapping[str, Any], data: Any, collate: Any, batch: int) -> Any:
    """Returns the loader of ``training_data``."""
    if data is None:
        return None
    drop = bool(config.get("dataloader_drop_last", False))
    return torch.utils.data.DataLoader(
        data, batch_size=batch, shuffle=True, collate_fn=collate, drop_last=drop
    )


def _device_of(model: torch.nn.Module) -> str | None:
    """Returns the device that DeepSpeed would move a module to; None if it stays where it is."""
    on_gpu = any(parameter.device.type == "cuda" for parameter in model.parameters())
    return None if on_gpu or _cuda.device_count() == 0 else "cuda"


def initialize(
    args: Any = None,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    model_parameters: Iterable[Any] | None = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int = 29500,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Any = None,
    config: ConfigLike = None,
    mesh_param: Any = None,
    config_params: ConfigLike = None,
) -> tuple[Engine, ModuleOptimizer, Any, Any]:
    """Gives a module to penstock; with DeepSpeed's arguments and results.

    Returns:
        The engine, its optimizer, the loader of ``training_data``, and the scheduler.
    """
    if model is None:
        raise InvalidArgumentError("penstock: initialize got no model")
    if mpu is not None or mesh_param is not None:
        raise InvalidArgumentError(
            "penstock: initialize got mpu or mesh_param, and works with one process"
        )
    given = dict(_config_of(args, config, config_params))
    scheduler = given.pop("scheduler", None)
    groups: list[Any] | None = None if model_parameters is None else list(model_parameters)
    if callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer(groups or model.parameters())
    if optimizer is not None:
        given = merged(given, {"optimizer": _section_of(optimizer)})
        groups = _groups_of(optimizer)
    if groups is not None:
        groups = [g for g in groups if isinstance(g, dict) or g.requires_grad]
    if (given.get("bf16") or given.get("bfloat16") or {}).get("enabled") is True:
        model.to(torch.bfloat16)  # as DeepSpeed does
    weights = "random" if has_no_values(model) else None
    _, made = penstock.initialize(
        model, given, model_parameters=groups, weights=weights, device=_device_of(model)
    )
    if callable(lr_scheduler) and not hasattr(lr_scheduler, "step"):
        lr_scheduler = lr_scheduler(made)
    elif lr_scheduler is None:
        lr_scheduler = scheduler_of(scheduler, made)
    engine = Engine(model, made, lr_scheduler, given)
    loader = _loader(given, training_data, collate_fn, engine.train_micro_batch_size_per_gpu())
    engine.training_dataloader = loader
    return engine, made, loader, lr_scheduler


class Engine(torch.nn.Module):
    """DeepSpeed's engine: calls the module, and counts micro-batches.

    Attributes:
        global_steps: steps of the optimizer, including skipped ones.
        micro_steps: calls of :meth:`step`.
        skipped_steps: steps whose gradient was not finite.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: ModuleOptimizer,
        lr_scheduler: Any,
        config: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.module = module
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.training_dataloader: Any = None
        self.config = dict(config)
        self.global_steps = self.micro_steps = self.skipped_steps = 0
        self.local_rank, self.global_rank, self.world_size = 0, 0, 1
        runtime: Any = module.penstock
        described = runtime.engine.describe()
        self._micro_batches: int = described["micro_batches"]
        self._loss: torch.Tensor | None = None  # of the open step

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.module(*inputs, **options)

    @property
    def device(self) -> torch.device:
        runtime: Any = self.module.penstock
        device: torch.device = runtime.device
        return device

    def gradient_accumulation_steps(self) -> int:
        return self._micro_batches

    def train_micro_batch_size_per_gpu(self) -> int:
        micro = self.config.get("train_micro_batch_size_per_gpu")
        if micro is None:
            whole = self.config.get("train_batch_size") or self._micro_batches
            micro = int(whole) // self._micro_batches
        return int(micro)

    def train_batch_size(self) -> int:
        return self.train_micro_batch_size_per_gpu() * self._micro_batches

    def zero_optimization_stage(self) -> int:
        return int((self.config.get("zero_optimization") or {}).get("stage", 0))

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_global_grad_norm(self) -> float:
        """Returns the norm of the last step's gradient, before clipping."""
        return self.optimizer.grad_norm

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next call of :meth:`step` ends a step."""
        return (self.micro_steps + 1) % self._micro_batches == 0

    def backward(self, loss: torch.Tensor, **options: Any) -> torch.Tensor:
        """Computes gradients of a micro-batch; the loss is divided by their number."""
        part = loss.detach().double() / self._micro_batches
        self._loss = part if self._loss is None else self._loss + part
        (loss / self._micro_batches).backward(**options)
        return loss

    def step(self) -> None:
        """Ends a micro-batch, and with the last one of a step the step."""
        ends = self.is_gradient_accumulation_boundary()
        self.micro_steps += 1
        if not ends:
            return
        self._report_loss()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.global_steps += 1
        if self.optimizer.skipped:
            self.skipped_steps += 1
        elif self.lr_scheduler is not None:
            self.lr_scheduler.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of the open step."""
        self._report_loss()
        self.optimizer.zero_grad()

    def _report_loss(self) -> None:
        loss, self._loss = self._loss, None
        if loss is not None:
            self.optimizer.report_loss(loss)

    def state_dict(self, *args: Any, **options: Any) -> Any:
        """Returns the module's state_dict, with current weights."""
        return self.module.state_dict(*args, **options)

    def save_16bit_model(
        self, save_dir: str, save_filename: str = "pytorch_model.bin", **_: Any
    ) -> bool:
        """Writes the module's weights."""
        path = pathlib.Path(path_of(save_dir, "save_dir"), save_filename)
        with explaining(f"{path} cannot be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(self.module.state_dict(), path)
        return True

    save_fp16_model = save_16bit_model

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str],
        tag: str | int | None = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        **_: Any,
    ) -> bool:
        """Commits, and keeps a snapshot in ``save_dir/tag``."""
        name = f"global_step{self.global_steps}" if tag is None else str(tag)
        said = {
            "client_state": dict(client_state or {}),
            "lr_scheduler": None if self.lr_scheduler is None else self.lr_scheduler.state_dict(),
            "counts": [self.global_steps, self.micro_steps, self.skipped_steps],
        }
        folder = pathlib.Path(path_of(save_dir, "save_dir"))
        write_checkpoint(folder, name, self.optimizer, said, save_latest)
        return True

    def load_checkpoint(
        self,
        load_dir: str | os.PathLike[str],
        tag: str | int | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        **_: Any,
    ) -> tuple[str | None, dict[str, Any]]:
        """Resumes from a checkpoint, with its weights, states and random states.

        Returns:
            Its path and the client's state; None and nothing if there is no checkpoint.
        """
        if load_module_only or not load_optimizer_states:
            raise InvalidArgumentError(
                "penstock: load_checkpoint was asked for weights without states; load weights into "
                "the module before initialize"
            )
        path_of(load_dir, "load_dir")
        found = read_checkpoint(pathlib.Path(load_dir), tag)
        if found is None:
            return None, {}
        path, said = found
        self.optimizer.load_state_dict(said["optimizer"])
        self.global_steps, self.micro_steps, self.skipped_steps = said["counts"]
        if load_lr_scheduler_states and said["lr_scheduler"] is not None:
            if self.lr_scheduler is not None:
                self.lr_scheduler.load_state_dict(said["lr_scheduler"])
        return str(path), said["client_state"]

    def destroy(self) -> None:
        """Frees everything."""
        self.optimizer.close()

    def __getattr__(self, name: str) -> Any:
        """What the engine does not have is the module's."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            module = self.__dict__.get("_modules", {}).get("module")
            if module is None:
                raise
            return getattr(module, name)
