"""Tell a chain that goes round in circles. Pure; only whole steps count, as a policy may also move token by token."""

from __future__ import annotations

from .chain import Chain, Step

PERIODS = (1, 2)  # one step again and again, or two in turn
STUCK = 3  # times


def obstacle(chain: Chain, draft: Step) -> str:
    """Why *draft* needs no judge to be refused: "empty", "repetition", or "" if it does need one."""
    if draft.stop != "delimiter":
        return ""
    if _empty(chain, draft):
        return "empty"
    return "repetition" if _rounds(chain, draft) >= 2 else ""


def stuck(chain: Chain, step: Step) -> bool:
    """Whether even the *step* that was to get the chain out of a circle goes round it, or says nothing."""
    return step.stop == "delimiter" and (_empty(chain, step) or _rounds(chain, step) >= STUCK)


def _empty(chain: Chain, step: Step) -> bool:
    """Whether *step* says nothing, and does not even end a paragraph that was cut."""
    return not step.text.strip() and (not chain.steps or chain.steps[-1].stop == "delimiter")


def _rounds(chain: Chain, step: Step) -> int:
    """How many times in a row the chain's end, with *step*, says the same."""
    said = [" ".join(s.text.split()) for s in (*chain.steps[-STUCK * max(PERIODS) :], step)]
    return max(_period(said, period) for period in PERIODS)


def _period(said: list[str], period: int) -> int:
    block, rounds = said[-period:], 1
    while len(said) >= (rounds + 1) * period and said[-(rounds + 1) * period : -rounds * period] == block:
        rounds += 1
    return rounds
