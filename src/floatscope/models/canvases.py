"""Models that transformers itself denoises, canvas after canvas (DiffusionGemma): its generation parts, step by step.

What is before a canvas is read causally into a cache; the canvas starts as random tokens and sees the cache and itself.
Noise, acceptance, temperature, self-conditioning and stopping are the parts of transformers' `generate`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from floatscope.errors import UserError

Watched = Callable[[range, range, bool], Any]
"""A context for one pass: the positions of its rows and of its keys, and whether its rows may fill slots."""


def generation_config(backbone: Any, settings: Mapping[str, Any]) -> Any:
    """The checkpoint's generation config with the settings of a sampler that are not None."""
    from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

    names = {"steps": "max_denoising_steps", "length": "max_new_tokens"}
    names |= {name: name for name in ("t_min", "t_max", "stability_threshold", "confidence_threshold")}
    given = {new: settings[name] for name, new in names.items() if settings.get(name) is not None}
    if settings.get("entropy_bound") is not None:
        given["sampler_config"] = EntropyBoundSamplerConfig(float(settings["entropy_bound"]))
    try:
        return backbone._prepare_generation_config(None, **given)[0]
    except ValueError as error:
        raise UserError(f"The sampler's settings do not go together ({error}): t_max must be above t_min.") from error


class Canvases:
    """One sample on its way: the parts of transformers with what they hand each other. Draws from its own seed."""

    def __init__(self, backbone: Any, config: Any, ids: Tensor, seed: int) -> None:
        """`config`: a generation config of the backbone; `ids` [P]: what is before the first canvas."""
        self.backbone, self.config, self.width = backbone, config, backbone.config.canvas_length
        self.ids = ids[None].to(backbone.device)  # [1, T]
        self.finished = torch.zeros(1, dtype=torch.bool, device=self.ids.device)
        self._read = 0
        self._random: tuple[Tensor, ...] | int = seed
        self._cache = backbone._prepare_cache_for_generation(config, 1, len(ids) + config.max_new_tokens)
        self._sampler = backbone._prepare_sampler(config)
        self._processor = backbone._prepare_logits_processor(config)
        self._ends = backbone._prepare_ar_stopping_criteria(config)
        self._rests = backbone._prepare_diffusion_stopping_criteria(config)
        self.canvas = self.likeliest = self.logits = self._masks = self._still = torch.zeros(0)

    def read(self, watched: Watched) -> None:
        """The encoder over what is not in the cache yet, then noise on the next canvas."""
        total, new = self.ids.shape[1], self.ids[:, self._read :]
        places = torch.arange(self._read, total, dtype=torch.int32, device=new.device)[None]
        seen = torch.ones((1, total), dtype=torch.bool, device=new.device)
        inputs, masks = self.backbone._prepare_encoder_inputs(
            self.ids, seen, places, self._cache, self._read == 0, self.width, 1
        )
        with watched(range(self._read, total), range(total), False):
            self.backbone.model.encoder(
                input_ids=inputs, attention_mask=masks, past_key_values=self._cache, position_ids=places
            )
        self._read = total
        around = torch.nn.functional.pad(seen, (0, self.width), value=True)
        with self._drawing():
            self.canvas, self.logits, self._masks, self._still = self.backbone._prepare_denoiser_inputs(
                around, self._cache, self._sampler, self._rests, 1, new.device, {}
            )
        self.likeliest = self.canvas

    def denoise(self, left: int, watched: Watched) -> tuple[Tensor, Tensor]:
        """One step with so many left, itself included: the canvas [C] after it, and which slots were accepted."""
        total = self.ids.shape[1]
        stop = total + self.width

        def forward(**inputs: Any) -> Any:
            with watched(range(total, stop), range(stop), True):
                return self.backbone.forward(**inputs)

        places = torch.arange(total, stop, dtype=torch.int32, device=self.ids.device)[None]
        with self._drawing():
            self.canvas, self.likeliest, self.logits, self._still = self.backbone._denoising_step(
                forward, self.canvas, self.likeliest, self.ids, places, self.logits, self._masks, self._cache,
                self._still, left, self._sampler, self._processor, self._rests,
            )  # fmt: skip
        if left > 1 and not bool(self._still.all()):
            return self.canvas[0], self._sampler.accepted_token_mask[0]
        ends = self.config.eos_token_id
        self.ids, self.finished = self.backbone._finalize_canvas(
            torch.cat([self.ids, self.likeliest], dim=-1), self.finished, self.config, self._ends, self.width,
            None if ends is None else torch.tensor(ends, device=self.ids.device),
        )  # fmt: skip
        return self.ids[0, total:], torch.ones_like(self.likeliest[0], dtype=torch.bool)

    @property
    def is_open(self) -> bool:
        """Whether the canvas is still denoised."""
        return self._read == self.ids.shape[1]

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Inside, torch's global generators are the sample's own."""
        devices = [self.ids.device.index or 0] if self.ids.is_cuda else []
        with torch.random.fork_rng(devices):
            if isinstance(self._random, int):
                torch.manual_seed(self._random)
            else:
                torch.set_rng_state(self._random[0])
                for device, state in zip(devices, self._random[1:], strict=True):
                    torch.cuda.set_rng_state(state, device)
            yield
            self._random = (torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices))
