"""A model whose attention is edited while it answers: what samplers know of a model, with an Editor per sample."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from floatscope.canvas import MASKED, Prompt
from floatscope.decoding.generation import fill
from floatscope.decoding.steps import Batch, Sampler
from floatscope.errors import UserError
from floatscope.models.model import Model
from floatscope.probe.attention import Geometry, Listener, Probe, probing
from floatscope.probe.editing import Editor, plain_layout
from floatscope.probe.edits import Edit
from floatscope.probe.kernel import LayerStatistics, Workspace
from floatscope.probe.layout import Layout
from floatscope.token_text import text_class

Edits = Sequence[Edit] | Sequence[Sequence[Edit]]
"""The same edits for all samples, or a list per sample."""


def make_editors(
    model: Model, canvases: Sequence[Prompt], edits: Edits, sampler: Sampler, batch: Batch
) -> list[Editor]:
    """An Editor per canvas (a prompt with its slots) of a batch; mistakes that the canvas shows are told here."""
    for_all = [edit for edit in edits if isinstance(edit, Edit)]
    lists = [list(own) for own in edits if not isinstance(own, Edit)] or [for_all] * len(canvases)
    known = all(isinstance(edit, Edit) for own in lists for edit in own)
    if not known or len(lists) != len(canvases) or (for_all and len(for_all) != len(edits)):
        raise UserError(f"edits should be a list of fs.Edit, or {len(canvases)} such lists, one per prompt.")
    editors = []
    for own, canvas, seed in zip(lists, canvases, batch.seeds, strict=True):
        assert canvas.slots is not None
        _, most = sampler.step_bounds(int(canvas.slots[0]), model.block)
        classes = [] if model.tokenizer is None else [text_class(text) for text in model.token_texts(canvas.ids)]
        own = [edit.for_model(model.name) for edit in own]
        editors.append(Editor(own, canvas, model.layers, most, seed, model.is_arm, classes))
    if any(editor.needs_run for editor in editors):
        for editor in editors:
            editor.unedited_run = True
        fill(EditedModel(model, editors), batch, sampler)
        for editor in editors:
            editor.end_unedited_run()
    return editors


class EditedModel:
    """Scores and extends as the model does, under the edits of each sample."""

    def __init__(self, model: Model, editors: Sequence[Editor], donors: Mapping[int, int] | None = None) -> None:
        """`donors`: for samples that are patched, the sample that they are patched from, which comes before them."""
        self.model, self.editors, self.donors = model, editors, donors or {}
        patched = (sample for sample, own in enumerate(editors) if any(edit.op == "patch" for edit in own.edits))
        if any(sample not in self.donors for sample in patched):
            raise UserError("The edit patch follows another prompt's run, which only fs.patch is given: call that.")
        self.mask_id, self.eos_ids, self.is_arm = model.mask_id, model.eos_ids, model.is_arm
        self.block, self.context = model.block, model.context
        self.canvas, self.canvases, self.canvas_settings = model.canvas, model.canvases, model.canvas_settings
        self.sampler, self.edited = model.sampler, model.edited
        self.unedited: Tensor | None = None
        """Logits of the pass without edits before step 0, where there was one."""
        self._workspace = Workspace()
        self._index = -1

    def score(self, batch: Batch, columns: Tensor, conditional: bool = True) -> Tensor:
        """Logits of the edited pass; guidance's second pass, without the prompt, is not edited."""
        if not conditional:
            return self.model.score(batch, columns, conditional)
        self._index += 1
        rows = self.model.rows(columns, batch.pads, batch.slots[:, :1]) - batch.pads[:, None]
        for editor, state, own in zip(self.editors, batch.state, rows, strict=False):  # there may be none at all
            editor.begin(self._index, len(editor.sets["open"]), state == MASKED, own.unique())
        if self._index == 0 and any(editor.needs_pass for editor in self.editors):
            asked = columns if any(editor.measures for editor in self.editors) else columns[:, :1]
            with watching(self.editors), probing(self.probe(batch.pads, EditedModel.layouts(self, batch, rows))):
                self.unedited = self.model.score(batch, asked)
        with probing(self.probe(batch.pads, self.layouts(batch, rows))):
            return self.model.score(batch, columns)

    def extend(self, tokens: Tensor, pads: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Next-token logits of an ARM; an edit acts on the rows that are computed now, and cached rows stay."""
        self._index += 1
        seen = cache.get_seq_length() if cache is not None else 0
        total = seen + tokens.shape[1]
        layouts = []
        for editor, pad in zip(self.editors, pads.tolist(), strict=True):
            keys = torch.arange(total - pad)
            editor.begin(self._index, total - pad, torch.arange(len(editor.slots)) >= self._index, keys[-1:])
            layouts.append(plain_layout(keys[max(0, seen - pad) :], keys))
        if self._index == 0 and any(editor.needs_pass for editor in self.editors):
            with watching(self.editors), probing(self.probe(pads, layouts)):
                self.unedited = self.model.extend(tokens, pads, None)[0][:, None]
        with probing(self.probe(pads, layouts)):
            return self.model.extend(tokens, pads, cache)

    def watching(
        self, batch: Batch, sample: int, rows: range, keys: range, open_rows: bool
    ) -> AbstractContextManager[None]:
        """Around one pass over a canvas of one sample, in which nothing is edited."""
        if self.editors:
            raise UserError(f"The attention of {self.model.name} cannot be edited: it is denoised canvas by canvas.")
        return nullcontext()

    def layouts(self, batch: Batch, rows: Tensor) -> list[Layout | None]:
        """What is counted of each sample in a step of denoising; `rows` [B, N] may fill a slot."""
        places = [torch.arange(batch.tokens.shape[1] - pad) for pad in batch.pads.tolist()]
        return [plain_layout(place, place) for place in places]

    def listener(self) -> Listener | None:
        """Who is told: the editors, where one picks by what it sees."""
        return self.see if any(not editor.hides_only for editor in self.editors) else None

    def see(self, layer: int, sample: int, statistics: LayerStatistics, geometry: Geometry) -> None:
        """One layer of one sample came by."""
        self.editors[sample].see(layer, statistics, geometry)

    def probe(self, pads: Tensor, layouts: Sequence[Layout | None]) -> Probe:
        """The probe of one pass."""
        layers, workspace = self.model.layers, self._workspace
        return Probe(
            pads.tolist(), layouts, self.listener(), layers, workspace, self.editors, donors=self.donors
        )  # fmt: skip


@contextmanager
def watching(editors: Sequence[Editor]) -> Iterator[None]:
    """The pass that is run inside is not edited, and what it shows is what first picks are made by."""
    for editor in editors:
        editor.first_pass = True
    try:
        yield
    finally:
        for editor in editors:
            editor.first_pass = False
