"""The two kinds of training run: `train` makes a twin in the knowledge world, `adapt` an adapter on passages.

Both take up a stopped run where it stands. Their gates and cards are written by `card`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from floatscope.errors import UserError
from floatscope.files import read_json
from floatscope.models.loading import load
from floatscope.models.shipped import shipped
from floatscope.models.twins import TwinShape, make_model
from floatscope.qa.world import World
from floatscope.qa.world.vocabulary import make_tokenizer
from floatscope.training.gates import read_out
from floatscope.training.learner import AdapterLearner, TwinLearner, parent_tokenizer, write_merged
from floatscope.training.passages import (
    HELD_OUT,
    WHOLE,
    PassageStream,
    Windows,
    held_out_samples,
    read_data,
    write_samples,
)
from floatscope.training.recipe import RECIPES, AdapterRecipe, TwinRecipe
from floatscope.training.trainer import CHECKPOINT, Listener, Trainer, make_folder, writing
from floatscope.training.world_stream import WorldStream, lessons_of

READ_OUT = 20  # held-out questions in a read-out


def train(
    twin: str,
    out: Path,
    parent: Path | None = None,
    recipe: TwinRecipe | None = None,
    seed: int = 0,
    shape: TwinShape | None = None,
    save_every: int = 100,
    stop_after: int | None = None,
    progress: Listener | None = None,
) -> Path:
    """Train one twin into the folder `out` and return it; a folder with a checkpoint is taken up where it stopped.

    `parent` is the folder of the trained parent for arm, dream and llada (default: the one that ships).
    `out` gets checkpoint.pt, log.jsonl and, at the end, the model in its dialect. `stop_after` ends early, resumable.
    """
    if twin not in RECIPES:
        raise UserError(f"Unknown twin {twin!r}; floatscope trains {', '.join(RECIPES)}.")
    if twin == "parent" and parent is not None:
        raise UserError(f"The parent has no parent: leave out {parent}, or train arm, dream or llada from it.")
    recipe = recipe or RECIPES[twin]
    tokenizer = make_tokenizer()
    if twin == "parent":
        backbone: Any = make_model(tokenizer, seed, shape or TwinShape())
    else:
        folder = parent or shipped()["twin-parent"]
        config = folder / "config.json"
        if not config.exists() or read_json(config).get("model_type") != "llama":
            raise UserError(
                f"{folder} holds no trained parent; train one with twin 'parent' first, or name its folder."
            )
        backbone = load(folder, dtype="float32", device="cpu", check=False).backbone
    stream = WorldStream(World(0), tokenizer, lessons_of(twin, recipe), seed, recipe.batch)
    trainer = Trainer(TwinLearner(backbone, twin, tokenizer), stream, recipe, seed, out, {"twin": twin})
    trainer.run(50, save_every, stop_after, progress)
    return out


def adapt(
    parent: str | Path,
    to: str,
    files: Sequence[str | Path],
    out: Path,
    recipe: AdapterRecipe | None = None,
    seed: int = 0,
    device: str | None = None,
    stop_after: int | None = None,
    progress: Listener | None = None,
    merge: bool = False,
) -> Path:
    """Train one fork of `parent` into the folder `out` and return it; with a checkpoint there, go on where it stopped.

    parent: anything `floatscope.load` knows that is an ARM.
    to: "arm", "dream" or "llada".
    files: questions with answers and gold passages, in any shape that `read_samples` knows.
    stop_after: end early, resumable, without the adapter's files.
    merge: also write the whole model, in out/merged.
    """
    recipe = recipe or AdapterRecipe()
    learner = AdapterLearner(parent, to, recipe.rank, seed, device)
    windows = Windows(learner.tokenizer, recipe.window)
    data = read_data(files, recipe.held_out, windows)
    held_out = held_out_samples(data, windows)
    stream = PassageStream(data, windows, learner.tokenizer, seed, recipe)
    about = {"to": to, "parent": str(parent), "parent_sha256": learner.parent_sha256, "data": data.files}
    trainer = Trainer(learner, stream, recipe, seed, out, {**about, "mask_id": learner.mask_id})
    with writing(out):
        write_samples(held_out, out / HELD_OUT)

    def read_held_out() -> dict[str, Any]:
        with learner.as_model() as model:
            return {"read_out": read_out(model, held_out[:READ_OUT]), "n": len(held_out[:READ_OUT])}

    if trainer.run(5, 25, stop_after, progress, read_held_out) and merge:
        with writing(out):
            write_merged(out)
    return out


def split_only(parent: str | Path, files: Sequence[str | Path], out: Path, recipe: AdapterRecipe) -> int:
    """Write the out/held_out.jsonl of `adapt` without any training, and return how many questions it has.

    Beside it, out/passages.jsonl has their gold passages whole: texts to continue that no fork was trained on.
    """
    if (out / CHECKPOINT).exists():
        raise UserError(f"{out} holds a fork, whose own held-out questions are there: choose another folder.")
    windows = Windows(parent_tokenizer(load(parent, check=False)), recipe.window)
    data = read_data(files, recipe.held_out, windows)
    make_folder(out)
    with writing(out):
        write_samples(held_out_samples(data, windows), out / HELD_OUT)
        write_samples(data.held_out, out / WHOLE)
    return len(data.held_out)
