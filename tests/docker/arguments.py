"""
Read command lines by vLLM's own parser: they come in as JSON by their names, and what it says against them goes out.

In a process of its own, because importing vLLM takes long and changes much.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser


def refusal(parser: FlexibleArgumentParser, arguments: list[str]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            parser.parse_args(arguments)
        except SystemExit:
            return said.getvalue().strip().splitlines()[-1]
    return ""


def main() -> None:
    parser = make_arg_parser(FlexibleArgumentParser())
    json.dump({name: refusal(parser, given) for name, given in json.load(sys.stdin).items()}, sys.stdout)


if __name__ == "__main__":
    main()
