"""The full-matrix models of tests/traces serve the figures too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "traces"))
