"""Learners: a causal backbone in training, and what of it is trained. They know nothing of data or objectives.

`TwinLearner` trains all weights of a twin; `AdapterLearner` trains LoRA on the linear layers of a pretrained ARM with
frozen weights, and a mask token: it writes PEFT's own files beside what they fork, which `models.adapters` reads.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from floatscope.errors import UserError
from floatscope.files import read_json, replace_json, replacing
from floatscope.models import adapters
from floatscope.models.families import get_family
from floatscope.models.loading import load, locate
from floatscope.models.model import Model, see_everything
from floatscope.models.twins import save_twin
from floatscope.training.recipe import Recipe

BETAS = (0.9, 0.98)
SCALED = ("final_logit_softcapping", "logits_scaling", "logit_scale")  # what some heads do after their product
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Learner:
    """A causal backbone that is trained on as it is (arm) or under full visibility (dream, llada)."""

    mask_embedding: torch.nn.Parameter | None = None
    """The embedding of the mask token, where it is trained apart from the others."""

    def __init__(self, backbone: Any, to: str, tokenizer: Any, mask_id: int | None, name: str) -> None:
        self.backbone, self.to, self.tokenizer, self.mask_id, self.name = backbone, to, tokenizer, mask_id, name
        self.prepare()

    def prepare(self) -> None:
        """Attention that trains fast, and the visibility to train for."""
        self.backbone.set_attn_implementation("sdpa")
        if self.to != "arm":
            see_everything(self.backbone)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """All that is trained, by name, in a fixed order."""
        return {name: parameter for name, parameter in self.backbone.named_parameters() if parameter.requires_grad}

    def optimizers(self, recipe: Recipe) -> list[torch.optim.Optimizer]:
        trained = list(self.parameters().values())
        return [torch.optim.AdamW(trained, lr=recipe.rate, betas=BETAS, weight_decay=recipe.decay)]

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def context(self) -> int | None:
        """The longest sequence that the backbone was made for, if it says."""
        return getattr(self.backbone.config.get_text_config(), "max_position_embeddings", None)

    @property
    def embedding(self) -> Any:
        return self.backbone.get_input_embeddings()

    def write(self, out: Path) -> None:
        """Put the files of the trained model into a folder."""
        raise NotImplementedError

    def states(self, inputs: Tensor, visible: Tensor | None, every: bool = False) -> tuple[Tensor, ...]:
        """Hidden states [B, T, d], of `every` layer or the last one only; `visible` [B, T] is false at padding."""
        embedded = self.embedding(inputs)
        if self.mask_embedding is not None:
            embedded = torch.where((inputs == self.mask_id)[..., None], self.mask_embedding, embedded)
        seen = None if visible is None or bool(visible.all()) else visible.to(self.device)
        found = self.backbone.base_model(
            inputs_embeds=embedded, attention_mask=seen, use_cache=False, output_hidden_states=every
        )
        return found.hidden_states if every else (found.last_hidden_state,)

    def head(self, states: Tensor) -> Tensor:
        """Logits [N, vocabulary] of hidden states [N, d]."""
        head = self.backbone.get_output_embeddings()
        logits = head(states)
        if self.mask_embedding is not None and head.weight is self.embedding.weight:
            logits[:, self.mask_id] = states @ self.mask_embedding.to(states.dtype)
        return logits


class TwinLearner(Learner):
    """A twin, all of whose weights are trained."""

    def __init__(self, backbone: Any, twin: str, tokenizer: Any) -> None:
        self.twin = twin
        to = "arm" if twin == "parent" else twin
        super().__init__(backbone, to, tokenizer, tokenizer.mask_token_id, f"twin-{twin}")

    def optimizers(self, recipe: Recipe) -> list[torch.optim.Optimizer]:
        """Muon for the matrices of the layers, AdamW for embeddings and norms (or for all), at one rate."""
        parameters = self.parameters()
        matrices = [p for name, p in parameters.items() if p.ndim > 1 and "embed" not in name]
        rest = [
            {"params": [self.embedding.weight], "weight_decay": recipe.decay},
            {"params": [p for p in parameters.values() if p.ndim == 1], "weight_decay": 0.0},
        ]
        if not getattr(recipe, "muon", True):
            rest[0]["params"] += matrices
            return [torch.optim.AdamW(rest, lr=recipe.rate, betas=BETAS)]
        return [
            torch.optim.Muon(matrices, lr=recipe.rate, weight_decay=recipe.decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=recipe.rate, betas=BETAS),
        ]

    def write(self, out: Path) -> None:
        save_twin(self.twin, self.backbone, self.tokenizer, out)


def choose_mask_token(tokenizer: Any) -> int:
    """The mask token of a fork: the tokenizer's own, else its last special token that stands for nothing else.

    Such tokens (SmolLM2: <empty_output>) are in the vocabulary and, being special, never come out of plain text.
    """
    if tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    taken = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    chat = str(getattr(tokenizer, "chat_template", None) or "")
    special = [(number, token.content) for number, token in tokenizer.added_tokens_decoder.items() if token.special]
    free = [number for number, content in special if number not in taken and content not in chat]
    if not free:
        raise UserError(
            "The parent's tokenizer has no special token left to be the mask: its special tokens are all in use. "
            "Choose a parent with a reserved one (<reserved_0>, <|fim_pad|>, ...), or add one and resize its embedding."
        )
    return int(max(free))


def parent_tokenizer(model: Model) -> Any:
    """The tokenizer of a model that can be forked: an ARM, with an eos token."""
    if not model.family.is_arm:
        raise UserError(f"{model.name} is of family {model.family.name}; only an ARM (family causal) can be forked.")
    if model.tokenizer is None or model.tokenizer.eos_token_id is None:
        raise UserError(f"{model.name} has no tokenizer with an eos token, which training on text needs.")
    return model.tokenizer


def _adapted(layer: Any, base: torch.nn.Linear, x: Tensor) -> Tensor:
    """x W' + scale (x A') B' + bias with its sums in one place, where peft's own layer makes three passes more."""
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    flat = x.reshape(-1, x.shape[-1])  # [N, in]
    out = torch.addmm(flat @ base.weight.t(), flat @ a.t(), b.t(), alpha=layer.scaling["default"])  # [N, out]
    out = out.view(*x.shape[:-1], -1)
    return out if base.bias is None else out + base.bias


class AdapterLearner(Learner):
    """The parent with what is trained of it. Three forks of one seed and rank begin with the same adapter."""

    def __init__(self, parent: str | Path, to: str, rank: int, seed: int, device: str | None = None) -> None:
        if to not in adapters.FAMILY_OF:
            raise UserError(f"Unknown kind of fork {to!r}; a parent is adapted to {', '.join(adapters.FAMILY_OF)}.")
        try:
            import peft
        except ImportError:
            raise UserError("Adapting needs the package peft: pip install 'floatscope[adapt]'.") from None
        device = device or ("cuda" if torch.cuda.is_available() else None)
        model = load(parent, device=device, dtype="float32", check=False)
        tokenizer = parent_tokenizer(model)
        place = locate(parent)
        if place.fork is not None:
            raise UserError(f"{parent} is a fork itself: adapt its parent {place.fork.parent}, or merge it first.")
        mask_id = None if to == "arm" else choose_mask_token(tokenizer)
        self.parent_sha256 = adapters.parent_hash(place.weights)
        super().__init__(model.backbone, to, tokenizer, mask_id, str(parent))
        self._refuse_unknown_layers()
        config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(LAYERS), task_type="CAUSAL_LM")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.peft: Any = peft.get_peft_model(self.backbone, config)
        if self.device.type == "cpu":  # the same numbers, a step in an eighth less time
            for module in self.backbone.modules():
                base = getattr(module, "base_layer", None)
                if hasattr(module, "lora_A") and isinstance(base, torch.nn.Linear):
                    module.forward = partial(_adapted, module, base)
        if mask_id is not None:
            self.mask_embedding = torch.nn.Parameter(self.embedding.weight.detach()[mask_id].clone())

    def _refuse_unknown_layers(self) -> None:
        names = {name.rpartition(".")[2] for name, _ in self.backbone.named_modules()}
        if missing := [layer for layer in LAYERS if layer not in names]:
            raise UserError(
                f"{self.name} is a {type(self.backbone).__name__} without layers {', '.join(missing)}; adapters are "
                "made for models with the layers of Llama, Qwen, Mistral and their kin."
            )
        scaled = [name for name in SCALED if getattr(self.backbone.config, name, None)]
        if type(self.embedding) is not torch.nn.Embedding or scaled:
            what = f"has {scaled[0]}" if scaled else "scales its embedding"
            raise UserError(f"{self.name} {what}, which training here does not know: choose another parent.")

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        mask = {} if self.mask_embedding is None else {"mask_embedding": self.mask_embedding}
        return super().parameters() | mask

    @contextmanager
    def as_model(self) -> Iterator[Model]:
        """The fork as it stands, for decoding; afterwards it trains on."""
        table, mask_id = self.embedding.weight.detach(), self.mask_id
        row = None if mask_id is None else table[mask_id].clone()
        if self.mask_embedding is not None:
            table[mask_id] = self.mask_embedding.detach()
        try:
            yield Model(self.backbone, get_family(adapters.FAMILY_OF[self.to]), self.tokenizer, self.name, mask_id)
        finally:
            if row is not None:
                table[mask_id] = row
            self.prepare()
            self.backbone.train()

    def write(self, out: Path) -> None:
        """The adapter in fp32."""
        self.peft.peft_config["default"].base_model_name_or_path = self.name
        self.peft.save_pretrained(out, safe_serialization=True, save_embedding_layers=False)
        (out / "README.md").unlink(missing_ok=True)  # peft's form to fill in; the card is written by `card`
        config = read_json(out / adapters.ADAPTER_CONFIG)
        # A set in peft, which would come in another order in every run.
        config["target_modules"] = sorted(config["target_modules"])
        replace_json(out / adapters.ADAPTER_CONFIG, config)
        if self.mask_embedding is not None:
            with replacing(out / adapters.MASK_EMBEDDING) as file:
                save_file({"mask_embedding": self.mask_embedding.detach().cpu().clone()}, file)
        local = Path(self.name).expanduser()
        parent = str(local.resolve()) if local.exists() else self.name  # a path must mean the same from every folder
        about = adapters.Fork(parent, self.to, self.mask_id, self.parent_sha256)  # pyright: ignore[reportArgumentType]
        adapters.write_fork(out, about)


def write_merged(out: Path) -> None:
    """out/merged: the fork as a checkpoint of its own, which needs neither adapter nor parent."""
    model = load(out, dtype="float32", device="cpu", check=False)
    config = model.backbone.config
    config.floatscope_family = model.family.name
    if model.mask_id is not None:
        config.mask_token_id = model.mask_id
    for part in (model.backbone, model.tokenizer):
        part.save_pretrained(out / "merged")


def ship(folder: Path, out: Path) -> Path:
    """A copy of an adapter in fp16, with its card, its gates and its log, and without anything of its data."""
    out.mkdir(parents=True, exist_ok=True)
    about = [folder / name for name in ("README.md", "gates.json", "log.jsonl") if (folder / name).exists()]
    for file in (*adapters.adapter_files(folder), *about):
        if file.suffix == ".safetensors":
            tensors = {key: tensor.to(torch.float16) for key, tensor in load_file(file).items()}
            save_file(tensors, out / file.name, metadata={"format": "pt"})
        else:
            shutil.copyfile(file, out / file.name)
    return out
