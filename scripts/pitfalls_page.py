"""Write docs/pitfalls.md: `PYTHONPATH=scripts python scripts/pitfalls_page.py > docs/pitfalls.md`."""

from known_faults import FAULTS

PITFALLS = {
    1: "Clip to one norm, add noise for another",
    2: "An empty draw is skipped, crashes, or gets a row that nobody drew",
    3: "Each micro-batch draws by itself, so that a person enters a step several times",
    4: "Tied weights: the norm of one of the two uses is lost",
    5: "Clip each layer to the bound, and account as if all layers together kept it",
    6: "Divide by the size that was drawn, or round the expected one: both tell of the data",
    7: "Claim users, clip rows",
    8: "Ranks fall out of step, or each does the whole work",
    9: "Adapter weights never move, while loss and epsilon look well",
    10: "The schedule of the learning rate is ignored",
    11: "Padding or ignored tokens count in a row's loss",
    12: "Norms are taken in half precision",
    13: "A layer without a rule trains unclipped, or is left out of the norm",
    14: "Batches are shuffled, the accounting says Poisson",
    15: "After a restart draws or accounting begin anew",
    16: "The noise comes from a generator whose state is published",
    17: "The released model cannot be saved or used as models of transformers are",
    18: "A typo in a config passes, and something else is trained",
    19: "An audit picks the best of many thresholds",
    20: "An audit finds something in pure chance, or hides what it could have shown",
    21: "Gradient checkpointing runs hooks twice",
    22: "One person with thousands of rows takes all memory",
    23: "A person's words stand in another's rows, as quotes",
    24: "Tokenizer, evaluation and medians of private data are not listed as not covered",
    25: "A long sum of squares in float32 comes out too small",
    26: "A tokenizer that was loaded the wrong way encodes to nothing",
    27: "A row's loss depends on the rows beside it",
    28: "Users are drawn where a row has two owners",
    29: "Normalised clipping divides before the noise, and adds noise of the old size",
    30: "Draws follow from a seed that stands in the published config",
    31: "A plain hash of private text is published, so that guesses can be tested",
    32: "Rates or medians of the data under an add-or-remove claim",
    33: "A checkpoint of another run is released under the claim",
    34: "An error bound of the square root where rounding errors add up",
    35: "The noise key depends on a name or a default that a new version changes",
    36: "Tests run under a published key alone, where a secret one goes another way",
    37: "A number of a claim is rounded to the nearest, and so below what is proved",
    38: "Protection falls back from users to rows in silence",
    39: "A file cut short reads as a whole one, or a folder stays open to others",
    40: "A hook of somebody else changes a layer's output before it is seen",
    41: "Two directions of a bound are taken each by itself",
}
"""What went wrong, in other libraries or here, by its number in `known_faults`."""

_BEFORE = """\
# Pitfalls

Made by `PYTHONPATH=scripts python scripts/pitfalls_page.py > docs/pitfalls.md`; do not edit by hand.

Privacy that fails in silence is the worst kind of bug in this field: the loss falls, epsilon is printed, and nobody is
protected. Below is what went wrong in other libraries, or in this one as it was built. For each there are tests. To see
that they notice, `python scripts/mutations.py` puts each fault into the sources and runs its tests, which must fail.

If you write private training yourself, read this as a list of what to check.
"""


def written() -> str:
    """Return the page."""
    parts = [_BEFORE]
    for number, title in PITFALLS.items():
        parts.append(f"## {number}. {title}\n\n| a fault that is put in | tests that must fail |\n|---|---|")
        for fault in FAULTS:
            if fault.row == str(number):
                files = ", ".join(f"`{name}`" for name in dict.fromkeys(fault.files()))
                parts.append(f"| {fault.what.replace('|', '/')} | {files} |")
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    print(written(), end="")
