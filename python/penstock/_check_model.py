"""The model of a folder, cut into units, without its weights (docs/pytorch_check.md)."""

from __future__ import annotations

import collections
import importlib.util
import json
import pathlib
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock._text_files import parse_json, read_text
from penstock.errors import InvalidArgumentError, NotFoundError, UnavailableError

# The max size of a safetensors header that is read.
_MOST_HEAD = 100 << 20


class Model(NamedTuple):
    """A model as the library takes it, and its origin."""

    text: Mapping[str, Any]
    made_of: str

    @property
    def parameters(self) -> int:
        return sum(
            _elements(tensor["shape"]) for unit in self.text["units"] for tensor in unit["tensors"]
        )


def _elements(shape: Sequence[int]) -> int:
    elements = 1
    for length in shape:
        elements *= length
    return elements


def _read_config(folder: pathlib.Path) -> Mapping[str, Any]:
    try:
        config_file = folder / "config.json"
        config = parse_json(
            read_text(config_file, InvalidArgumentError), config_file, InvalidArgumentError
        )
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidArgumentError(f"{folder}/config.json: {error.strerror}") from None
    return config if isinstance(config, Mapping) else {}


def _from_module(folder: pathlib.Path, architecture: str, dtype: str) -> Model:
    """Makes the module of a config.json on the meta device, and cuts it as initialize does."""
    import torch
    import transformers

    from penstock import _dtypes, _units

    made = getattr(transformers, architecture, None)
    if made is None:
        raise InvalidArgumentError(
            f"{folder}/config.json: transformers {transformers.__version__} has no {architecture}"
        )
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            module = made(config)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"{folder}/config.json: transformers {transformers.__version__} makes no "
            f"{architecture} of it ({type(error).__name__})"
        ) from error
    types = {name: type_ for type_, name in _dtypes.NAMES.items()}
    module = module.to(types[dtype])
    parameters = [p for p in module.parameters() if p.numel() > 0]
    cut = _units.plan(module, [{"params": parameters}], have_values=False)
    return Model(_units.text_of(cut), architecture)


def _read_head(file: pathlib.Path) -> dict[str, list[int]]:
    """Returns name and shape of each tensor of a file of safetensors."""
    try:
        with open(file, "rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > _MOST_HEAD:
                raise ValueError
            head = json.loads(opened.read(length))
        tensors = {name: entry["shape"] for name, entry in head.items() if name != "__metadata__"}
        if not all(isinstance(n, int) and n >= 0 for shape in tensors.values() for n in shape):
            raise ValueError
        return tensors
    except OSError as error:
        raise InvalidArgumentError(f"{file} cannot be read: {error.strerror}") from None
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        struct.error,
    ):
        raise InvalidArgumentError(
            f"{file}: not a file of safetensors: its head is cut off or damaged"
        ) from None


def _from_files(files: Sequence[pathlib.Path], dtype: str) -> Model:
    """Cuts the tensors of safetensors files into units by their names."""
    units: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for file in files:
        for name, shape in _read_head(file).items():
            if _elements(shape) == 0:
                continue
            block = re.match(r"(?:.*?\.)?[A-Za-z_]\w*\.\d+(?=\.)", name)
            unit = block[0] if block else name.rpartition(".")[0] or name
            units[unit].append({"name": name, "shape": shape, "group": 0})
    if not units:
        raise InvalidArgumentError(f"{files[0].parent}: its files of safetensors have no tensor")
    shapes = {
        unit: sorted((t["name"][len(unit) :], t["shape"]) for t in tensors)
        for unit, tensors in units.items()
    }
    alike = collections.Counter(
        (re.sub(r"\d+$", "", unit), str(of)) for unit, of in shapes.items() if unit[-1].isdigit()
    )
    text = {
        "units": [
            {
                "name": unit,
                "repeated": alike[re.sub(r"\d+$", "", unit), str(shapes[unit])] > 1,
                "tensors": tensors,
            }
            for unit, tensors in units.items()
        ],
        "groups": [{"name": "all", "dtype": dtype}],
    }
    return Model(text, "the heads of its safetensors")


def read_model(folder: pathlib.Path, dtype: str) -> Model:
    """Returns the model of a folder, or of the folder of a config.json, in a dtype.

    Raises:
        NotFoundError: there is no model.
        InvalidArgumentError: the folder holds no model.
        UnavailableError: its module cannot be made here.
    """
    if folder.name == "config.json":
        folder = folder.parent
    if not folder.is_dir():
        raise NotFoundError(f"{folder} is no folder; name one with a config.json or safetensors")
    names = _read_config(folder).get("architectures")
    architecture = names[0] if isinstance(names, list) and names else None
    files = sorted(folder.glob("*.safetensors"))
    missing = [m for m in ("torch", "transformers") if importlib.util.find_spec(m) is None]
    if isinstance(architecture, str) and not missing:
        return _from_module(folder, architecture, dtype)
    if files:
        return _from_files(files, dtype)
    if isinstance(architecture, str):
        raise UnavailableError(
            f"{folder} has a config.json and no safetensors, and there is no "
            f"{' and no '.join(missing)}; install torch and transformers"
        )
    raise NotFoundError(
        f"{folder} has neither a config.json that names an architecture nor safetensors"
    )
