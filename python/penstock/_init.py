"""``penstock.init``: makes modules without memory for their weights.

Within ``with penstock.init():`` a module's parameters get shape and dtype, and no values.
``penstock.initialize`` gives them values from safetensors files or by the modules' own
initializers, unit by unit: each goes to the engine before the next one takes memory.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Union

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from penstock._storage import Memory
from penstock.errors import InvalidArgumentError, NotFoundError

Weights = Union[str, "os.PathLike[str]", None]

_MOST_NAMES = 5


class Later(torch.nn.Parameter):
    """A parameter without memory, until ``penstock.initialize`` has it.

    Attributes:
        made_for: its device, had it been made with memory.
    """

    made_for = torch.device("cpu")

    def __new__(cls, data: torch.Tensor, requires_grad: bool = True) -> Any:
        # A parameter of the same type that is made with values is a plain one.
        plain = torch.nn.Parameter
        kind = cls if data.device.type == "meta" else plain
        return plain.__new__(kind, data, requires_grad)

    @staticmethod
    def of(given: torch.nn.Parameter) -> Later:
        later: Later = Later(given.detach().to("meta"), requires_grad=given.requires_grad)
        later.made_for = given.device
        return later

    def _check_device(self, device: torch.device | None) -> None:
        here = self.made_for
        if device is not None and device.index is None and device.type == here.type:
            return
        if device is not None and device not in (self.device, here):
            raise InvalidArgumentError(
                f"penstock: the module was made within penstock.init, and has no weights to move to "
                f'{device}; name the device by penstock.initialize(model, …, device="{device}")'
            )

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        self._check_device(device)
        return self if dtype is None else super().to(dtype)

    def cuda(self, device: Any = None, *_: Any, **__: Any) -> torch.Tensor:
        index = device if isinstance(device, int) else torch.device(device or "cuda").index
        self._check_device(torch.device("cuda") if index is None else torch.device("cuda", index))
        return self

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        self._check_device(torch.device("cpu"))
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        copied: Any = super().__deepcopy__(memo)  # type: ignore[no-untyped-call]
        copied.made_for = self.made_for
        return copied


@contextlib.contextmanager
def init() -> Iterator[None]:
    """A context in which modules get parameters without memory. Buffers have memory.

    They compute on the device that they would have been made on, the CPU unless a
    ``torch.device`` context or default says otherwise, or on the one that ``penstock.initialize``
    is given. The values that a constructor gives parameters are lost. Give ``penstock.initialize``
    a folder of weights, or ``weights="random"``. Values that are loaded (``from_pretrained``) stay,
    and take memory until ``penstock.initialize`` has them.
    """
    register = torch.nn.Module.register_parameter
    made = WeakTensorKeyDictionary()  # by the original tensor, freed with its last user

    def without_memory(self: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        before = self._parameters.get(name)
        register(self, name, param)
        if type(param) is not torch.nn.Parameter or param.device.type == "meta":
            return  # such as one that is tied to another
        if before is not None and before.device.type == "meta":
            return  # its values were loaded, as by from_pretrained
        if param not in made:
            made[param] = Later.of(param)
        self._parameters[name] = made[param]

    torch.nn.Module.register_parameter = without_memory  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


def has_no_values(model: torch.nn.Module) -> bool:
    """Whether parameters of the module are without memory."""
    return any(parameter.device.type == "meta" for parameter in model.parameters())


def give_addresses(model: torch.nn.Module) -> set[torch.nn.Parameter]:
    """Replaces parameters without memory by ones with addresses, which get memory when written.
    Tied ones stay tied. Returns the new ones."""
    made: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None or parameter.device.type != "meta":
                continue
            if parameter not in made:
                memory = Memory(parameter.nbytes)
                values = memory.bytes[: parameter.nbytes].view(parameter.dtype)
                made[parameter] = torch.nn.Parameter(
                    values.view(parameter.shape), requires_grad=parameter.requires_grad
                )
            setattr(module, name, made[parameter])  # for modules that list their weights
    return set(made.values())


class _Files:
    """The tensors of safetensors files in a folder, by name."""

    def __init__(self, folder: pathlib.Path) -> None:
        try:
            from safetensors import safe_open
        except ImportError:
            raise NotFoundError(
                "penstock: weights are read by the package safetensors, which is not installed; "
                "pip install safetensors"
            ) from None
        self.folder = folder
        paths = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]
        if not paths or not paths[0].is_file():
            raise NotFoundError(
                f"penstock: weights: {folder} has no safetensors files; name a folder that has "
                'some, or weights="random"'
            )
        self._open = safe_open
        self.file_of: dict[str, pathlib.Path] = {}
        for path in paths:
            with safe_open(str(path), framework="pt") as file:
                self.file_of.update(dict.fromkeys(file.keys(), path))

    def read(self, name: str) -> torch.Tensor:
        # Opened for each tensor: pages of an open file count as memory of the process.
        with self._open(str(self.file_of[name]), framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor


def _without(name: str, prefix: str) -> str:
    return name[len(prefix) :] if name.startswith(prefix) else name


def _aliases(model: torch.nn.Module) -> Mapping[int, list[str]]:
    """Returns all names of each parameter, by its id."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names


class FromFiles:
    """Gives parameters the values of safetensors files. Names may have or lack the prefix of the
    model without its head, as Hugging Face's files do."""

    def __init__(self, model: torch.nn.Module, folder: Weights) -> None:
        self._files = _Files(pathlib.Path(os.fspath(folder or "")))
        prefix = getattr(model, "base_model_prefix", "")
        self._source: dict[int, str] = {}
        missing = []
        for key, names in _aliases(model).items():
            found = self._find(names, prefix)
            if found is None:
                missing.append(names[0])
            else:
                self._source[key] = found
        if missing:
            more = ", …" if len(missing) > _MOST_NAMES else ""
            raise InvalidArgumentError(
                f"penstock: weights: {self._files.folder} lacks {len(missing)} parameters of the "
                f"module: {', '.join(missing[:_MOST_NAMES])}{more}; name the folder of this model "
                "(transformers stores some families under other names: write the folder anew by "
                "save_pretrained(folder, save_original_format=False))"
            )

    def read_buffers(self, model: torch.nn.Module) -> None:
        """Gives buffers their values from the files."""
        prefix = getattr(model, "base_model_prefix", "")
        for path, module in model.named_modules():
            for name, buffer in module._buffers.items():
                whole = f"{path}.{name}" if path else name
                if buffer is None or name in module._non_persistent_buffers_set:
                    continue
                found = self._find([whole], prefix)
                if found is None:
                    continue
                values = self._files.read(found)
                self._check_shape(found, values, buffer)
                if buffer.device.type == "meta":
                    module._buffers[name] = values.to(buffer.dtype)
                else:
                    with torch.no_grad():
                        buffer.copy_(values)

    def _find(self, names: list[str], prefix: str) -> str | None:
        candidates = list(names)
        if prefix:
            candidates += [f"{prefix}.{name}" for name in names]
            candidates += [_without(name, f"{prefix}.") for name in names]
        return next((name for name in candidates if name in self._files.file_of), None)

    def _check_shape(self, name: str, values: torch.Tensor, wanted: torch.Tensor) -> None:
        if values.shape != wanted.shape:
            raise InvalidArgumentError(
                f"penstock: weights: {name} in {self._files.folder} has shape "
                f"{tuple(values.shape)}, and the module's has {tuple(wanted.shape)}; name "
                "the folder of this model"
            )

    def __call__(self, parameters: list[torch.nn.Parameter]) -> None:
        for parameter in parameters:
            name = self._source[id(parameter)]
            values = self._files.read(name)
            self._check_shape(name, values, parameter)
            with torch.no_grad():
                parameter.copy_(values)


class ByInitializers:
    """Gives parameters the values of their modules' initializers: ``reset_parameters``, and then
    ``_init_weights`` of Hugging Face's models. Values are drawn in the order of units, so they
    differ from those of a module made in memory.

    Args:
        model: the module.
        lacking: the parameters that have no values. Others keep theirs.
    """

    def __init__(self, model: torch.nn.Module, lacking: set[torch.nn.Parameter] | None) -> None:
        self._model = model
        self._lacking = lacking
        self._modules = [
            (module, {id(parameter) for parameter in module.parameters()})
            for module in reversed(list(model.modules()))  # children before their parents
        ]

    def __call__(self, parameters: list[torch.nn.Parameter]) -> None:
        lacking = self._lacking
        own = [p for p in parameters if lacking is not None and p not in lacking]
        kept = [parameter.detach().clone() for parameter in own]
        self._draw(parameters)
        with torch.no_grad():
            for parameter, values in zip(own, kept):
                parameter.copy_(values)

    def _draw(self, parameters: list[torch.nn.Parameter]) -> None:
        here = {id(parameter) for parameter in parameters}
        left = set(here)
        for module, owned in self._modules:
            if owned and owned <= here and self._initialize(module):
                left -= {id(parameter) for parameter in module.parameters(recurse=False)}
        if left:
            names = [name for name, p in self._model.named_parameters() if id(p) in left]
            raise InvalidArgumentError(
                f"penstock: nothing initializes {', '.join(names[:_MOST_NAMES])}: their modules have "
                "neither reset_parameters() nor a _init_weights(); give weights=, or make the "
                "module outside of penstock.init"
            )

    def _initialize(self, module: torch.nn.Module) -> bool:
        """Returns whether there was an initializer."""
        own: Any = getattr(module, "reset_parameters", None)
        of_family: Any = getattr(self._model, "_init_weights", None)
        with torch.no_grad():
            if own is not None:
                own()
            if of_family is not None:
                of_family(module)
        return own is not None or of_family is not None


def source_of(
    model: torch.nn.Module, weights: Weights
) -> Callable[[list[torch.nn.Parameter]], None] | None:
    """Returns the source of the parameters' values before they go to the engine; none if they have
    values. Parameters without memory have addresses afterwards.

    Args:
        model: the module.
        weights: a folder or file of safetensors, ``"random"``, or None.
    """
    lacking = has_no_values(model)
    if weights is None:
        if not lacking:
            return None
        raise InvalidArgumentError(
            "penstock: the module was made within penstock.init and has no values; give "
            'penstock.initialize weights= (a folder of safetensors, or "random")'
        )
    new = give_addresses(model) if lacking else None
    if weights == "random":
        return ByInitializers(model, new)
    files = FromFiles(model, weights)
    files.read_buffers(model)
    return files
