"""A family as data: how one kind of checkpoint maps onto a transformers class. The rows are in `families`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from floatscope.decoding import Sampler, make_sampler
from floatscope.errors import UserError
from floatscope.models.visibility import CAUSAL, Visibility

Logits = Literal["same", "shifted", "block_next", "next"]


@dataclass(frozen=True)
class Family:
    """One kind of checkpoint. To support a new one is to add one of these to FAMILIES, or to write a TOML file."""

    name: str
    """How it is called in code, CLI and traces."""
    backbone: str
    """A transformers class, or `AutoModelForCausalLM` / `AutoModelForMaskedLM` to let transformers choose."""
    visibility: Visibility
    """Who may see whom."""
    logits: Logits
    """Which row scores position i: `same` row i, `shifted` row i-1 (row 0 for position 0), `block_next` row i but row
    i-1 for the first of an active block, `next` the ARM's i-1."""
    sampler: Mapping[str, Any]
    """Name and settings of the sampler the model's authors use."""
    mask_id: int | None = None
    """Fallback for checkpoints that state no mask token."""
    noise: bool = False
    """Whether slots hold random tokens until they are accepted: such a model has no mask token."""
    eos_ids: tuple[int, ...] = ()
    """Ends of turn beside the checkpoint's own eos."""
    block_field: str | None = None
    """Config field that states the block size, where the visibility has one."""
    model_types: tuple[str, ...] = ()
    """config.json `model_type` values that mean this family."""
    architectures: tuple[str, ...] = ()
    """config.json `architectures` values that mean this family."""
    tensors: str = ""
    """Regular expression that a tensor of the checkpoint must match, since several kinds share a `model_type`."""
    keys: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    """Regular expressions on tensor names, and what their match becomes; only the first that matches is used. Several
    names: the tensor is split among them along its first axis, each as long as the backbone's own. What is held expert
    by expert is stacked by the backbone's class."""
    drop: tuple[str, ...] = ()
    """Regular expressions on tensor names: what matches is left out, where the backbone has no place for it."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Config fields of the checkpoint's dialect, and the transformers names they become."""
    requires: Mapping[str, Any] = field(default_factory=dict)
    """Config fields that must have this value where stated: another value would change the mathematics."""
    tokenizer: str | None = None
    """Tokenizer class for checkpoints whose own needs remote code."""
    examples: str = ""
    """Checkpoints known to be of this family."""

    def __post_init__(self) -> None:
        if self.logits not in get_args(Logits):
            raise UserError(f"family {self.name}: logits {self.logits!r} should be {' or '.join(get_args(Logits))}")
        if not isinstance(self.sampler.get("name"), str):
            raise UserError(f"family {self.name}: the sampler has no name, such as llada or autoregressive")
        if self.is_arm and self.visibility != CAUSAL:
            raise UserError(f"family {self.name}: logits next need causal visibility, not {self.visibility}")
        for pattern, names in (dict.fromkeys((self.tensors, *self.drop), "") | dict(self.keys)).items():
            try:
                for name in (names,) if isinstance(names, str) else names:
                    re.compile(f"(?:{pattern})|").sub(name, "")  # an empty match tries the replacement's groups
            except re.error as error:
                told = f"{pattern!r} = {names!r} is not a regular expression and its replacement"
                raise UserError(f"family {self.name}: {told} ({error})") from error

    @property
    def is_arm(self) -> bool:
        """Whether the model generates left to right (no mask token)."""
        return self.logits == "next"

    def make_sampler(self, wishes: Mapping[str, Any] | None = None, /, **overrides: Any) -> Sampler:
        """The family's own sampler, or the one named, with settings overridden, as in `Model.sampler`."""
        given = {setting: value for setting, value in overrides.items() if value is not None}
        name = given.pop("name", self.sampler["name"])
        usual = self.sampler if name == self.sampler["name"] else {}
        own = {setting: value for setting, value in usual.items() if setting not in ("name", *(wishes or ()))}
        return make_sampler(name, wishes, **own | given)

    def drops(self, tensor: str) -> bool:
        """Whether a tensor of the checkpoint may be left out."""
        return any(re.search(pattern, tensor) for pattern in self.drop)

    def backbone_names(self, tensor: str) -> list[str]:
        """What the backbone calls a tensor of the checkpoint; several where it is split."""
        for pattern, names in self.keys.items():
            if re.search(pattern, tensor):
                return [re.sub(pattern, name, tensor) for name in ((names,) if isinstance(names, str) else names)]
        return [tensor]
