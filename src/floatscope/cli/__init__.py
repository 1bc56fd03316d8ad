"""The command line: verbs that each call one function of the library. Heavy imports wait until a verb runs."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from cyclopts import App, CycloptsError, Parameter, Token, convert

from floatscope import __version__
from floatscope.cli.analyzing import analyze, view
from floatscope.cli.evaluation import compare, evaluate, failures, table
from floatscope.cli.explaining import explain
from floatscope.cli.loaded import check, families, serve, trace
from floatscope.cli.shared import one_line
from floatscope.cli.studies import merge, push, report, study, submit
from floatscope.cli.training import adapt, pull, train
from floatscope.errors import UserError, plain_warnings


def strictly(kind: Any, tokens: Sequence[Token]) -> Any:
    """As cyclopts converts, but 1.5 is no whole number (it rounds it) and "" no path (it takes this folder for it)."""
    if int in (kind, *get_args(kind)) and float not in get_args(kind) and any("." in token.value for token in tokens):
        raise ValueError("a whole number is needed")
    if Path in (kind, *get_args(kind)) and not all(token.value for token in tokens):
        raise ValueError("it is empty, and a path is needed")
    return convert(kind, tokens)


app = App(
    name="floatscope",
    default_parameter=Parameter(converter=strictly),
    version=__version__,
    help="Where attention goes while a masked diffusion language model denoises, and what that does to its answers.",
    help_epilogue="Start with: floatscope study demo; floatscope serve; floatscope trace MODEL --question 'Who ...?'",
    suppress_keyboard_interrupt=False,
)
VERBS = (study, submit, merge, report, serve, evaluate, table, compare, failures, trace, view, explain, analyze, check)
for verb in (*VERBS, families, train, pull, push, adapt):
    # By its name: a verb's flags are made when it is called, since they may come from registries.
    app.command(f"{verb.__module__}:{verb.__name__}", help=verb.__doc__)
app.command(
    "floatscope.cli.stressing:stress",
    help="""Make question answering harder step by step, beside closed-book, oracle and guess baselines.

    Example: floatscope stress --model twin-arm --model twin-llada --task world --position all --documents 5 --length 8 --out runs/stress
    """,  # noqa: E501  an example must stay on one line to be copied
)
app.command(
    "floatscope.cli.stressing:intervene",
    help="""Change attention while models answer, and see what the answers do, beside control edits of the same size.

    Example: floatscope intervene --model twin-arm --model twin-llada --task world --do "block anchors(1,3,5)" --length 8 --out runs/edits
    """,  # noqa: E501  an example must stay on one line to be copied
)


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    plain_warnings()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a batch system takes the machine away: as Ctrl-C
    try:
        code = app(sys.argv[1:], exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except (UserError, CycloptsError) as error:
        print(f"floatscope: {one_line(str(error))}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("floatscope: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # a path that the system does not take, a disk that is full
        print(one_line(f"floatscope: {error.filename or 'the output'}: {error.strerror}.")[:500], file=sys.stderr)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)
