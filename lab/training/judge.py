"""
Teach a model that solves the long problems to judge steps, without changing how it solves them.

`Judge` puts three layers on top of a trained model, and dimensions of their own, the workspace, beside its own ones:

1. The first layer predicts. Its MLP writes the code of the token that the model would write next.
2. The second layer compares. Its first head copies the code that was predicted at the token before. Its MLP compares it
   with the code of the token that is there, and marks the token as wrong where they differ.
3. The third layer collects. Its first head attends to the token with the highest mark nearby. Its MLP writes the grade,
   and clears the workspace where no grade is requested: the last norm would make the likelihoods flatter.

All begin as these circuits, and each MLP is trained alone, on activations that are computed once: that takes minutes
on two cores. With all weights trained together, from random layers, a model of this size did not learn to judge within
an hour, and solved less and less meanwhile.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from stepspec.prompts import load

from ..worlds import accounts
from .data import (
    IGNORED,
    PADDING,
    TRUNK,
    Batch,
    Mistake,
    MistakeRate,
    Problem,
    Row,
    State,
    Writer,
    long_batches,
    world_of,
)
from .model_card import LoadedModel
from .train import SOLVER, Log, look_back, save, visible

WORKSPACE = 112  # dimensions
CODE = 34  # dimensions of the code of a token
SCALE = 0.1  # of what is written into the workspace: small beside the model's own numbers, whose norm it changes
NEAR = range(8, 12)  # pairs of a head's dimensions that turn little over a step and its question, and much over a chain
STILL = 20  # pairs from this one on hardly turn at all over a chain
QUESTIONS, WEIGHTS = ("specreason.grade", "check"), (10, 3)
RIGHT_ONE, WRONG_ONE, GIVEN, ASKED = 0, 1, 2, 3  # kinds of tokens: of a step, of the problem, of a question
WRONG = 0.75  # share of wrong drafts where marks are learnt, and half of them where grades are
KEPT = {RIGHT_ONE: 0.3, WRONG_ONE: 1.0, GIVEN: 0.6, ASKED: 1.0}  # share of the tokens on which marks are learnt
LENGTHS = [accounts.Difficulty(steps=steps) for steps in ((2, 8), (8, 30), (30, 75))]
JUDGES = {"large": 2000, "judge-90": 30, "judge-75": 13}  # the steps in which each judge learns to mark wrong tokens
PREDICTED = 2500  # steps of learning to predict
GRADED = 1000  # steps of learning to grade
LOUD, OUT_OF_PLACE = 0.3, 300.0  # weights of the size of marks, and of what is left where no grade is requested
ERASED = 0.6  # share of a mark that is erased at first; more where the model's own numbers are small


class DraftWriter(Writer):
    """
    Writes rows whose branches are drafts, right or wrong, each with one of the judge's questions.

    Without *questions*, a wrong draft ends with its first wrong token, for more of them at the same cost.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, questions: bool) -> None:
        super().__init__(tokenizer, MistakeRate(0.0))
        self.questions = questions

    def row(self, rng: random.Random, problem: Problem, branches: int, mistake: Mistake | None = None) -> Row:
        row = super().row(rng, problem, branches, mistake)
        row.wrong = [
            0 if mark == IGNORED and not branch else mark for mark, branch in zip(row.wrong, row.branch, strict=True)
        ]
        return row

    def marks(self, problem: Problem, state: State, step: str) -> list[int]:
        """Mark the first wrong token of *step*; those after it have no mark."""
        ids, want = self.encode(step), self.encode(world_of(problem).expected(problem, state))
        first = next((at for at, (id, right) in enumerate(zip(ids, want, strict=False)) if id != right), len(ids))
        return [0] * first + [1] * (first < len(ids)) + [IGNORED] * (len(ids) - first - 1)

    def question(self, kind: str) -> tuple[int, ...]:
        """The ids of a question, up to where the verdict begins."""
        return self.encode(self.template.ask(load(kind).text, load(kind).opening))

    def fork(
        self,
        rng: random.Random,
        row: Row,
        problem: Problem,
        fork: tuple[State, int, str],
        number: int,
        wrong: str | None,
    ) -> None:
        state, leaves, _ = fork
        mistaken = rng.random() < (WRONG / 2 if self.questions else WRONG)
        draft = (
            world_of(problem).corrupt(rng, problem, state, sums=0.3)
            if mistaken
            else world_of(problem).expected(problem, state)
        )
        ids, marks = self.encode(draft), self.marks(problem, state, draft)
        if mistaken and not self.questions:
            ids, marks = ids[: marks.index(1) + 1], marks[: marks.index(1) + 1]
        row.add(ids, branch=number, leaves=leaves, learn=False, wrong=marks)
        if (mistaken and not self.questions) or rng.random() < 0.6 * (not self.questions):
            return
        (kind,) = rng.choices(QUESTIONS, weights=WEIGHTS)
        question = self.question(kind)
        row.add(question, branch=number, leaves=leaves, learn=False, wrong=[ASKED] * len(question))
        grade = str(world_of(problem).grade(problem, state, draft))
        row.verdicts[-1] = self.encode(grade if kind != "check" else "No" if mistaken else "Yes")[0]


class Judge:
    """
    The layers that judge on top of *base*, a model that solves; *model* is all of it.

    The first layer learns to predict from so many *problems*.
    """

    def __init__(self, base: LoadedModel, log: Log, *, seed: int = 0, problems: int = 300) -> None:
        torch.manual_seed(seed)
        self.base, self.log, self.tokenizer = base, log, base.writer.tokenizer
        source = accounts.generate(5, "train", accounts.Difficulty(steps=(2, 75)))
        self.problems = list(islice(source, problems))
        self.width: int = base.model.config.hidden_size
        self.own = slice(self.width, self.width + CODE)
        self.constant = self.own.stop
        self.written = self.constant + 1  # 1 for a token that occurs in steps
        self.next = slice(self.written + 1, self.written + 1 + CODE)
        self.predicted = slice(self.next.stop, self.next.stop + CODE)
        self.mark = self.predicted.stop
        self.highest = self.mark + 1
        self.grades = slice(self.highest + 1, self.width + WORKSPACE)
        self.model = Qwen3ForCausalLM(self._config())
        self.network: Any = self.model.model
        self.first, self.second, self.third = self.network.layers[-3:]
        self.out = nn.Linear(self.width + WORKSPACE, 2)  # of the marks, as training sees them
        self.out_norm = nn.RMSNorm(self.width + WORKSPACE)
        with torch.no_grad():
            self._widen()
            self._predict()
            self._compare()

    def _config(self) -> Qwen3Config:
        config: dict[str, Any] = self.base.model.config.to_dict()
        config |= {"hidden_size": self.width + WORKSPACE, "num_hidden_layers": config["num_hidden_layers"] + 3}
        config |= {"layer_types": None, "tie_word_embeddings": False}
        return Qwen3Config(**config)

    def _widen(self) -> None:
        """Copy the weights of the base; its layers do not see the workspace, which begins with the tokens' codes."""
        base: Any = self.base.model.model
        narrow, inner = math.sqrt(self.width / (self.width + WORKSPACE)), slice(self.width)
        self.codes = nn.functional.normalize(torch.randn(self.model.config.vocab_size, CODE), dim=1)
        self.network.embed_tokens.weight.zero_()
        self.network.embed_tokens.weight[:, inner] = base.embed_tokens.weight
        self.network.embed_tokens.weight[:, self.own] = SCALE * self.codes
        self.network.embed_tokens.weight[:, self.constant] = SCALE
        steps = (step for problem in self.problems for step in accounts.worked_steps(problem))
        written = {id for step in steps for id in self.base.writer.encode(step)}
        self.network.embed_tokens.weight[list(written), self.written] = SCALE
        self.model.lm_head.weight.zero_()
        self.model.lm_head.weight[:, inner] = base.embed_tokens.weight
        for wide, layer in zip(self.network.layers, base.layers, strict=False):
            for name, weight in layer.named_parameters():
                target = wide.get_parameter(name)
                if name.endswith("layernorm.weight"):
                    weight = narrow * weight  # The norm is that of more dimensions, most of them nearly 0.
                else:
                    target.zero_()
                target[tuple(slice(size) for size in weight.shape)] = weight
        self.network.norm.weight.fill_(3)
        self.network.norm.weight[inner] = narrow * base.norm.weight

    def _predict(self) -> None:
        """Let the first layer write the code of the token that follows, as ridge regression finds it."""
        hidden, following = self.predictions
        normed = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6)
        solver = normed[:, : self.width]
        predicts = torch.linalg.solve(solver.T @ solver + 0.1 * torch.eye(self.width), solver.T @ self.codes[following])
        self.lift = 1 / float(normed[:, self.constant].mean())  # The constant is 1 in the layers' normalised inputs.
        for layer in (self.first, self.second, self.third):
            for norm in (layer.input_layernorm.weight, layer.post_attention_layernorm.weight):
                norm[self.width :] = self.lift
            nn.init.zeros_(layer.self_attn.o_proj.weight)
            nn.init.zeros_(layer.mlp.down_proj.weight)
        self.out_norm.weight[self.width :] = self.lift
        mlp = self.first.mlp
        for at in range(CODE):  # silu(x) - silu(-x) = x
            for unit, sign in ((at, 1), (CODE + at, -1)):
                mlp.gate_proj.weight[unit] = mlp.up_proj.weight[unit] = 0
                mlp.gate_proj.weight[unit, : self.width] = sign * predicts[:, at]
                mlp.up_proj.weight[unit, self.constant] = 1
                mlp.down_proj.weight[self.next.start + at, unit] = sign * SCALE

    def _compare(self) -> None:
        """Let the second layer copy the code of the predicted token, and multiply it with that of the token itself."""
        attention, mlp = self.second.self_attn, self.second.mlp
        look_back(self.model, attention, self.constant, sharpness=3.0)
        attention.v_proj.weight[:CODE] = 0
        attention.v_proj.weight[:CODE, self.next] = torch.eye(CODE)
        attention.o_proj.weight[self.predicted, :CODE] = SCALE * torch.eye(CODE)
        for weight in (mlp.gate_proj.weight, mlp.up_proj.weight):
            nn.init.normal_(weight, std=0.05)
            weight[: 2 * CODE] = 0
        for at in range(CODE):  # silu(x) y + silu(-x) (-y) = x y
            for unit, sign in ((at, 3), (CODE + at, -3)):
                mlp.gate_proj.weight[unit, self.own.start + at] = sign
                mlp.up_proj.weight[unit, self.predicted.start + at] = sign
                mlp.down_proj.weight[self.mark, unit] = SCALE

    @cached_property
    def predictions(self) -> tuple[Tensor, Tensor]:
        """The residual stream above the base wherever a worked step was to be written, and the token that followed."""
        writer = Writer(self.tokenizer, MistakeRate(0.0), marked=False, varied=False)
        hidden, following = list[Tensor](), list[Tensor]()
        for problem in self.problems:
            row = writer.row(random.Random(0), problem, 0)
            read = self.network(input_ids=torch.tensor([row.ids]), use_cache=False, output_hidden_states=True)
            targets = torch.tensor(row.targets)
            hidden.append(read.hidden_states[-4][0, targets != IGNORED])
            following.append(targets[targets != IGNORED])
        return torch.cat(hidden), torch.cat(following)

    def learn_to_predict(self) -> None:
        """Train the first layer's MLP."""
        hidden, following = self.predictions
        rows = torch.zeros(self.width + WORKSPACE, 1)
        rows[self.next] = 1
        self.first.mlp.down_proj.weight.register_hook(lambda gradient: gradient * rows)

        def loss() -> Tensor:
            (drawn,) = torch.randint(len(hidden), (1, 4096))
            code = self.first.mlp(self.first.post_attention_layernorm(hidden[drawn]))[:, self.next] / SCALE
            likely = nn.functional.cross_entropy(10 * code @ self.codes.T, following[drawn])
            return likely + 0.3 * (code - self.codes[following[drawn]]).pow(2).sum(-1).mean()

        learning = self.first.mlp, self.first.post_attention_layernorm
        self._train("predictions", loss, [weight for part in learning for weight in part.parameters()], PREDICTED, 2e-3)

    def learn(self, name: str) -> None:
        """Train the MLPs that compare and grade, the first for as many steps as the judge called *name* gets."""
        self._learn_marks(JUDGES[name])
        with torch.no_grad():
            self._collect()
        self._learn_grades()

    def _learn_marks(self, steps: int) -> None:
        """Train the second layer's MLP to mark wrong tokens."""
        values, kinds = self.marked
        wrong = (kinds == WRONG_ONE).long()
        places = [torch.nonzero(kinds == kind).flatten() for kind in (RIGHT_ONE, WRONG_ONE, GIVEN, ASKED)]
        allowed = (torch.arange(self.width + WORKSPACE) >= self.predicted.start)[:, None]  # else it would solve worse
        self.second.mlp.down_proj.weight.register_hook(lambda gradient: gradient * allowed)

        def loss() -> Tensor:
            drawn = _draw(places, (2048, 1024, 1024, 1536))
            stream = values[drawn]
            written = self.second.mlp(self.second.post_attention_layernorm(stream))
            marks = self.out(self.out_norm(stream + written))
            # Smoothed, so that no mark is much larger than others: the third layer takes the highest one nearby.
            return nn.functional.cross_entropy(marks, wrong[drawn], label_smoothing=0.02) + LOUD * self._size(written)

        learning = self.second.mlp, self.second.post_attention_layernorm, self.out, self.out_norm
        self._train("marks", loss, [weight for part in learning for weight in part.parameters()], steps, 1e-3)

    def _size(self, written: Tensor) -> Tensor:
        """How large the numbers are that are *written*, next to those of the base: the mean of the squares."""
        return written.pow(2).sum(-1).mean() * self.lift**2 * SCALE**2 / (self.width + WORKSPACE)

    def _collect(self) -> None:
        """Let the third layer attend to the highest mark nearby, and read it."""
        attention, norm = self.third.self_attn, self.third.input_layernorm.weight
        mark = (self.out.weight[1] - self.out.weight[0]) * self.out_norm.weight / norm
        mark[self.constant] += self.out.bias[1] - self.out.bias[0]
        half = self.model.config.head_dim // 2
        still = [dim for dim in range(2 * half) if dim % half >= STILL]
        query, key = attention.q_proj.weight, attention.k_proj.weight
        query[: 2 * half] = key[: 2 * half] = 0
        key[: 2 * half, self.constant] = 100  # far above all marks, so that the norm of a key does not depend on them
        key[still] = mark
        key[still, self.written] += 15  # above all marks: no other token is attended to
        query[still, self.constant] = 1
        attention.q_norm.weight[:] = attention.k_norm.weight[:] = 1
        attention.q_norm.weight[still] = attention.k_norm.weight[still] = 6.1  # two nats for each unit of a mark
        for pair in NEAR:
            query[pair, self.constant], key[pair + half, self.constant] = 1, 0
            attention.q_norm.weight[pair] = attention.k_norm.weight[pair] = 6.7  # up to 10 nats of each pair
        attention.v_proj.weight[: 2 * half] = 0
        attention.v_proj.weight[0] = mark
        attention.o_proj.weight[:] = 0
        attention.o_proj.weight[self.highest, 0] = SCALE
        gate, up = self.third.mlp.gate_proj.weight, self.third.mlp.up_proj.weight
        gate[:18] = up[:18] = 0
        gate[:16, self.highest] = torch.linspace(-2, 2, 16)
        up[:18, self.constant] = 1
        for unit, sign in ((16, 1), (17, -1)):  # silu(x) - silu(-x) = x
            gate[unit, self.mark] = sign
            self.third.mlp.down_proj.weight[self.mark, unit] = -sign * ERASED * SCALE

    def _learn_grades(self) -> None:
        """Train the third layer's MLP to write the grade where one is requested, and clear the workspace elsewhere."""
        stream, tokens, verdict, boxed = self.judged()
        places = [torch.nonzero(chosen).flatten() for chosen in (verdict, ~verdict & boxed, ~verdict)]
        words = torch.zeros(self.model.config.vocab_size, dtype=torch.bool)
        words[tokens[verdict]] = True
        columns = words[:, None] & (torch.arange(self.width + WORKSPACE) >= self.grades.start)
        with torch.no_grad():
            self.model.lm_head.weight += 0.1 * columns * torch.randn(columns.shape)
        self.model.lm_head.weight.register_hook(lambda gradient: gradient * columns)
        rows = (torch.arange(self.width + WORKSPACE) >= self.width)[:, None]
        self.third.mlp.down_proj.weight.register_hook(lambda gradient: gradient * rows)

        def loss() -> Tensor:
            drawn = _draw(places, (256, 128, 896))
            read = stream[drawn]
            written = self.third.mlp(self.third.post_attention_layernorm(read))
            logits = self.model.lm_head(self.network.norm(read + written))
            left = (read + written)[:, self.width :]
            losses = nn.functional.cross_entropy(logits, tokens[drawn], reduction="none")
            return losses[:256].mean() + 3 * losses[256:].mean() + OUT_OF_PLACE * self._size(left[256:])

        learning = self.third.mlp, self.third.post_attention_layernorm, self.model.lm_head
        self._train("grades", loss, [weight for part in learning for weight in part.parameters()], GRADED, 2e-3)

    @cached_property
    def marked(self) -> tuple[Tensor, Tensor]:
        """The residual stream before the MLP that marks, and the kind of each token."""
        kept = list[tuple[Tensor, Tensor]]()
        for batch, stream in self._streams(self.second, DraftWriter(self.tokenizer, questions=False), 3, 200, 40):
            kinds, branch = torch.from_numpy(batch.wrong), torch.from_numpy(batch.branch)
            kinds = torch.where((branch == TRUNK) & (torch.from_numpy(batch.targets) == IGNORED), GIVEN, kinds)
            here = torch.zeros_like(kinds, dtype=torch.bool)
            for kind, share in KEPT.items():
                here |= (kinds == kind) & (torch.rand(kinds.shape) < share)
            kept.append((stream[here], kinds[here]))
        streams, kinds = zip(*kept, strict=True)
        return torch.cat(streams), torch.cat(kinds)

    def judged(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """
        The residual stream before the MLP that grades, the token to write there, whether it is a verdict, and whether
        it follows what verdicts follow, as the answer to the problem does.
        """
        kept = list[tuple[Tensor, Tensor, Tensor, Tensor]]()
        writer = DraftWriter(self.tokenizer, questions=True)
        openings = torch.tensor([writer.question(kind)[-1] for kind in QUESTIONS])
        drafts, answers = self._streams(self.third, writer, 11, 110, 16), self._streams(self.third, writer, 12, 60, 0)
        for batch, stream in chain(drafts, answers):
            verdicts, targets = torch.from_numpy(batch.verdicts), torch.from_numpy(batch.targets)
            verdict = verdicts != IGNORED
            here, ids = verdict | (targets != IGNORED), torch.from_numpy(batch.ids)
            boxed = torch.isin(ids, openings)
            kept.append((stream[here], torch.where(verdict, verdicts, targets)[here], verdict[here], boxed[here]))
        streams, tokens, verdict, boxed = zip(*kept, strict=True)
        return torch.cat(streams), torch.cat(tokens), torch.cat(verdict), torch.cat(boxed)

    def _streams(
        self, layer: Any, writer: Writer, seed: int, count: int, branches: int
    ) -> Iterator[tuple[Batch, Tensor]]:
        """Yield *count* batches, each with the residual stream before the MLP of *layer*."""
        seen = list[Tensor]()
        hook = layer.post_attention_layernorm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        source = long_batches(writer, seed=seed, tokens=6000, branches=branches, difficulties=LENGTHS)
        for number, batch in enumerate(islice(source, count), start=1):
            branch, leaves = torch.from_numpy(batch.branch), torch.from_numpy(batch.leaves)
            mask = visible(branch, leaves)
            mask[..., 0].masked_fill_((branch == PADDING)[:, None], 0)
            with torch.no_grad():
                self.network(
                    input_ids=torch.from_numpy(batch.ids),
                    attention_mask={"full_attention": mask},
                    position_ids=torch.from_numpy(batch.positions),
                    use_cache=False,
                )
            yield batch, seen.pop()
            if number % 50 == 0 or number == count:
                self.log(f"read {number} of {count} batches")
        hook.remove()

    def _train(
        self, name: str, loss: Callable[[], Tensor], weights: list[nn.Parameter], steps: int, rate: float
    ) -> None:
        optimiser = torch.optim.AdamW(weights, lr=rate, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, steps)
        total = 0.0
        for step in range(1, steps + 1):
            value = loss()
            value.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
            total += value.item()
            if step % 100 == 0 or step == steps:
                self.log(f"{name} {step}/{steps} loss {total / (step % 100 or 100):.4f}")
                total = 0.0


def train_judges(folder: Path, work: Path, log: Log, *, threads: int = 2) -> None:
    """Give the solver in *work* the layers of every judge, and write each to its own subfolder of *folder*."""
    torch.set_num_threads(threads)
    judge = Judge(LoadedModel.of(SOLVER, work), log)
    judge.learn_to_predict()
    log(f"activations of {len(judge.marked[0])} tokens")
    for name in JUDGES:
        one = copy.deepcopy(judge)
        one.learn(name)
        save(one.model, one.tokenizer, folder / name)


def _draw(places: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """Draw so many of each of *places*."""
    return torch.cat([some[torch.randint(len(some), (count,))] for some, count in zip(places, counts, strict=True)])
