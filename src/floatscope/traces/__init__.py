"""What was captured for one sample under one model: `Trace`, its file, and the import of reference files."""

from floatscope.traces.arrays import ARRAYS, TraceArray, kept_arrays
from floatscope.traces.reference import import_reference
from floatscope.traces.trace import Trace

__all__ = ["ARRAYS", "Trace", "TraceArray", "import_reference", "kept_arrays"]
