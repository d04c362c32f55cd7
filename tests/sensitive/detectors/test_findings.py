"""What the recognisers find in a fixed text, written out: where findings change, their number must too."""

import pytest

from confide.sensitive.detectors import Recognisers
from confide.sensitive.detectors.choice import FINDINGS

pytest.importorskip("presidio_analyzer", reason="Presidio is not installed")
pytest.importorskip("detect_secrets", reason="detect-secrets is not installed")

FILLER = "The printer on floor three is out of paper, and nobody has a key to the store room. "
TEXT = FILLER.join(
    (
        "Ann (ann@example.org, or <Ann.B@mail.corp.internal>) says hello. ",
        "Call +41 44 668 18 00 or (0)20 7946 0991 x12, not 1,234,567. ",
        "Card 4012-8888-8888-1881, not 4012 8888 8888 1882; IBAN DE89 3704 0044 0532 0130 00. ",
        "SSN 536-90-4399; hosts 192.168.0.17, 2001:db8::8a2e:370:7334 and 00:1A:2B:3C:4D:5E. ",
        "Pay to 1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2 by https://example.org/a?b=1. ",
        "git clone https://ann:" + "hunter-2" + "@example.org/a with gh" + "p_" + "a1B2c3" * 6 + ". ",
        'aws = "AK' + "IA" + 'ABCDEFGHIJKLMNOP"\n',
        40 * FILLER + "Write to last@example.com. ",
    )
)
GOLDEN = [
    ("EMAIL_ADDRESS", "ann@example.org"),
    ("URL", "example.org"),
    ("EMAIL_ADDRESS", "Ann.B@mail.corp.internal"),
    ("URL", "mail.corp.int"),
    ("PHONE_NUMBER", "+41 44 668 18 00"),
    ("PHONE_NUMBER", "(0)20 7946 0991 x12"),
    ("PHONE_NUMBER", "4012-8888-8888"),
    ("CREDIT_CARD", "4012-8888-8888-1881"),
    ("PHONE_NUMBER", "4012 8888 8888"),
    ("IBAN_CODE", "DE89 3704 0044 0532 0130 00"),
    ("PHONE_NUMBER", "3704 0044 0532"),
    ("PHONE_NUMBER", "536-90-4399"),
    ("US_SSN", "536-90-4399"),
    ("IP_ADDRESS", "192.168.0.17"),
    ("PHONE_NUMBER", "192.168.0.17"),
    ("IP_ADDRESS", "2001:db8::8a2e:370:7334"),
    ("MAC_ADDRESS", "00:1A:2B:3C:4D:5E"),
    ("CRYPTO", "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2"),
    ("URL", "https://example.org/a?b=1."),
    ("URL_PASSWORD", "hunter-2"),
    ("EMAIL_ADDRESS", "hunter-2@example.org"),
    ("URL", "example.org/a"),
    ("ACCESS_TOKEN", "gh" + "p_" + "a1B2c3" * 6),
    ("AWS_KEY", "AK" + "IA" + "ABCDEFGHIJKLMNOP"),
    ("EMAIL_ADDRESS", "last@example.com"),
    ("URL", "example.com"),
]


def test_findings_change_with_their_number_alone():
    (spans,) = Recognisers("all").find([TEXT])
    assert FINDINGS == 1  # what follows is of this number: raise both together
    assert [(span.kind, TEXT[span.start : span.end]) for span in spans] == GOLDEN
