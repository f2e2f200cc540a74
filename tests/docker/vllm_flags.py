"""
Parse command lines with vLLM's own parser: a JSON object of them on standard input, the refusals on
standard output.

Importing vLLM takes seconds and changes global state. vLLM may print other lines; the result is the
last one: an object with a refusal by name, empty if the parser accepts the line.
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
    refusals = {name: refusal(parser, line) for name, line in json.load(sys.stdin).items()}
    print(f"\n{json.dumps(refusals)}")


def refusal(parser: FlexibleArgumentParser, line: list[str]) -> str:
    """Return why the parser refuses *line*; empty if it accepts it."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            if options := parser.parse_args(line):
                validate_parsed_serve_args(options)
    except SystemExit:
        return printed.getvalue().strip().rpartition("error: ")[2] or "it would end at once"
    except Exception as exc:  # vLLM's own checks raise exceptions of any type.
        return str(exc).removeprefix("Error: ") or repr(exc)
    return ""


if __name__ == "__main__":
    main()
