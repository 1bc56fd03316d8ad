"""The harness's own command line, with our model registered: python -m floatscope.lm_eval run --model floatscope ..."""

import sys
from importlib import import_module

from floatscope.errors import UserError

try:
    import_module("floatscope.lm_eval")  # registers the model, or says what to install
    import_module("lm_eval.__main__").cli_evaluate()
except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
