"""Question answering: samples and prompts with regions. What a model does with them is left to others."""

from floatscope.qa import world

__all__ = ["world"]
