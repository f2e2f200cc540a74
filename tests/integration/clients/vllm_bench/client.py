"""
Runs ``vllm bench serve`` as vLLM's own command does.

The command itself cannot start where vLLM is its CPU build: it asks for the version of a package
called ``vllm``.
"""

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args())
