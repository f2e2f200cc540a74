"""
Train the miniature models with fixed recipes.

All models learn to solve. The large model then also learns to judge, with an auxiliary head below
the last layers that marks wrong tokens; the judge's token can copy these marks. The head is dropped
afterwards. The training of the small models stops early, as soon as they solve about two problems
in three.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from ..worlds.short import DEFAULT, SMALL_NUMBERS, Difficulty, generate
from .data import (
    DEFAULT_MISTAKES,
    IGNORED,
    PADDING,
    TRUNK,
    Batch,
    Mistake,
    MistakeRate,
    Writer,
    batches,
    first_mistake,
)
from .inference import solve
from .model_card import LoadedModel
from .tokenizer import END_OF_TEXT, END_OF_TURN, Numbers
from .tokenizer import train as train_tokenizer

Log = Callable[[str], None]
Pools = Callable[[int, tuple[Difficulty, ...]], Sequence[Mistake]]


@dataclass(frozen=True, slots=True)
class Phase:
    """
    A phase of *steps* steps of AdamW with a peak learning *rate*, warm-up and cosine decay;
    *branches* teach judging.

    A batch has *rows* rows of at most *length* tokens. *mistaken* is the share of rows about a
    mistake that a small model made on one of *pool* problems. All problems are of the
    *difficulties* in turn. With *until*, the phase ends at the first greedy accuracy of at least
    *until* on problems of the test split, measured every few steps.
    """

    steps: int
    rate: float
    rows: int = 32
    length: int = 224
    branches: int = 0
    mistake_rate: MistakeRate = DEFAULT_MISTAKES
    mistaken: float = 0.0
    pool: int = 2400
    until: float | None = None
    difficulties: tuple[Difficulty, ...] = (DEFAULT,)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The architecture of one model and its training phases."""

    name: str
    numbers: Numbers
    width: int
    layers: int
    heads: int
    phases: tuple[Phase, ...]
    seed: int = 0

    @property
    def judges(self) -> bool:
        return any(phase.branches for phase in self.phases)


SUMS = MistakeRate(rate=0.5, sums=0.85)
LARGE_PHASES = (
    Phase(700, 2e-3),  # to solve
    Phase(600, 1.5e-3),
    # To separate wrong results from right ones, the hardest part: five times as many of them for
    # the same cost.
    Phase(
        1800,
        1.2e-3,
        rows=24,
        length=304,
        mistake_rate=MistakeRate(rate=0.5, sums=0.75),
        mistaken=0.3,
    ),
    # to answer the judge's questions
    Phase(800, 6e-4, rows=16, length=544, branches=4, mistaken=0.25),
    # Both again, with more of the small models' own mistakes: nearly all of these are sums that are
    # wrong by one.
    Phase(900, 1e-3, rows=24, length=304, mistake_rate=SUMS, mistaken=0.5, pool=6000),
    Phase(500, 6e-4, rows=16, length=544, branches=4, mistaken=0.4, pool=6000),
    # And with more small sums: mistakes such as 2 + 3 = 6 were still accepted.
    Phase(
        1000,
        1e-3,
        rows=24,
        length=304,
        mistake_rate=SUMS,
        mistaken=0.5,
        pool=6000,
        difficulties=(DEFAULT, SMALL_NUMBERS),
    ),
    Phase(
        600,
        6e-4,
        rows=16,
        length=544,
        branches=4,
        mistaken=0.4,
        pool=6000,
        difficulties=(DEFAULT, SMALL_NUMBERS),
    ),
)


ENOUGH = 0.62
LITTLE = 0.3
RECIPES = (
    Recipe("tiny", "plain", width=48, layers=2, heads=2, phases=(Phase(1400, 4e-3, until=LITTLE),)),
    Recipe(
        "small", "plain", width=64, layers=2, heads=2, phases=(Phase(1000, 3e-3, until=ENOUGH),)
    ),
    Recipe(
        "small-other",
        "grouped",
        width=64,
        layers=2,
        heads=2,
        phases=(Phase(1200, 3e-3, until=ENOUGH),),
    ),
    Recipe("large", "plain", width=128, layers=6, heads=4, phases=LARGE_PHASES),
)
MISTAKE_MODELS = ("small", "small-other")  # the large model learns from their mistakes
MARK_WEIGHT = 2.0
WRONG_WEIGHT = 3.0
WARMUP = 100
# share of a phase's steps, and steps; for phases with *until*
EVALUATE_FROM = 0.4
EVALUATE_EVERY = 10


def build(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    end, padding = (int(tokenizer.vocab[token]) for token in (END_OF_TURN, END_OF_TEXT))
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 16) * 16,
        hidden_size=recipe.width,
        intermediate_size=3 * recipe.width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=max(1, recipe.heads // 2),
        head_dim=32,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        eos_token_id=end,
        pad_token_id=padding,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


class Marker(nn.Module):
    """The auxiliary head: classifies tokens as wrong or right from a layer below the top."""

    def __init__(self, model: Qwen3ForCausalLM) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(model.config.hidden_size)
        self.out = nn.Linear(model.config.hidden_size, 2)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.out(self.norm(hidden))


def visible(branch: Tensor, leaves: Tensor) -> Tensor:
    """
    Return the attention mask, of shape (rows, 1, length, length): 0 if a token may attend to
    another, else -1e9.
    """
    length = branch.shape[1]
    place = torch.arange(length)
    earlier = place[None, :, None] >= place[None, None, :]
    same = branch[:, :, None] == branch[:, None, :]
    stem = (branch[:, None, :] == TRUNK) & (place[None, None, :] < leaves[:, :, None])
    allowed = earlier & (same | stem)
    return torch.zeros(allowed.shape).masked_fill(~allowed, -1e9)[:, None]


def losses(
    model: Qwen3ForCausalLM, marker: Marker, ids: Tensor, positions: Tensor, mask: Tensor | None, targets: Tensor,
    verdicts: Tensor, wrong: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the mean losses in nats: language model, verdicts, marks."""
    out = model.model(
        input_ids=ids,
        attention_mask={"full_attention": mask},
        position_ids=positions,
        use_cache=False,
        output_hidden_states=True,
    )
    logits = model.lm_head(out.last_hidden_state).float().flatten(0, 1)
    marks = marker(out.hidden_states[-3]).float().flatten(0, 1)
    balance = torch.tensor([1.0, WRONG_WEIGHT])
    return (
        nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED),
        nn.functional.cross_entropy(logits, verdicts.flatten(), ignore_index=IGNORED),
        nn.functional.cross_entropy(marks, wrong.flatten(), balance, ignore_index=IGNORED),
    )


class Trainer:
    """Trains one model."""

    def __init__(self, recipe: Recipe, folder: Path, log: Log) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.folder = folder
        self.log = log
        self.tokenizer = train_tokenizer(recipe.numbers)
        self.writer = Writer(self.tokenizer)
        self.model = build(recipe, self.tokenizer)
        self.marker = Marker(self.model)
        self.losses = torch.compile(losses, dynamic=False)

    def learn(self, mistakes: Pools, done: Path | None = None) -> None:
        """
        Train all phases; *mistakes* is called for phases with a share of mistakes.

        The state after each phase is saved in the file *done*, and a later run continues after that
        phase.
        """
        first = self.resume(done) if done is not None else 0
        for number, phase in enumerate(self.recipe.phases[first:], start=first):
            self.train_phase(phase, self.source(number, phase, mistakes))
            if done is not None:
                done.parent.mkdir(parents=True, exist_ok=True)
                torch.save((repr(self.recipe.phases[: number + 1]), self.state()), done)

    def source(self, number: int, phase: Phase, mistakes: Pools) -> Iterator[Batch]:
        seed = self.recipe.seed + number
        return batches(
            Writer(self.tokenizer, phase.mistake_rate),
            seed=seed,
            rows=phase.rows,
            length=phase.length,
            branches=phase.branches,
            mistakes=mistakes(phase.pool, phase.difficulties) if phase.mistaken else (),
            mistaken=phase.mistaken,
            difficulties=phase.difficulties,
        )

    def state(self) -> tuple[object, object]:
        return self.model.state_dict(), self.marker.state_dict()

    def load(self, state: tuple[Any, Any]) -> None:
        self.model.load_state_dict(state[0])
        self.marker.load_state_dict(state[1])

    def resume(self, done: Path) -> int:
        """
        Load the state of an earlier run; return the number of its phases, 0 if it had another
        recipe.
        """
        if not done.exists():
            return 0
        phases, (model, marker) = torch.load(done)
        for count in range(len(self.recipe.phases) + 1):
            if repr(self.recipe.phases[:count]) == phases:
                self.load((model, marker))
                self.log(
                    f"{self.recipe.name} continues after phase {count} of {len(self.recipe.phases)}"
                )
                return count
        return 0

    def train_phase(self, phase: Phase, source: Iterator[Batch]) -> None:
        """Train one *phase* on the batches of *source*."""
        steps = phase.steps
        rate = phase.rate
        parameters = [*self.model.parameters(), *self.marker.parameters()]
        optimiser = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser,
            lambda n: (
                min(1.0, (n + 1) / WARMUP)
                * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * n / steps)))
            ),
        )
        start = time.monotonic()
        sums = torch.zeros(3)
        tokens_read = 0
        self.model.train()
        for step, batch in zip(range(1, steps + 1), source, strict=False):
            tokens_read += batch.ids.size
            parts = self.loss(batch)
            weights = (1.0, float(phase.branches > 0), MARK_WEIGHT * self.recipe.judges)
            loss = sum(weight * part for weight, part in zip(weights, parts, strict=True) if weight)
            assert isinstance(loss, Tensor)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
            sums += torch.stack([part.detach().nan_to_num() for part in parts])
            if step % 50 == 0 or step == steps:
                mean = sums / (step % 50 or 50)
                sums.zero_()
                seconds = time.monotonic() - start
                self.log(
                    f"{self.recipe.name} {step}/{steps} language {mean[0]:.4f} verdict"
                    f" {mean[1]:.4f} marks {mean[2]:.4f} {seconds:.0f} s,"
                    f" {seconds / step * (steps - step):.0f} s left, {tokens_read / seconds:,.0f}"
                    " tokens/s"
                )
            if phase.until is not None:
                due = step >= EVALUATE_FROM * steps and step % EVALUATE_EVERY == 0
                if due and self.evaluate(250) >= phase.until:
                    return
            elif step % 200 == 0:
                self.evaluate()
        if phase.until is not None:
            raise RuntimeError(
                f"{self.recipe.name} did not reach {phase.until:.0%} in {steps} steps: its phase"
                " needs more steps"
            )

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        branch = torch.from_numpy(batch.branch)
        leaves = torch.from_numpy(batch.leaves)
        mask = visible(branch, leaves).bfloat16()
        # The softmax of a row of padding would be undefined.
        mask[..., 0].masked_fill_((branch == PADDING)[:, None], 0)
        tensors = [torch.from_numpy(a) for a in (batch.targets, batch.verdicts, batch.wrong)]
        with torch.autocast("cpu", torch.bfloat16):
            ids = torch.from_numpy(batch.ids)
            positions = torch.from_numpy(batch.positions)
            return self.losses(self.model, self.marker, ids, positions, mask, *tensors)

    def evaluate(self, count: int = 100) -> float:
        """Return the greedy accuracy on *count* problems of the test split."""
        source = generate(1234, "test")
        problems = [next(source) for _ in range(count)]
        answers = solve(self.model, self.writer, problems)
        accuracy = sum(a.correct for a in answers) / count
        self.log(f"{self.recipe.name} solves {accuracy:.1%} of {count}")
        return accuracy


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write *model*, in half precision, and its *tokenizer* to *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    half = copy.deepcopy(model)
    nn.Module.to(half, torch.float16)
    half.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def mistakes_of(
    model: Qwen3ForCausalLM,
    writer: Writer,
    count: int,
    difficulty: Difficulty = DEFAULT,
    seed: int = 77,
) -> list[Mistake]:
    """
    Let a model solve *count* training problems, greedily and by sampling, and collect its first
    wrong steps.
    """
    source = generate(seed, "train", difficulty)
    mistakes: list[Mistake] = []
    for temperature in (0.0, 0.8):
        problems = [next(source) for _ in range(count // 2)]
        for solution in solve(model, writer, problems, temperature=temperature, seed=seed):
            mistake = first_mistake(solution.problem, solution.reasoning)
            if mistake is not None:
                mistakes.append(mistake)
    return mistakes


def train_all(
    folder: Path, work: Path, log: Log, *, only: str | None = None, threads: int = 2
) -> None:
    """
    Train every model, or *only* one, and write each to its own subfolder of *folder*.

    The small models come first: the large one learns from their mistakes. The folder *work* has the
    finished phases.
    """
    torch.set_num_threads(threads)
    for recipe in RECIPES:
        if only in (None, recipe.name):
            trainer = Trainer(recipe, folder / recipe.name, log)
            trainer.learn(cache(partial(_small_mistakes, folder)), work / f"{recipe.name}.pt")
            save(trainer.model, trainer.tokenizer, folder / recipe.name)


def _small_mistakes(folder: Path, pool: int, difficulties: tuple[Difficulty, ...]) -> list[Mistake]:
    """
    Return the mistakes of all small models: a judge trained on those of one misses those of
    another.
    """
    models = [LoadedModel.of(name, folder) for name in MISTAKE_MODELS]
    count = pool // len(difficulties)
    return [
        mistake
        for model in models
        for difficulty in difficulties
        for mistake in mistakes_of(model.model, model.writer, count, difficulty)
    ]
