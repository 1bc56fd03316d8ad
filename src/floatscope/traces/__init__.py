"""What was captured for one sample under one model: `Trace`, its file, and the import of reference files."""

from floatscope.traces.reference import import_reference
from floatscope.traces.trace import AXES, Trace

__all__ = ["AXES", "Trace", "import_reference"]
