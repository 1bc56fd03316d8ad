"""From a folder, a GGUF file or a hub id to a Model: safetensors or GGUF only, never remote code, never a pickle.

Which class and which names is said by the family; transformers does the reading (shards, dtypes, device maps). A fork
is its parent, loaded so, with an adapter added by `adapters`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from floatscope.errors import UserError
from floatscope.files import read_json
from floatscope.models.adapters import Fork, adapter_files, is_adapter, merge, parent_check, read_fork
from floatscope.models.calls import refuse_layers, refuse_mismatch, transformers_call
from floatscope.models.check import require
from floatscope.models.families import get_family
from floatscope.models.family import Family
from floatscope.models.gguf import load_gguf
from floatscope.models.model import Model
from floatscope.models.pulling import HUB_PATTERNS, find_parent, refuse_unknown
from floatscope.models.recognising import recognise
from floatscope.models.shipped import UNTRAINED, shipped
from floatscope.models.tokenizer import load_tokenizer
from floatscope.models.twins import UNTRAINED_SEED, untrained_twin

SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
ROUTING = ("num_experts_per_tok", "n_group", "topk_group", "routed_scaling_factor")  # no tensor's shape tells them
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
OVERSIZED = 100  # packed weights hold up to some ten parameters in a number
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def load(
    source: str | Path,
    *,
    revision: str | None = None,
    family: str | Path | Family | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    device_map: str | dict[str, Any] | None = None,
    mask_id: int | None = None,
    block: int | None = None,
    check: bool = True,
) -> Model:
    """Load a checkpoint for denoising and tracing.

    source: a folder (a checkpoint, or an adapter beside its parent's name), a .gguf file, a twin that comes with the
    package ("twin-llada", "twin-llada-untrained", ...), a pulled parent ("smollm2-135m") or a fork of it
    ("smollm2-dream", "smollm2-dream-untrained", ...), or a hub id (the only thing that is ever downloaded).
    revision: of a hub id: a branch, a tag or a commit; default: its main branch.
    family: a registered name or a TOML file; recognised from config.json and the tensors when left out.
    dtype: "float32", "bfloat16", ...; default: float32 on a CPU, the checkpoint's own elsewhere.
    device, device_map: where the weights go; device_map needs nothing else.
    mask_id: the mask token, where the checkpoint does not say and the family has no default.
    block: the block size, where it is neither stated nor the family's; the model then sees as block_causal says.
    check: let the tap prove itself on the model, with a few forwards over a dozen tokens.
    """
    if device is not None and device_map is not None:
        raise UserError("give device or device_map, not both")
    place = locate(source, revision)
    path, fork = place.weights, place.fork
    check_parent = fork and parent_check(fork, path, str(source))
    target = _device(device)
    on_cpu = device_map is None and (target is None or target.type == "cpu")
    asked = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and asked not in DTYPES.values():
        raise UserError(f"unknown dtype {dtype!r}: use {', '.join(DTYPES)}")
    common: dict[str, Any] = {"dtype": asked or (torch.float32 if on_cpu else "auto")}
    if device_map is not None:
        common["device_map"] = device_map
    if path.suffix == ".gguf":
        chosen = get_family(family if family is not None else fork.family if fork else "causal")
        backbone, tokenizer = load_gguf(path, common)
    else:
        config = read_config(path)
        refuse_pickles(path)
        chosen = get_family(family) if family is not None else place.family(config)
        backbone = _load_safetensors(path, config, chosen, common)
        tokenizer = load_tokenizer(path, chosen, config.get("model_type"))
    if target is not None:
        with transformers_call(f"{source} on device {device}"):
            backbone.to(target)
    if backbone.get_input_embeddings().weight.is_meta:
        raise UserError(f"{source}: its embedding was put on no device, where nothing can be computed: use another one")
    if fork and check_parent:
        check_parent()
        if place.adapter is not None:
            merge(backbone, place.adapter, fork)
        if not fork.chat and tokenizer is not None:
            tokenizer.chat_template = None
    refuse_broken(backbone, str(source))
    mask_id = fork.mask_id if fork is not None and mask_id is None else mask_id
    model = Model(backbone, chosen, tokenizer, name=_name(source), mask_id=mask_id, block=block)
    if not check:
        return model
    with transformers_call(str(source)):  # numbers of the config that fit no tensor show in the first forward
        return require(model)


def load_untrained(source: str, **settings: Any) -> Model:
    """The model before training: a twin's or a fork's own untrained version, or the checkpoint's weights drawn anew."""
    untrained = f"{source}-{UNTRAINED}"
    if before_training(untrained) is not None:
        return load(untrained, **settings)
    model = load(source, **settings)
    randomise(model.backbone)
    return model


DECIDING = (
    "*.safetensors",
    "*config.json",
    "*token*.json",
    "*.index.json",
    "chat_template.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.jinja",
)
"""Names of the files of a checkpoint that decide what it answers."""


@dataclass(frozen=True)
class Place:
    """Where the parts of a model are on this machine."""

    source: str
    weights: Path
    """A checkpoint's folder or GGUF file; a fork's parent."""
    fork: Fork | None = None
    adapter: Path | None = None
    """None in a fork before training, too."""

    def family(self, config: Mapping[str, Any]) -> Family:
        """As config.json and the tensors say, or as the parent was made into."""
        twins = [folder / "config.json" for folder in shipped().values() if (folder / "config.json").exists()]
        # A twin, or a copy of one, is known: all share a tokenizer with a mask token. A fork says what its parent is.
        known = self.fork or any(read_json(twin) == config for twin in twins)
        mask = None if known else stated_mask(self.weights)
        with transformers_call(str(self.weights)):
            names = tensor_shapes(self.weights)
        found = recognise(config, self.source, names, mask)
        if self.fork is None:
            return found
        if not found.is_arm:
            raise UserError(f"{self.source}: its parent {self.fork.parent} is of family {found.name}, not causal")
        return get_family(self.fork.family)

    def files(self) -> list[Path]:
        """Whatever decides what the model answers: weights, config, tokenizer, chat template, adapter."""
        folder = self.weights
        found = [folder] if folder.is_file() else sorted({file for kind in DECIDING for file in folder.glob(kind)})
        return found + (adapter_files(self.adapter) if self.adapter else [])


def locate(source: str | Path, revision: str | None = None) -> Place:
    """The checkpoint of a source, or its adapter and its parent; `revision`: of a hub id."""
    trained = before_training(source)
    path = resolve(trained or source, revision)
    if not is_adapter(path):
        return Place(str(source), untrained_twin(path) if trained else path)
    fork = read_fork(path)
    if is_adapter(resolve(before_training(fork.parent) or fork.parent)):
        raise UserError(f"{source}: its parent {fork.parent} is an adapter too: merge that one first (adapt --merge)")
    return Place(str(source), locate(fork.parent).weights, fork, None if trained else path)


def before_training(source: str | Path) -> str | None:
    """The model whose control "NAME-untrained" is; None for any other source.

    The control of a twin has random weights; that of a fork is its parent, with the fork's visibility and mask token.
    """
    name = str(source).removesuffix(f"-{UNTRAINED}")
    if name == str(source):
        return None
    of_adapter = is_adapter(Path(name).expanduser()) and not Path(source).expanduser().exists()
    return name if name in shipped() or of_adapter else None


def resolve(source: str | Path, revision: str | None = None, download: bool = True) -> Path:
    """The local folder or file of a checkpoint or an adapter; a hub id is downloaded into the hub's cache."""
    refuse_unknown(str(source))
    path = Path(source).expanduser()
    found = shipped().get(str(source)) or find_parent(str(source)) or (path if path.exists() else None)
    if found is not None and revision is not None:
        raise UserError(f"{source} is on this machine, and only a hub id has revisions: leave {revision!r} out")
    if found is not None and (found.is_dir() or found.suffix == ".gguf"):
        return found
    if found is not None:
        raise UserError(f"{source} is a file: give the folder with config.json and *.safetensors, or a .gguf file")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        wanted: dict[str, Any] = {"revision": revision, "allow_patterns": HUB_PATTERNS}
        return Path(snapshot_download(str(source), local_files_only=not download, **wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        at = "" if revision is None else f" at revision {revision!r}"
        raise UserError(f"no folder {source!r} here, and the hub did not give it{at}: {reason}") from error


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as it stands."""
    path = folder / "config.json"
    if not path.exists():
        ggufs = ", ".join(sorted(p.name for p in folder.glob("*.gguf")))
        hint = f"; to load a GGUF give its path ({ggufs})" if ggufs else ""
        raise UserError(f"{folder} has no config.json{hint}")
    return read_json(path)


def refuse_pickles(folder: Path) -> None:
    """Safetensors must be there; a pickle can run any code and is never read."""
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(p.name for pattern in PICKLES for p in folder.glob(pattern))
    if pickles:
        raise UserError(
            f"{folder} has only pickled weights ({pickles[0]}), which can run code when read: "
            "convert them to safetensors (transformers: model.save_pretrained)"
        )
    raise UserError(f"{folder} has no *.safetensors weights, the only kind that is read beside GGUF")


def refuse_broken(backbone: torch.nn.Module, source: str) -> None:
    """NaN or infinite weights would give NaN attention everywhere."""
    for name, tensor in backbone.state_dict().items():
        read = tensor.is_floating_point() and tensor.numel() and not tensor.is_meta
        if read and not torch.isfinite(torch.stack(tensor.aminmax())).all():  # in one pass: NaN is least and largest
            raise UserError(f"{source}: tensor {name} has NaN or infinite values; the checkpoint is damaged")


def _load_safetensors(path: Path, config: Mapping[str, Any], family: Family, common: Mapping[str, Any]) -> Any:
    import transformers
    from transformers.conversion_mapping import register_checkpoint_conversion_mapping
    from transformers.core_model_loading import Split, WeightConverter

    for key, wanted in family.requires.items():
        if key in config and config[key] is not None and config[key] != wanted:
            raise UserError(
                f"{path}: config field {key} is {config[key]!r}; family {family.name} needs {wanted!r}, "
                f"since {family.backbone} cannot compute anything else"
            )
    cls: Any = getattr(transformers, family.backbone, None)
    if not hasattr(cls, "from_pretrained") or "For" not in family.backbone:
        raise UserError(
            f"family {family.name}: {family.backbone!r} is no model class of transformers with a language-model head, "
            "such as LlamaForCausalLM"
        )
    with transformers_call(f"{path}"):
        shapes = tensor_shapes(path)
        parts = [config, *(part for part in config.values() if isinstance(part, dict))]
        stated = [entry for part in parts for entry in part.items()]
        layers = [n for name, n in stated if name.endswith(("layers", "layer")) and isinstance(n, int)]
        refuse_layers(path, max(layers, default=0), len(shapes))
        auto = family.backbone.startswith("Auto")
        if auto or "text_config" in config:
            made = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
        else:
            made = backbone_config(config, family, cls.config_class)
        with torch.device("meta"):
            skeleton = cls.from_config(made, trust_remote_code=False) if auto else cls(made)
        stated, held = sum(p.numel() for p in skeleton.parameters()), sum(map(math.prod, shapes.values()))
        if stated > OVERSIZED * held:  # what the files lack would be drawn at random, for hours
            raise UserError(
                f"{path}: config.json describes {stated:,} parameters and the safetensors hold {held:,}: "
                "one of them is damaged"
            )
        # Spelled out one by one: transformers' own patterns apply one after the other and know only one group.
        new = {name: family.backbone_names(name) for name in shapes}
        renamed = {_exactly(name): others[0] for name, others in new.items() if len(others) == 1 and others != [name]}
        splits = {name: others for name, others in new.items() if len(others) > 1}
        refuse_unlike_experts(path, shapes)
        for name, others in splits.items():
            sizes = [len(skeleton.get_parameter(other)) for other in others]
            if sum(sizes) != shapes[name][0]:
                raise UserError(f"{path}: tensor {name} is {shapes[name]}, which does not split into {sizes} rows")
        if splits:  # under the class's name, in place of what an earlier load put there: the names are this folder's
            converters: list[Any] = [
                WeightConverter(_exactly(name), others, [Split(0)]) for name, others in splits.items()
            ]
            register_checkpoint_conversion_mapping(cls.__name__, converters, overwrite=True)
        backbone, info = cls.from_pretrained(
            path, config=made, use_safetensors=True, trust_remote_code=False, local_files_only=True,
            output_loading_info=True, ignore_mismatched_sizes=True, key_mapping=renamed or None, **common,
        )  # fmt: skip
    dropped = {other for name, others in new.items() if family.drops(name) for other in (name, *others)}
    refuse_mismatch(path, {**info, "unexpected_keys": {*(info.get("unexpected_keys") or ())} - dropped})
    return backbone


def refuse_unlike_experts(path: Path, shapes: Mapping[str, Any]) -> None:
    """Experts that are held one by one are stacked, so each must be there, in the shape of the others."""
    held: dict[str, dict[int, Any]] = {}
    for name, shape in shapes.items():
        if match := re.search(r"(?<=\.experts\.)\d+(?=\.)", name):
            held.setdefault(name[: match.start()] + "*" + name[match.end() :], {})[int(match[0])] = shape
    for name, experts in held.items():
        absent = sorted({*range(max(experts))} - {*experts})
        other = [number for number, shape in sorted(experts.items()) if shape != experts[min(experts)]]
        if absent or other:
            what = "is missing" if absent else "is of another shape than the first"
            raise UserError(f"{path} is damaged: tensor {name.replace('*', str([*absent, *other][0]))} {what}")


def _exactly(name: str) -> str:
    return f"^{re.escape(name)}$"


def stated_mask(folder: Path) -> object:
    """The mask token that the tokenizer or the generation config of a folder states, if any."""
    for name, field in (("generation_config.json", "mask_token_id"), ("tokenizer_config.json", "mask_token")):
        if (folder / name).exists() and (found := read_json(folder / name).get(field)) is not None:
            return found
    return None


def tensor_shapes(folder: Path) -> dict[str, Any]:
    """The shape of each tensor, from the headers of the files."""
    shapes: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            shapes |= {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    return shapes


def backbone_config(config: Mapping[str, Any], family: Family, config_class: Any) -> Any:
    """The transformers config of a dialect: renamed fields where the family names them, all fields otherwise."""
    if family.config:
        values = {new: config[old] for old, new in family.config.items() if config.get(old) is not None}
    else:
        drop = {"model_type", "architectures", "auto_map", "transformers_version", "torch_dtype", "dtype"}
        values = {key: value for key, value in config.items() if key not in drop}
    # Sizes left to the class would be those of its 7B model: minutes of random weights before anything is refused.
    # Experts would be chosen and weighed by another rule without a word.
    fields = (*SIZES, *(field for field in ROUTING if hasattr(config_class, field)))
    unstated = [s for s in fields if s not in values and config_class.attribute_map.get(s, s) not in values]
    if unstated:
        raise UserError(
            f"config.json states no {', '.join(unstated)} in the words of family {family.name} ({family.backbone}); it "
            f"states {', '.join(unread_fields(config, family))}: name another family, or declare its own fields in a "
            "TOML file"
        )
    # A token that the checkpoint does not state is not the one that the transformers class has by default.
    return config_class(**{"bos_token_id": None, "eos_token_id": None, "pad_token_id": None} | values)


def unread_fields(config: Mapping[str, Any], family: Family) -> list[str]:
    """Fields of a config.json that are neither renamed nor required by a family that renames fields."""
    known = {"architectures", "auto_map", "model_type", "transformers_version", "torch_dtype", *family.requires}
    read = known | ({*family.config} if family.config else set())
    return [name for name, value in config.items() if name not in read and value is not None]


def _device(device: str | torch.device | None) -> torch.device | None:
    if device is None:
        return None
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"unknown device {device!r}: use cpu, cuda, cuda:0, mps, ...") from error
    if found.type == "meta":
        raise UserError("device 'meta' holds no numbers, so nothing can be computed there: use cpu, cuda, mps, ...")
    return found


def _name(source: str | Path) -> str:
    return Path(source).name if Path(before_training(source) or source).exists() else str(source)


@torch.no_grad()
def randomise(backbone: Any) -> None:
    """Draw the weights again as transformers does before training, where they are: no second copy is needed."""
    for part in (*backbone.modules(), *backbone.parameters(), *backbone.buffers()):
        if hasattr(part, "_is_hf_initialized"):  # how transformers marks what it must not draw
            part._is_hf_initialized = False
    state = torch.get_rng_state()
    torch.manual_seed(UNTRAINED_SEED)
    backbone.initialize_weights()
    backbone.tie_weights()
    torch.set_rng_state(state)
