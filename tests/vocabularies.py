"""
Tokenizers of real model families for the tests that ask for them, which are skipped where there is
no network.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from stepspec.evals.testbed.servers import MODELS

from .vocabulary_packages import VOCABULARIES, VocabularyUnavailable, tokenizer_file

CACHE = Path(__file__).parent.parent / "build" / "vocabularies"
MINIATURE = "miniature"  # the testbed's own vocabulary, which is always there
FAMILIES = (MINIATURE, *VOCABULARIES)


def real_vocabulary(family: str) -> Path:
    """
    Return the ``tokenizer.json`` of *family*; skip the test if it cannot be downloaded, which is an
    error in CI.
    """
    path = _file(family)
    if isinstance(path, Path):
        return path
    if os.environ.get("CI") == "true":
        raise path
    pytest.skip(str(path))


@cache
def real_tokenizer(family: str) -> Tokenizer:
    """Load the tokenizer of *family*, once; skip the test as `real_vocabulary` does."""
    return Tokenizer.from_file(str(real_vocabulary(family)))


@cache
def token_texts(family: str) -> dict[int, str]:
    """
    The texts of the tokens of *family*, each by itself, without added tokens, which are no text.
    """
    tokenizer = real_tokenizer(family)
    added = tokenizer.get_added_tokens_decoder()
    ids = [number for number in range(tokenizer.get_vocab_size()) if number not in added]
    texts = tokenizer.decode_batch([[number] for number in ids], skip_special_tokens=False)
    return dict(zip(ids, texts, strict=True))


@cache
def _file(family: str) -> Path | VocabularyUnavailable:
    """Download once: after a network error the next test does not try again."""
    if family == MINIATURE:
        return MODELS / "small" / "tokenizer.json"
    try:
        return tokenizer_file(family, CACHE)
    except VocabularyUnavailable as exc:
        return exc
