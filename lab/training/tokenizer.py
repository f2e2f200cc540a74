"""
Train the tokenizers of the miniature models: byte-level BPE, from the problems and the project's
own prompts.

There are two vocabularies: "plain" splits a number into digits, "grouped" into groups of two
digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from stepspec.evals.benchmarks import miniature as problems
from stepspec.prompts import load

from ..worlds.short import CORRECTION

Numbers: TypeAlias = Literal["plain", "grouped"]

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
END_OF_TEXT = "<|endoftext|>"
TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"
THINK = "<think>"
THINK_END = "</think>"
SPECIAL = (END_OF_TEXT, TURN, END_OF_TURN, THINK, THINK_END)
SYSTEM = (
    "You are a careful assistant.",
    "Think step by step.",
    "You are a helpful assistant. Answer in a box.",
)
SAME = "lookahead-reasoning.same"
JUDGES = ("specreason.grade", "check", SAME)
REFLECTION = "reflective.reflect"
DIGITS: dict[Numbers, str] = {"plain": r" ?\p{N}", "grouped": r" ?\p{N}{1,2}"}
WORDS = r"| ?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SIZES: dict[Numbers, int] = {"plain": 704, "grouped": 960}


def train(numbers: Numbers, *, seed: int = 0) -> PreTrainedTokenizerFast:
    """Train a tokenizer on 4,000 worked problems and the prompts of the policies."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(DIGITS[numbers] + WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZES[numbers],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[*SPECIAL],
        show_progress=False,
    )
    bpe.train_from_iterator(_corpus(seed), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def _corpus(seed: int) -> Iterator[str]:
    for problem in islice(problems.generate(seed, "train"), 4000):
        yield problem.text
        yield from (
            paragraph.removesuffix(THINK_END) for paragraph in problems.worked_steps(problem)
        )
        yield problems.final_answer(problem.answer)
    yield from _words()


def _words() -> Iterator[str]:
    """Yield the words of the policies' prompts and of the chat template."""
    prompts = [load(name) for name in (*JUDGES, REFLECTION)]
    for _ in range(2000):
        yield from (f"{prompt.text}\n{prompt.opening}" for prompt in prompts)
        yield from ("system\n" + words for words in SYSTEM)
        yield from ("user\n", "assistant\n", CORRECTION, "Yes", "No", "\n\n")
