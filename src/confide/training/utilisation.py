"""Estimate how busy ranks are with a draw: tokens, passes and gradients that are sent have assumed costs."""

from collections.abc import Callable

from confide.privacy.sampling import Draw
from confide.training.lockstep import share_spread, shares_together
from confide.training.packing import Pack, pack, price
from confide.training.schedule import EXCHANGE, share

Deal = Callable[[Draw, int, int], list[list[Pack]]]


def apart(draw: Draw, micro_tokens: int, ranks: int) -> list[list[Pack]]:
    """Deal a draw to ranks that work apart."""
    return [share(draw, micro_tokens, ranks, number) for number in range(ranks)]


def together(draw: Draw, micro_tokens: int, ranks: int) -> list[list[Pack]]:
    """Deal a draw to ranks that take each pass together, each with a whole gradient."""
    return shares_together(draw, micro_tokens, ranks)


def spread(draw: Draw, micro_tokens: int, ranks: int) -> list[list[Pack]]:
    """Deal a draw to ranks that take each pass together, none of them with a whole gradient."""
    return [share_spread(draw, micro_tokens, ranks, number) for number in range(ranks)]


def utilisation(draw: Draw, micro_tokens: int, ranks: int, deal: Deal = apart) -> float:
    """Return what one rank would need for a draw, over what all ranks together take."""
    alone = price(pack(draw, micro_tokens), draw, micro_tokens)
    return alone / (ranks * slowest_rank(draw, micro_tokens, ranks, deal))


def slowest_rank(draw: Draw, micro_tokens: int, ranks: int, deal: Deal = apart) -> float:
    """Return the cost of a draw on the slowest rank, in tokens.

    Of ranks that take each pass together, it is the sum of what the slowest needs in each.
    """
    shares = deal(draw, micro_tokens, ranks)
    sent = [EXCHANGE * _exchanges(own, rank) for rank, own in enumerate(shares)]
    if deal is apart:
        return max(price(own, draw, micro_tokens) + more for own, more in zip(shares, sent, strict=True))
    passes = [[own for each in mine for own in (each.parts or (each,))] for mine in shares]
    at_once = zip(*passes, strict=True)
    return sum(max(price([own], draw, micro_tokens) for own in each) for each in at_once) + max(sent)


def _exchanges(packs: list[Pack], rank: int) -> int:
    """Return how many gradients the rank sends or receives."""
    held = {each.unit: each.holders for each in packs if each.holders}
    held |= {each.unit: each.holders for own in packs for each in own.opens if each.holders}
    return sum(len(holders) - 1 if holders[0] == rank else 1 for holders in held.values())
