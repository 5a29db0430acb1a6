"""Makes models out of others, for benchmarks and tests of speculation: other quantisations, and deeper copies.

Files are kept in a folder and made once.
"""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from llama_cpp import llama_cpp as lib

from localllm.engine.llama import devices

_FILE_TYPES: Mapping[str, int] = {"F16": 1, "Q4_0": 2, "Q8_0": 7, "Q2_K": 10, "Q3_K_S": 11, "Q4_K_M": 15}


def requantised(source: Path, kind: str, folder: Path) -> Path:
    """``source`` in another quantisation."""
    made = folder / f"{source.stem}.{kind}.gguf"
    if not made.exists():
        devices()  # starts llama.cpp, with its log kept off the terminal
        part = made.with_suffix(".part")
        params = lib.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize, params.nthread = _FILE_TYPES[kind], True, os.cpu_count() or 1
        if lib.llama_model_quantize(os.fsencode(source), os.fsencode(part), ctypes.byref(params)):
            raise RuntimeError(f"{source} cannot be quantised to {kind}")
        part.replace(made)
    return made


def deepened(source: Path, layers: int, folder: Path) -> Path:
    """``source`` with layers appended up to ``layers`` that compute but change nothing.

    Their last matrices are zero, so the residual stream passes through and the logits stay as they are.
    """
    made = folder / f"{source.stem}.{layers}-layers.gguf"
    if made.exists():
        return made
    reader = gguf.GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    n_layers = int(reader.fields[f"{architecture}.block_count"].contents())
    part = made.with_suffix(".part")
    writer = gguf.GGUFWriter(part, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = layers if name == f"{architecture}.block_count" else field.contents()
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for layer in range(n_layers, layers):
        prefix = f"blk.{layer % n_layers}."
        for tensor in reader.tensors:
            if tensor.name.startswith(prefix):
                rest = tensor.name.removeprefix(prefix)
                last = rest in ("attn_output.weight", "ffn_down.weight")
                data = np.zeros_like(tensor.data) if last else tensor.data
                writer.add_tensor(f"blk.{layer}.{rest}", data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(made)
    return made
