# pyright: basic, reportMissingImports=false
"""
vLLM's `serve` with several API processes for one engine, without its command line's other imports.
"""

from typing import Any

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser

try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:  # up to 0.26 at least
    from vllm.entrypoints.openai.cli_args import make_arg_parser


def main() -> None:
    arguments: Any = make_arg_parser(FlexibleArgumentParser()).parse_args()
    ServeSubcommand.cmd(arguments)


if __name__ == "__main__":
    main()
