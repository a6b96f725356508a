"""``penstock.initialize``: gives the parameters of a module to an engine."""

from __future__ import annotations

import functools
import logging
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from penstock import _exit, _guards, _outside, _overlaps, _ranks, _rules, _state_dicts
from penstock._config import ConfigLike, merged, read_config, without_monitors
from penstock._cuda import streams_for
from penstock._device import (
    Asked,
    Device,
    check_buffers,
    device_for,
    is_elsewhere,
    move_buffers,
    room_on,
)
from penstock._hooks import Hooks
from penstock._init import Weights, give_addresses, has_no_values, source_of
from penstock._model import check_shape, members_of
from penstock._module_optimizer import ModuleOptimizer, Training
from penstock._opening import Opening
from penstock._rows import Rows
from penstock._runtime import Runtime
from penstock._units import plan
from penstock._universal_files import Reader
from penstock.errors import InvalidArgumentError

_log = logging.getLogger("penstock")

_RULES = {
    "adamw": _rules.ADAMW,
    "adam": _rules.ADAMW,
    "lion": _rules.LION,
    "adagrad": _rules.ADAGRAD,
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "AdamW": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0},
    "Lion": {"lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 0.0},
    "Adagrad": {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0},
}
_AUTO = {"lr": 5e-5}  # other rules have defaults (docs/config.md)
_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def _check_module(model: torch.nn.Module) -> None:
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(
            f"penstock: penstock.initialize needs a torch.nn.Module, and got a "
            f"{type(model).__name__}"
        )
    for name, parameter in model.named_parameters():
        check_shape(name, parameter)
        if _guards.link_of(parameter) is not None:
            raise InvalidArgumentError(
                f"penstock: parameter {name} belongs to a training already; make another module"
            )
    _overlaps.check_module(model)


def _optimizer_of(config: Mapping[str, Any]) -> tuple[_rules.Rule, dict[str, Any]]:
    """Returns the rule of a configuration, and the options of its parameter groups."""
    section = config.get("optimizer") or {}
    name = str(section.get("type", "AdamW"))
    rule = _RULES.get(name.lower())
    if rule is None:
        raise InvalidArgumentError(
            f"penstock: optimizer.type is {name}; penstock.initialize offers AdamW, Adam, Lion and "
            "Adagrad"
        )
    defaults = dict(_DEFAULTS[rule.name])
    for key, value in (section.get("params") or {}).items():
        if key in defaults:
            defaults[key] = _AUTO.get(key, defaults[key]) if value == "auto" else value
    return rule, defaults


def _say_defaults(config: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Says which values count where the configuration has none, and others would expect others."""
    params = (config.get("optimizer") or {}).get("params") or {}
    said = []
    if "gradient_clipping" not in config:
        said.append("gradient_clipping is 1.0")
    if "weight_decay" not in params and "weight_decay" in options:
        said.append(f"weight_decay is {options['weight_decay']}")
    if said:
        _log.warning(
            "penstock: %s: the configuration does not say, and these are DeepSpeed's defaults",
            " and ".join(said),
        )


def _homes(config: Mapping[str, Any]) -> tuple[Any, bool]:
    """Returns the paths on drives, and whether parameters stay on the device."""
    zero = config.get("zero_optimization")
    zero = zero if isinstance(zero, Mapping) else {}
    paths = None
    devices = {}
    for section in ("offload_optimizer", "offload_param"):
        home = zero.get(section)
        home = home if isinstance(home, Mapping) else {}
        devices[section] = home.get("device", "none")
        if devices[section] == "nvme":
            paths = home.get("nvme_path") or paths
    return paths, devices["offload_param"] == "none"


def _split(config: ConfigLike) -> tuple[dict[str, Any], bool, str]:
    """Returns the engine's configuration, whether missing gradients are zeros, and where sums are."""
    given = read_config(config)
    if given.get("scheduler"):
        raise InvalidArgumentError(
            "penstock: config has scheduler; use a scheduler of torch.optim.lr_scheduler on the "
            "optimizer that penstock.initialize returns"
        )
    if not any(key in given for key in _BATCH):
        given = merged({"train_micro_batch_size_per_gpu": 1}, given)
    ours = dict(given.get("penstock") or {})
    missing = ours.pop("missing_gradients", "error")
    if missing not in ("error", "zero"):
        raise InvalidArgumentError(
            f'penstock: penstock.missing_gradients is {missing!r}; it is "error" or "zero"'
        )
    sums = str(ours.pop("gradient_sums", "auto"))
    return {**given, "penstock": ours}, missing == "zero", sums


def _without_values(model: torch.nn.Module) -> None:
    """Gives addresses to parameters whose values come with the states."""
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    if not has_no_values(model):
        return
    if frozen:
        raise InvalidArgumentError(
            f"penstock: {frozen[0]} is frozen and has no values, and a universal checkpoint has none "
            "of it; make the module outside of penstock.init"
        )
    give_addresses(model)


def _renewed(given: Any, renewed: Mapping[torch.Tensor, torch.Tensor]) -> Any:
    """Returns parameters or a group, with parameters without memory replaced."""
    if isinstance(given, torch.Tensor):
        return renewed.get(given, given)
    if isinstance(given, Mapping) and "params" in given:
        return {**given, "params": _renewed(given["params"], renewed)}
    if isinstance(given, tuple):
        return tuple(_renewed(each, renewed) for each in given)
    if isinstance(given, (list, Iterator)):
        return [_renewed(each, renewed) for each in given]
    return given


def _groups(
    model: torch.nn.Module, given: Iterable[Any] | None, before: Mapping[str, torch.Tensor]
) -> list[Any]:
    """Returns the parameters or groups to train.

    Args:
        given: the caller's parameters or groups.
        before: parameters by name, at the time of the caller's choice.
    """
    if given is None:
        given = [p for p in model.parameters() if p.requires_grad and p.numel() > 0]
    now = dict(model.named_parameters())
    renewed: dict[torch.Tensor, torch.Tensor] = {
        old: now[name] for name, old in before.items() if now[name] is not old
    }
    groups = [_renewed(each, renewed) for each in given]
    if not groups:
        raise InvalidArgumentError("penstock: no parameter needs a gradient, so nothing is trained")
    return groups


def initialize(
    model: torch.nn.Module,
    config: ConfigLike = None,
    *,
    model_parameters: Iterable[Any] | None = None,
    run: str | os.PathLike[str] | None = None,
    seed: int = 0,
    weights: Weights | Reader = None,
    device: Device = None,
) -> tuple[torch.nn.Module, ModuleOptimizer]:
    """Gives the parameters of a module to an engine, which keeps them where ``config`` says.

    The module stays the same object. Its weights are taken at its first use, and may be written
    until then; or at once, if they come from ``weights`` or the module is to compute on another
    device than its own. Afterwards parameters show NaN while their weights are away; use
    :func:`penstock.gathered` to read them outside of the module's forward.

    Args:
        model: in its training dtypes; parameters that need no gradient stay frozen.
        config: a DeepSpeed configuration, as a mapping or a file.
        model_parameters: parameters or parameter groups to train; default: all that need a
            gradient, in one group.
        run: a folder for this training. If it has a commit, training resumes from it.
        seed: of stochastic rounding.
        weights: a folder or file of safetensors, which are read unit by unit, or ``"random"``: unit
            by unit by the module's initializers; or a ``penstock.universal.Reader``, which has
            moments and steps as well. Needed for a module that was made within
            :func:`penstock.init`. Not read when resuming.
        device: the device to compute on, the CPU or a CUDA device (never tried on a GPU so far).
            Weights arrive there unit by unit, so they need not fit it; buffers live there. Default:
            the module's device.

    Returns:
        The module and its optimizer.

    Raises:
        PenstockError: one line with the problem, and what to do.
    """
    _ranks.check_alone()
    _check_module(model)
    _exit.free_nodes_at_exit()
    given, monitors = without_monitors(read_config(config))
    engine_config, zero_missing, sums = _split(given)
    rule, defaults = _optimizer_of(engine_config)
    states = weights if isinstance(weights, Reader) else None
    place = device_for(model, device)
    before = dict(model.named_parameters())
    give_values = None if isinstance(weights, Reader) else source_of(model, weights)
    if states is not None:
        _without_values(model)
    check_buffers(model)
    _say_defaults(engine_config, defaults)
    optimizer = ModuleOptimizer(_groups(model, model_parameters, before), rule, defaults)
    optimizer.rows = Rows(engine_config, monitors, optimizer.losses)
    cut = plan(model, optimizer.param_groups)
    paths, on_device = _homes(engine_config)
    members = members_of(entry for unit in cut.units for entry in unit.entries)
    identity = _rules.identity(rule, members).options("module")
    room = room_on(model, place, cut, Asked(engine_config, paths, on_device, sums))
    opening = Opening(engine_config, paths, cut, seed, identity, place, streams_for(place), room)
    moves = is_elsewhere(model, place)
    opened = opening.open(run)
    try:
        runtime = Runtime(
            opened.engine,
            cut,
            on_device=on_device,
            zero_missing=zero_missing,
            holds_gradients=opening.holds_gradients,
        )
        if moves or device is not None:
            move_buffers(model, place)
        if give_values is not None or (moves and states is None):
            runtime.begin(give_values)
    except BaseException:
        opened.engine.close()
        opened.run.close()
        raise
    for notice in runtime.notices:
        _log.info("penstock: %s", notice)
    every = int(engine_config["penstock"].get("commit_every_steps", 0))
    optimizer.begin(Training(Hooks(runtime, model, cut), opening, opened, every, run))
    _connect(model, optimizer)
    if states is not None and not optimizer.continued:
        try:
            optimizer.begin_with(states)
        except BaseException:
            optimizer.close()
            raise
    return model, optimizer


def _connect(model: torch.nn.Module, optimizer: ModuleOptimizer) -> None:
    """Sets the attributes that penstock adds to the module."""
    hooks = optimizer.hooks
    _guards.install(hooks)
    _state_dicts.install(hooks)
    _outside.watch_forwards(hooks)
    made = weakref.ref(optimizer)
    # torch.nn.parallel.DistributedDataParallel then says that it is not needed.
    names = [entry.name for unit in hooks.runtime.units for entry in unit.entries]
    model._ddp_params_and_buffers_to_ignore = names  # type: ignore[assignment]
    model._penstock = made  # type: ignore[assignment]
    own = model.zero_grad

    @functools.wraps(own)
    def zero_grad(*args: Any, **options: Any) -> None:
        alive = made()
        if alive is not None:
            alive.zero_grad()
        own(*args, **options)

    model.zero_grad = zero_grad  # type: ignore[method-assign]


def clip_grad_norm_(module: torch.nn.Module, max_norm: float) -> torch.Tensor:
    """Clips the gradient in the next step of a module; returns the norm before.

    Args:
        module: the one passed to :func:`penstock.initialize`.
        max_norm: positive.
    """
    made = getattr(module, "_penstock", None)
    optimizer = made() if isinstance(made, weakref.ref) else None
    if not isinstance(optimizer, ModuleOptimizer):
        raise InvalidArgumentError(
            "penstock: penstock.clip_grad_norm_ needs the module that was given to "
            "penstock.initialize; for others use torch.nn.utils.clip_grad_norm_"
        )
    return optimizer.clip_grad_norm_(max_norm)
