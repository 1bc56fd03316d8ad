"""The models that come with the package: a folder each beside this file, a twin's checkpoint or a fork's adapter."""

from pathlib import Path

FOLDER = Path(__file__).parent
UNTRAINED = "untrained"
"""The control of a model: "NAME-untrained" is a shipped model, or a folder with an adapter, before its training."""


def shipped() -> dict[str, Path]:
    """The folder of each shipped model by its name; to ship another one is to put its folder here."""
    return {file.parent.name: file.parent for file in sorted(FOLDER.glob("*/*model.safetensors"))}
