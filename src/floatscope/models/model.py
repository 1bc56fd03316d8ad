"""A loaded checkpoint that samplers can ask for logits: visibility, logit shift and padding are settled here.

Knows transformers and its family's sampler; nothing of attention statistics (probe) or of how slots are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import takewhile
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.canvas import Prompt
from floatscope.decoding import Batch, Sampler
from floatscope.decoding.steps import require_at_end
from floatscope.errors import UserError
from floatscope.models.canvases import Canvases, generation_config
from floatscope.models.family import Family
from floatscope.models.visibility import Visibility
from floatscope.probe.attention import IMPLEMENTATION, only_samples

if TYPE_CHECKING:
    from floatscope.models.edited import EditedModel, Edits


@dataclass(frozen=True, eq=False)
class Reading:
    """What one forward says of the slots that are open in it: B samples, N positions each."""

    columns: Tensor
    """The positions on the left-padded canvases, int64 [B, N]; a shorter row repeats its first."""
    logits: Tensor
    """Scores of the tokens that may stand there, float32 [B, N, V]."""


class Model:
    """A transformers backbone, its family, and what the checkpoint says of tokens.

    Made by `floatscope.load`, or from a backbone at hand; takes it over: eval mode, our attention function, the
    family's visibility.
    """

    def __init__(
        self,
        backbone: Any,
        family: Family,
        tokenizer: Any = None,
        name: str = "model",
        mask_id: int | None = None,
        block: int | None = None,
    ) -> None:
        self.backbone = backbone.eval()
        self.family = family
        self.tokenizer = tokenizer
        self.name = name
        self.visibility = self._block_size(family, block)
        if self.block is not None and (window := self.window) is not None:
            raise UserError(
                f"{name}: layers with a sliding window of {window} tokens under {self.visibility} are not computed: "
                "this model cannot be traced faithfully"
            )
        self.mask_id = None if family.is_arm or family.noise else self._mask_id(mask_id)
        self.eos_ids = self._eos_ids()
        self._listener: Callable[[Reading], object] | None = None
        try:
            backbone.set_attn_implementation(IMPLEMENTATION)
        except ValueError as error:
            raise UserError(f"{name}: {type(backbone).__name__} takes no attention function from outside") from error
        if self.visibility.kind == "bidirectional":
            see_everything(backbone)

    def __repr__(self) -> str:
        parameters = sum(p.numel() for p in self.backbone.parameters())
        return f"Model({self.name}, family {self.family.name}, {self.visibility}, {parameters / 1e6:.1f}M parameters)"

    @property
    def config(self) -> Any:
        """The backbone's text config."""
        return self.backbone.config.get_text_config()

    @property
    def context(self) -> int | None:
        """The longest canvas the checkpoint was made for, if it says."""
        stated = getattr(self.config, "max_position_embeddings", None)
        table = getattr(getattr(self.backbone.base_model, "embeddings", None), "position_embeddings", None)
        first = getattr(table, "padding_idx", None)  # RoBERTa and its kin count positions from after the pad id
        return stated if stated is None or first is None else stated - first - 1

    @property
    def vocabulary(self) -> int:
        """Rows of the token embedding."""
        return int(self.backbone.get_input_embeddings().weight.shape[0])

    @property
    def layers(self) -> int:
        """Attention layers."""
        return int(self.config.num_hidden_layers)

    @property
    def window_field(self) -> str:
        """The config's word for it: Llama 4 has chunks, which hide what is beyond them as a window does."""
        return "attention_chunk_size" if hasattr(self.config, "attention_chunk_size") else "sliding_window"

    @property
    def window(self) -> int | None:
        """The sliding window of some or all layers, where it is narrower than the context."""
        window = getattr(self.config, self.window_field, None)
        kinds = getattr(self.config, "layer_types", None)
        if window is None or (kinds is not None and "full_attention" in kinds and len(set(kinds)) == 1):
            return None
        return None if self.context is not None and window >= self.context else int(window)

    @property
    def block(self) -> int | None:
        """Block size under block_causal visibility."""
        return self.visibility.block if self.visibility.kind == "block_causal" else None

    @property
    def canvas(self) -> int | None:
        """Slots that are denoised together from noise, in families without a mask token."""
        return self.visibility.block if self.family.noise else None

    @property
    def device(self) -> torch.device:
        """Where token ids go in (with a device map: where the embedding is)."""
        return self.backbone.get_input_embeddings().weight.device

    def sampler(self, wishes: Mapping[str, Any] | None = None, /, **overrides: Any) -> Sampler:
        """The way its family fills slots, with settings overridden; `name` chooses another sampler.

        An override of None is left out, and a setting that the sampler does not have is refused. `wishes`: settings
        for samplers that have them; the others leave them out.
        """
        if "block" in self.family.sampler and "name" not in overrides:  # that of the checkpoint, not of the row
            overrides = {"block": self.visibility.block} | overrides
        return self.family.make_sampler(wishes, **overrides)

    def edited(self, canvases: Sequence[Prompt], edits: Edits, sampler: Sampler, batch: Batch) -> EditedModel:
        """The same model with its attention changed while it fills these canvases (prompts with their slots)."""
        from floatscope.models.edited import EditedModel, make_editors

        return EditedModel(self, make_editors(self, canvases, edits, sampler, batch))

    def text(self, ids: Iterable[int] | NDArray[np.int64], strip: bool = True) -> str:
        """What answer tokens [A] say: decoded up to the first that ends an answer, without blanks at its ends."""
        if self.tokenizer is None:
            raise UserError(f"{self.name} has no tokenizer beside its weights, so tokens cannot be read as text")
        kept = list(takewhile(lambda token: token not in self.eos_ids, map(int, ids)))
        text = self.tokenizer.decode(kept, skip_special_tokens=True)
        return text.strip() if strip else text

    def token_texts(self, ids: NDArray[np.int64]) -> tuple[str, ...]:
        """Each of the tokens [T] as the tokenizer spells it; a model may know more ids than its tokenizer."""
        numbers = ids.tolist()
        named = zip(self.tokenizer.convert_ids_to_tokens(numbers), numbers, strict=True)
        return tuple(f"<{number}>" if text is None else text for text, number in named)

    def logits(self, ids: Any) -> Tensor:
        """[B, T, V]: for an MDM row i scores position i (the shift is applied); for an ARM, the token after i."""
        try:
            tokens = torch.as_tensor(ids, device=self.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError("token ids should be whole numbers, [T] or [B, T] with rows of equal length") from error
        if tokens.ndim not in (1, 2) or (tokens.numel() and (tokens.is_floating_point() or tokens.dtype == torch.bool)):
            raise UserError(
                f"token ids should be whole numbers, [T] or [B, T], not {tokens.dtype} of {tuple(tokens.shape)}"
            )
        tokens = torch.atleast_2d(tokens.long())
        pads = torch.zeros(len(tokens), dtype=torch.long, device=self.device)
        places = torch.arange(tokens.shape[1], device=self.device).expand(tokens.shape)
        with torch.inference_mode():
            return self.forward(tokens, pads, places if self.is_arm else self.rows(places, pads))

    @property
    def is_arm(self) -> bool:
        """Whether it writes one token after the other."""
        return self.family.is_arm

    @contextmanager
    def listening(self, listener: Callable[[Reading], object]) -> Iterator[None]:
        """Inside, `listener` gets a Reading of every conditional pass, after those who listened already."""
        first = self._listener

        def both(reading: Reading) -> None:
            if first is not None:
                first(reading)
            listener(reading)

        self._listener = both
        try:
            yield
        finally:
            self._listener = first

    def score(self, batch: Batch, columns: Tensor, conditional: bool = True) -> Tensor:
        """Logits [B, N, V] for the tokens at `columns` [B, N] of left-padded canvases."""
        first = batch.slots[:, :1]
        mask, block = None, self.visibility.block
        if self.visibility.kind == "active_block" and block and self.canvas is None:
            of_block = (columns - first) // block
            if bool((of_block != of_block[:, :1]).any()):
                raise UserError(
                    f"{self.name} fills a block of {block} slots at a time: give the sampler block={block}."
                )
            require_at_end(batch, f"{self.name} sees no text after the block that it fills")
            mask = self.visibility.mask(batch.tokens.shape[1], batch.pads, (first[:, 0], columns[:, 0]))
        logits = self.forward(batch.tokens, batch.pads, self.rows(columns, batch.pads, first), mask)
        if conditional and self._listener is not None:
            self._listener(Reading(columns, logits))
        return logits

    def rows(self, positions: Tensor, pads: Tensor, first: Tensor | None = None) -> Tensor:
        """The rows whose output scores each position: the one before in shifted families and ARMs.

        first: the first slot of each sample [B, 1], from which active blocks are counted.
        """
        if self.family.logits == "same":
            return positions
        before = positions > pads[:, None]
        if self.family.logits == "block_next":
            before &= (
                torch.zeros_like(before) if first is None else (positions - first) % (self.visibility.block or 1) == 0
            )
        return torch.where(before, positions - 1, positions)

    def extend(self, tokens: Tensor, pads: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Next-token logits [B, V] of an ARM after `tokens`, with its key-value cache (None at the start)."""
        seen = cache.get_seq_length() if cache is not None else 0
        self._check(tokens, seen)
        tokens, pads = tokens.to(self.device), pads.to(self.device)
        total = seen + tokens.shape[1]
        place = torch.arange(total, device=tokens.device)[None] - pads[:, None]  # [B, total], negative on pads
        out = self.backbone(
            input_ids=tokens,
            attention_mask=(place >= 0).long(),
            position_ids=place[:, seen:].clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        if getattr(out, "past_key_values", None) is None:
            raise UserError(f"{self.name}: {type(self.backbone).__name__} keeps no keys and values to go on from")
        logits = out.logits[:, -1:].float()
        if self._listener is not None:
            self._listener(Reading(torch.full((len(tokens), 1), total), logits))
        return logits[:, 0], out.past_key_values

    def forward(self, tokens: Tensor, pads: Tensor, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits [B, N, V] of the given rows [B, N]; the LM head runs on these rows only.

        mask: who sees whom, where that is not the same in every pass.
        """
        self._check(tokens)
        if self.canvas is not None:
            raise UserError(f"{self.name} is denoised canvas by canvas over a cache: it has no logits of a whole text")
        padded, masked_lm = bool(pads.any()), self.family.backbone == "AutoModelForMaskedLM"
        tokens, pads, rows = (given.to(self.device, non_blocking=True) for given in (tokens, pads, rows))
        if padded and masked_lm:
            # Positions differ from class to class (RoBERTa counts from the pad id): run equal lengths together.
            return self._by_length(tokens, pads, rows)
        inputs: dict[str, Any] = {"input_ids": tokens} if masked_lm else {"input_ids": tokens, "use_cache": False}
        place = torch.arange(tokens.shape[1], device=tokens.device)[None] - pads[:, None]
        if self.block:
            mask = self.visibility.mask(tokens.shape[1], pads if padded else pads[:1])
        if mask is not None:
            inputs["attention_mask"] = mask.to(tokens.device).expand(len(tokens), -1, -1, -1)
        elif padded:
            inputs["attention_mask"] = (place >= 0).long()
        if padded:
            inputs["position_ids"] = place.clamp(min=0)
        with only_rows(self.backbone.base_model, rows) as taken:
            logits = self.backbone(**inputs).logits.float()
        return logits if taken else take_rows(logits, rows)  # some classes (OPT, Llama 4) go round their base model

    def _by_length(self, tokens: Tensor, pads: Tensor, rows: Tensor) -> Tensor:
        parts: list[Tensor] = []
        order: list[int] = []
        for pad in pads.unique().tolist():
            where = (pads == pad).nonzero()[:, 0]
            with only_samples(where.tolist()):
                parts.append(self.forward(tokens[where, pad:], torch.zeros_like(where), rows[where] - pad))
            order += where.tolist()
        return torch.cat(parts)[torch.tensor(order, device=rows.device).argsort()]

    def canvases(self, settings: Mapping[str, Any], ids: Tensor, seed: int) -> Canvases:
        """A run over canvases after the ids [P], with the settings of a sampler: of families without a mask token."""
        return Canvases(self.backbone, generation_config(self.backbone, settings), ids, seed)

    def canvas_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The same settings, with the checkpoint's own in place of None."""
        config = generation_config(self.backbone, settings)
        own = {"steps": config.max_denoising_steps, "entropy_bound": config.sampler_config.entropy_bound}
        return {name: own.get(name, getattr(config, name, value)) for name, value in settings.items()}

    def watching(
        self, batch: Batch, sample: int, rows: range, keys: range, open_rows: bool
    ) -> AbstractContextManager[None]:
        """Around one pass over a canvas of one sample, for whoever watches: its rows and its keys as positions."""
        return nullcontext()

    def _check(self, tokens: Tensor, seen: int = 0) -> None:
        if tokens.numel() == 0:
            raise UserError("the canvas is empty: give at least one token")
        length = seen + tokens.shape[1]
        if self.context is not None and length > self.context:
            raise UserError(
                f"the canvas has {length} tokens and {self.name} a context of {self.context}: "
                "shorten the prompt or ask for fewer answer slots"
            )
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.vocabulary:
            raise UserError(f"token id {low if low < 0 else high} is outside the vocabulary of {self.vocabulary}")

    def _block_size(self, family: Family, given: int | None) -> Visibility:
        if given is not None and (family.is_arm or family.noise):
            raise UserError(f"{self.name} is of family {family.name}, whose blocks cannot be chosen: leave block out")
        if given is not None:
            if not isinstance(given, int) or isinstance(given, bool):
                raise UserError(f"{self.name}: block {given!r} is no block size: give a whole number of at least 1")
            kind = family.visibility.kind
            return Visibility(kind if "block" in kind else "block_causal", given)
        configs = (self.config, self.backbone.config)
        stated = [getattr(config, family.block_field, None) for config in configs] if family.block_field else []
        stated = next((one for one in stated if one is not None), None)
        if stated is not None and (not isinstance(stated, int) or isinstance(stated, bool) or stated < 1):
            raise UserError(f"{self.name}: config field {family.block_field} is {stated!r}, not a block size")
        return replace(family.visibility, block=stated) if stated else family.visibility

    def _mask_id(self, given: int | None) -> int:
        generation = getattr(self.backbone, "generation_config", None)
        stated = [getattr(where, "mask_token_id", None) for where in (self.config, self.tokenizer, generation)]
        found = next((one for one in (given, *stated, self.family.mask_id) if one is not None), None)
        if found is None:
            raise UserError(
                f"{self.name}: neither config nor tokenizer states a mask token: give its id (mask_id, --mask-id)"
            )
        if not isinstance(found, Integral) or isinstance(found, bool) or not 0 <= int(found) < self.vocabulary:
            raise UserError(f"{self.name}: mask id {found!r} is outside its vocabulary of {self.vocabulary}")
        return int(found)

    def _eos_ids(self) -> tuple[int, ...]:
        generation = getattr(self.backbone, "generation_config", None)
        stated: list[int] = []
        for value in (getattr(self.config, "eos_token_id", None), getattr(generation, "eos_token_id", None)):
            stated += value if isinstance(value, list | tuple) else [value] if value is not None else []
        extra = [i for i in self.family.eos_ids if i < self.vocabulary]
        return tuple(dict.fromkeys([*stated, *extra]))


def see_everything(backbone: Any) -> None:
    """Give a causal class full visibility: the config flag changes its masks, the module flag its mask-free path."""
    backbone.config.get_text_config().is_causal = False
    for module in backbone.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False


@contextmanager
def only_rows(body: torch.nn.Module, rows: Tensor) -> Iterator[list[Tensor]]:
    """Hand only these rows [B, N] of the body's last hidden state to the head that follows.

    The list holds them after the pass; it stays empty where the model goes round its body.
    """
    taken: list[Tensor] = []

    def select(_module: torch.nn.Module, _inputs: Any, output: Any) -> Any:
        if not hasattr(output, "last_hidden_state"):  # the class names no body, so this is the whole model (Llama 4)
            return output
        output.last_hidden_state = take_rows(output.last_hidden_state, rows)
        taken.append(output.last_hidden_state)
        return output

    handle = body.register_forward_hook(select)
    try:
        yield taken
    finally:
        handle.remove()


def take_rows(values: Tensor, rows: Tensor) -> Tensor:
    """[B, T, d] to [B, N, d]."""
    return values.gather(1, rows.to(values.device)[..., None].expand(-1, -1, values.shape[-1]))
