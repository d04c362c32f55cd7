"""Masks that tell the kind of what they stand for: which, where, and that they tell nothing else."""

import random

import numpy as np
import pytest
import torch

from confide.data.readers.documents import Document
from confide.models import loading as models
from confide.runs.data_source import source_of
from confide.sensitive.detectors.spans import Span
from confide.sensitive.redaction.documents import RedactedDocuments
from confide.sensitive.redaction.masking import masked, masks_of, merged
from confide.sensitive.redaction.policy import Policy
from confide.sensitive.redaction.rows import Redactor
from confide.training.tasks.causal_lm import CausalLM
from confide.utils.errors import InputError
from tests.sensitive.redaction.test_documents import config
from tests.sensitive.redaction.test_masking import MARKERS, TOLD, filled, skeleton, tokenizer_of
from tests.sensitive.redaction.test_rows import SECRETS, same

EXPRESSIONS = {"NAME": "Ann|Bob", "DATE": r"\d\d\.\d\d\.", "CODE": "K[0-9]+"}
MASKS = {"NAME": "<NAME>", "DATE": "<DATE>"}


def settings(path="unused", mechanism="redacted", **changes):
    changes = {"detector__expressions": EXPRESSIONS, "detector__masks": MASKS, **changes}
    return config(path, mechanism, **changes)


@pytest.mark.parametrize(
    ("spans", "masks"),
    [
        ([(0, 3, "NAME"), (5, 9, "DATE"), (11, 12, "CODE")], ["<NAME>", "<DATE>", "<mask>"]),
        ([(0, 3, "NAME"), (2, 5, "NAME")], ["<NAME>"]),
        ([(0, 3, "NAME"), (2, 5, "DATE"), (7, 8, "DATE")], ["<mask>", "<DATE>"]),  # two kinds in one place
        ([(0, 3, "NAME"), (3, 5, "CODE")], ["<mask>"]),  # one of them without a mask of its own
        ([(0, 3, "NAME"), (1, 1, "DATE"), (4, 4, "CODE")], ["<NAME>"]),  # nothing stands in an empty span
    ],
)
def test_a_place_has_the_mask_that_all_its_kinds_share(spans, masks):
    found = [Span(*each) for each in spans]
    assert masks_of(found, merged(found), MASKS, "<mask>") == masks
    assert masks_of(found, merged(found), {}, "<mask>") == ["<mask>"] * len(masks)


def test_a_text_leads_back_to_the_original_past_masks_of_any_length():
    redacted, origin = masked("call Ann at 555 now", [(5, 8), (12, 15)], ["<N>", "<NUMBER>"])
    assert redacted == "call <N> at <NUMBER> now"
    assert {p: origin.of(p) for p in (5, 8, 10, 12, 20, 24)} == {5: 5, 8: 8, 10: 10, 12: 12, 20: 15, 24: 19}


@pytest.mark.parametrize("task", ["causal-lm", "masked-lm"])
@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "bundled"])
def test_redacted_rows_hold_the_masks_of_their_places_and_no_sensitive_character(name, task, tmp_path):
    """Whatever stands in the places, also the text of a mask: two fillings of a text have the same redacted rows."""
    tokenizer, generator = tokenizer_of(name, tmp_path), random.Random(3)
    tokenizer.add_special_tokens(
        {"extra_special_tokens": [*MASKS.values()]}, replace_extra_special_tokens=False
    )
    redactor = Redactor(tokenizer, task, 4096, 2)
    known = [tokenizer.mask_token, *MASKS.values()]
    marked = lambda: "".join(generator.choices(MARKERS, k=3))  # noqa: E731
    parts = [skeleton(generator, 30) for _ in range(100)]
    one, other = (
        [filled(own, fill) for own in parts] for fill in (marked, lambda: generator.choice(SECRETS))
    )
    masks = [[generator.choice(known) for _ in places] for _, places in one]
    first, second = (
        redactor.many([text for text, _ in side], [places for _, places in side], masks=masks)
        for side in (one, other)
    )
    held = 0
    for a, b, own, (text, _) in zip(first, second, masks, one, strict=True):
        assert same(a, b)
        tokens = np.concatenate([row.masked for row in a]) if a else np.zeros(0, np.int64)
        assert not set(tokenizer.decode(tokens.tolist())) & TOLD - set("Q")
        for token in MASKS.values():  # no public text has these
            count = int((tokens == tokenizer.convert_tokens_to_ids(token)).sum())
            if len(text) < 1000 and a:
                assert count == own.count(token)
                held += count
    assert held > 50


def test_documents_have_the_masks_of_the_config(tmp_path):
    tokenizer = models.load_tokenizer(settings())
    text = "Ann met Bob on 01.02. with K77 and nobody else, nor AnnK1 again"
    with RedactedDocuments(settings(), tokenizer, tmp_path / "spans.db", 1) as redacted:
        (rows,) = redacted.rows([Document(text, ("u",), None, "here")])
    shown = tokenizer.decode([token for row in rows for token in row.masked.tolist()])
    plain = "<NAME> met <NAME> on <DATE> with <mask> and nobody else, nor <mask> again"
    assert plain.replace(" ", "") in "".join(shown.split())


def test_a_mask_of_a_kind_is_learnt_and_the_one_mask_is_not():
    tokenizer = models.load_tokenizer(settings())
    assert tokenizer.mask_token_id is not None
    task = CausalLM(
        pad=tokenizer.pad_token_id,
        mask=tokenizer.mask_token_id,
        vocabulary=len(tokenizer),
        special=tuple(tokenizer.all_special_ids),
        extra=frozenset(),
        autocast=False,
        device=torch.device("cpu"),
    )
    name = tokenizer.convert_tokens_to_ids("<NAME>")
    row = torch.tensor([[5, tokenizer.mask_token_id, 6, name, 7]])
    targets = task.targets({"input_ids": row, "real": torch.ones_like(row, dtype=torch.bool)})
    assert targets[0, :4].tolist() == [-100, 6, name, 7]


def test_masks_that_cannot_be_used_are_refused():
    with pytest.raises(
        InputError, match=r"^detector.masks: nothing finds 'PLACE'; the kinds are CODE, DATE, NAME"
    ):
        Policy.of(settings(detector__masks={"PLACE": "<PLACE>"}))
    for token in ("  ", models.load_tokenizer(settings()).eos_token):
        with pytest.raises(InputError, match=r"^detector.masks: the token of 'NAME' cannot be used"):
            models.load_tokenizer(settings(detector__masks={"NAME": token}))


def test_other_masks_are_other_data_and_none_leave_prepared_data_as_they_were():
    plain, named = settings(detector__masks={}), settings()
    assert source_of(plain) != source_of(named)
    assert "masks" not in source_of(plain)
