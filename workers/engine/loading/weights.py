"""What the safetensors files of a folder hold, read from their headers alone: names, shapes, types, and whether it is all there.

transformers fills a missing tensor with random numbers and a warning; here it is refused.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import ModelBroken, ModelUnsupported
from prompting.model_files import read_json

INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_LENGTH_BYTES = 8  # a safetensors file begins with the length of its header
_LARGEST_HEADER_BYTES = 100_000_000  # the format's own limit
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_FLOATS = {"F64", "F32", "F16", "BF16"}


@dataclass(frozen=True, slots=True)
class Tensor:
    kind: str
    shape: tuple[int, ...]
    byte_count: int


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that the model consists of; raise where it has none, or not all."""
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if not (folder / INDEX).is_file():
        raise _no_weights(folder)
    shards = read_json(folder / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelBroken(f"{folder / INDEX} lists no weights. Fetch the file again.", field="model")
    names = sorted({str(name) for name in shards.values()})
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise ModelBroken(
                f"The model in {folder} is not complete: {name}, one of {len(names)} weight files, is missing."
                " Fetch the complete folder of the model.",
                field="model",
            )
    return [folder / name for name in names]


def read_tensors(files: list[Path]) -> dict[str, Tensor]:
    """Every tensor of the files by name; raise ModelBroken where a file is cut short or is no safetensors file."""
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            tensors |= _read_header(path)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
            raise ModelBroken(
                f"{path} is no safetensors file ({error}). Fetch the file again.", field="model"
            ) from error
    return tensors


def refuse_quantised(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.kind not in _FLOATS:
            raise ModelUnsupported(
                f"The weights are quantised ({name} is {tensor.kind}), which is not supported. Use the version with"
                " float16 or bfloat16 weights.",
                field="model",
            )


def _read_header(path: Path) -> dict[str, Tensor]:
    size = path.stat().st_size
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(_LENGTH_BYTES))
        if length > min(size, _LARGEST_HEADER_BYTES):
            raise ValueError(f"its header claims {length} bytes of {size}")
        header: dict[str, Any] = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    tensors = {
        name: Tensor(
            str(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"][1] - entry["data_offsets"][0]
        )
        for name, entry in header.items()
    }
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size != _LENGTH_BYTES + length + end:
        raise ValueError(
            f"it has {size} bytes and should have {_LENGTH_BYTES + length + end}: it was cut short"
        )
    return tensors


def parameter_count(tensors: Mapping[str, Tensor]) -> int:
    return sum(math.prod(tensor.shape) for tensor in tensors.values())


def _no_weights(folder: Path) -> ModelBroken | ModelUnsupported:
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        return ModelUnsupported(
            f"The model in {folder} has its weights in {pickles[0]}, a pickle, which can run any code when it is"
            " loaded. Only safetensors are loaded: use a version of the model that has them, or convert it.",
            field="model",
        )
    return ModelBroken(
        f"The model folder has no weights: neither {_SINGLE} nor {INDEX} in {folder}. Fetch the complete folder of the"
        " model.",
        field="model",
    )
