"""The door to lm-evaluation-harness (extra `lm-eval`): its tasks on any of our models, under the name "floatscope".

    python -m floatscope.lm_eval run --model floatscope --model_args pretrained=twin-llada --tasks ...

Importing this registers the model; how likelihoods are computed is left to `models.likelihood`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from floatscope.decoding import AutoregressiveSampler, LLaDASampler, Sampler, generate
from floatscope.errors import UserError
from floatscope.models.likelihood import Pair, log_likelihoods
from floatscope.models.loading import load
from floatscope.models.model import Model
from floatscope.probe.edits import Edit, read_edit
from floatscope.qa.prompts import surroundings
from floatscope.qa.stressors import derived_seed

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import Collator
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:
    raise UserError("floatscope.lm_eval needs the package `lm-eval`: pip install 'floatscope[lm-eval]'.") from error

DEFAULT_CONTEXT = 2048


@register_model("floatscope")
class FloatscopeLM(TemplateLM):
    """One of our models as the harness knows models.

    pretrained, family, dtype, device: as in `floatscope.load`.
    mc: Monte Carlo samples of a likelihood. seed: of these and of the sampler.
    edits: changes of attention, a list of `fs.Edit`, or a text: "block anchors(3); scale bos by 0.5". The harness's
    prompts have the regions bos and query; positions, classes of tokens and picks by rank can be named too.
    Anything else is a setting of the sampler (steps, block, temperature, ...), `sampler` its name, and `length` the
    answer slots, in place of the task's max_gen_toks.
    """

    def __init__(
        self,
        pretrained: str,
        family: str | None = None,
        dtype: str | None = None,
        device: str | None = None,
        batch_size: int | str = 8,
        max_batch_size: int | None = None,
        mc: int = 128,
        seed: int = 0,
        sampler: str | None = None,
        edits: str | Sequence[Edit] = (),
        **settings: Any,
    ) -> None:
        super().__init__()
        if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
            device = None  # the harness's command line asks for cuda:0 on every machine
        self.model: Model = load(pretrained, family=family, dtype=dtype, device=device)
        self.tokenizer = self.model.tokenizer
        if self.tokenizer is None:
            raise UserError(f"{self.model.name} has no tokenizer beside its weights, and the harness speaks text.")
        if not str(batch_size).isdecimal() or int(batch_size) < 1:
            raise UserError(f"batch_size={batch_size} must be a whole number of at least 1; there is no automatic one.")
        if mc < 1:
            raise UserError(f"mc={mc}: a likelihood needs at least one sample.")
        self.batch_size, self.mc, self.seed = int(batch_size), mc, seed
        texts = [text for text in edits.split(";") if text.strip()] if isinstance(edits, str) else []
        self.edits = list(map(read_edit, texts)) if isinstance(edits, str) else list(edits)
        own = dict(self.model.family.sampler)
        self._settings = (own if sampler in (None, own["name"]) else {"name": sampler}) | settings
        self._sampler({})  # a mistake in the settings is told before anything runs
        self._device = self.model.device

    @property
    def max_length(self) -> int:
        """Tokens of the longest canvas."""
        return self.model.context or DEFAULT_CONTEXT

    @property
    def eot_token_id(self) -> int:
        """The token that ends an answer."""
        return self.model.eos_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has no context."""
        lead, _ = surroundings(self.tokenizer)
        return lead[0] if lead else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        """For the harness's caches."""
        return self.model.name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids, after the tokenizer's bos unless the text has it."""
        assert self.tokenizer is not None
        ids = self.tokenizer(string, add_special_tokens=False)["input_ids"]
        lead = [] if add_special_tokens is False else surroundings(self.tokenizer)[0]
        return ids if ids[: len(lead)] == lead else [*lead, *ids]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The turns as one text, by the tokenizer's own template."""
        assert self.tokenizer is not None
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers, each cut before the first of its task's stop strings."""
        order = Collator([request.args for request in requests], lambda asked: -len(asked[0]), group_by="gen_kwargs")
        answers: list[str] = []
        for batch in order.get_batched(n=self.batch_size):
            wanted = batch[0][1]
            until = wanted.get("until") or []
            stops = [until] if isinstance(until, str) else until
            sampler = self._sampler(wanted)
            prompts = [self._fitted(self.tok_encode(context), sampler.length) for context, _ in batch]
            seeds = [derived_seed(self.seed, context) for context, _ in batch]
            done = generate(self.model, prompts, sampler, seeds, edits=self.edits)
            for asked, generation in zip(batch, done, strict=True):
                text = self.model.text(generation.answer, strip=False)
                ends = (text.find(stop) for stop in stops if stop and stop in text)
                answers.append(text[: min(ends, default=len(text))])
                self.cache_hook.add_partial("generate_until", asked, answers[-1])
        return order.get_original(answers)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in windows of the model's context where they are longer."""
        values = []
        for request in requests:
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length - 1, 1)
            pairs = [(("", ""), *make_disjoint_window(window)) for window in windows]
            values.append(sum(value for value, _ in self._loglikelihood_tokens(pairs)))
        return values

    def _loglikelihood_tokens(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        pairs = [Pair(tuple(self._fitted(context, len(after))), tuple(after)) for _, context, after in requests]
        values = log_likelihoods(self.model, pairs, self.mc, self.seed, self.batch_size, self.edits)
        return list(zip(values, self._greedy(pairs), strict=True))

    def _greedy(self, pairs: Sequence[Pair]) -> list[bool]:
        """Would the continuation be written from its context, one token per step and the surest first?"""
        order = Collator(
            pairs, lambda pair: -len(pair.context), lambda pair: {"length": len(pair.continuation)}, "gen_kwargs"
        )
        found: list[bool] = []
        for batch in order.get_batched(n=self.batch_size):
            length = len(batch[0].continuation)
            if not length:
                found += [True] * len(batch)
                continue
            arm = self.model.family.is_arm
            sampler = AutoregressiveSampler(length=length) if arm else LLaDASampler(steps=length, length=length)
            done = generate(self.model, [list(pair.context) for pair in batch], sampler, edits=self.edits)
            found += [tuple(one.answer.tolist()) == pair.continuation for pair, one in zip(batch, done, strict=True)]
        return order.get_original(found)

    def _fitted(self, context: list[int], slots: int) -> list[int]:
        """The end of a context that is too long for the model beside its slots."""
        if slots >= self.max_length:
            raise UserError(f"{slots} answer tokens leave no room for a prompt in the {self.max_length} of the model.")
        return context[-(self.max_length - slots) :]

    def _sampler(self, wanted: dict[str, Any]) -> Sampler:
        """The sampler for a task's generation settings; one token per step unless steps are given."""
        asked: dict[str, Any] = {}
        if "max_gen_toks" in wanted:
            asked["length"] = int(wanted["max_gen_toks"])
        if "temperature" in wanted:
            asked["temperature"] = float(wanted["temperature"]) if wanted.get("do_sample", True) else 0.0
        length = self._settings.get("length", asked.get("length"))
        if length is not None:
            asked["steps"] = length
        return self.model.sampler(asked, **self._settings)
