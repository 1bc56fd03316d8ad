"""GGUF files: converted by transformers once, which takes long, and afterwards read from the cache as safetensors.

transformers reads with the package `gguf`, which parses the header in Python: half a minute for 135M parameters.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from floatscope import __version__
from floatscope.cache import cached
from floatscope.files import file_hash
from floatscope.models.calls import no_bars, refuse_layers, refuse_mismatch, transformers_call

Loaded = tuple[Any, Any]
"""Backbone and tokenizer."""


def load_gguf(path: Path, common: Mapping[str, Any]) -> Loaded:
    """The model and the tokenizer inside a GGUF file; `common`: dtype and device_map for transformers."""
    dtype = str(common["dtype"]).removeprefix("torch.")
    key = f"{file_hash(path)}-{dtype}-{__version__}"
    return cached("gguf", key, lambda folder: _read(folder, common), lambda: _convert(path, common), _save)


def convert_gguf(path: Path, folder: Path, dtype: Any) -> None:
    """Write what a GGUF file holds as a plain checkpoint: config, safetensors, tokenizer."""
    _save(_convert(path, {"dtype": dtype}), folder)


def _convert(path: Path, common: Mapping[str, Any]) -> Loaded:
    from transformers import AutoTokenizer

    with no_bars(), transformers_call(str(path)), _parsed_once(path) as parsed:
        layers = [field.contents() for name, field in parsed.fields.items() if name.endswith(".block_count")]
        refuse_layers(path, max(layers, default=0), len(parsed.tensors))
        backbone = _backbone(path.parent, gguf_file=path.name, **common)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, trust_remote_code=False)
    # The weights are plain tensors by now; without this, save_pretrained takes them for quantized ones and refuses.
    backbone.hf_quantizer = None
    backbone.config.__dict__.pop("quantization_config", None)
    return backbone, tokenizer


def _backbone(folder: Path, **given: Any) -> Any:
    from transformers import AutoModelForCausalLM

    cls: Any = AutoModelForCausalLM
    backbone, info = cls.from_pretrained(folder, trust_remote_code=False, output_loading_info=True, **given)
    refuse_mismatch(folder / given.get("gguf_file", ""), info)
    return backbone


@contextmanager
def _parsed_once(path: Path) -> Iterator[Any]:
    """The file, parsed; transformers asks for it three times, and for a table of names at every module: the same do."""
    import gguf

    reader, names = gguf.GGUFReader, gguf.get_tensor_name_map
    parsed = reader(str(path))
    gguf.GGUFReader, gguf.get_tensor_name_map = lambda _: parsed, cache(names)
    try:
        yield parsed
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = reader, names


def _save(loaded: Loaded, folder: Path) -> None:
    backbone, tokenizer = loaded
    size, free = backbone.get_memory_footprint(), shutil.disk_usage(folder.parent).free
    if size > free / 2:
        raise OSError(f"the weights take {size / 1e9:.1f} GB, more than half of the {free / 1e9:.1f} GB that are free")
    try:
        with no_bars():
            backbone.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except SafetensorError as error:  # a full disk
        raise OSError(str(error)) from error


def _read(folder: Path, common: Mapping[str, Any]) -> Loaded:
    from transformers import PreTrainedTokenizerFast

    with transformers_call(str(folder)):
        backbone = _backbone(folder, local_files_only=True, **common)
        # The file's own rules, where the class of AutoTokenizer would put its own.
        return backbone, PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
