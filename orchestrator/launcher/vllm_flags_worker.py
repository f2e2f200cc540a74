"""
Read command lines by vLLM's own parser: they come in as JSON by their names; what it says against each goes out.

A script for a process of its own, for importing vLLM takes seconds and changes much. What it prints is its last line,
as vLLM may print others: an object with the ``flags`` that there are, and the ``refusals`` by name.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    parser = make_arg_parser(FlexibleArgumentParser())
    flags = sorted({flag.lstrip("-") for action in parser._actions for flag in action.option_strings})
    refusals = {name: refusal(parser, line) for name, line in json.load(sys.stdin).items()}
    print(f"\n{json.dumps({'flags': flags, 'refusals': refusals})}")


def refusal(parser: FlexibleArgumentParser, line: list[str]) -> str:
    """Return what the parser has against *line*; nothing if it takes it."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            if parsed := parser.parse_args(line):
                validate_parsed_serve_args(parsed)
    except SystemExit:
        return said.getvalue().strip().rpartition("error: ")[2] or "it would end at once"
    except Exception as exc:  # the checks that vLLM makes itself end in any kind
        return str(exc).removeprefix("Error: ") or repr(exc)
    return ""


if __name__ == "__main__":
    main()
