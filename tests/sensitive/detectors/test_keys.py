"""Keys and tokens in code: all that detect-secrets' expressions find, at exact places, whole, and offline."""

import base64
import json
import random
import socket
import sys

import pytest

from confide.sensitive.detectors import Recognisers
from confide.sensitive.detectors.keys import _PLUGINS, KEYS, Keys, _plugin
from confide.utils.errors import InputError

pytest.importorskip("detect_secrets", reason="detect-secrets is not installed")

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def made_up(length, letters=LETTERS, seed=0):
    return "".join(random.Random(seed).choices(letters, k=length))


def web_token():
    header, payload = ({"alg": "HS256", "typ": "JWT"}, {"sub": "1234567890", "name": "Ann"})
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (header, payload)
    ]
    return ".".join([*parts, made_up(43)])


HEX, UPPER = "0123456789abcdef", "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
# Kind, what stands before, the secret, what stands after. Put together here, so that no scanner finds them.
SECRETS = [
    ("AWS_KEY", 'id = "', "AKIA" + made_up(16, UPPER), '"'),
    ("AWS_KEY", 'aws_secret_key = "', made_up(40), '"'),
    ("AWS_KEY", 'AWS_SECRET_KEY="', made_up(19) + "/" + made_up(20), '"'),
    ("JSON_WEB_TOKEN", "Bearer ", web_token(), "\n"),
    ("URL_PASSWORD", "see https://ann:", "hunter-2", "@example.org/a"),
    ("ACCESS_TOKEN", "token: ", "AKC" + made_up(20), " "),
    ("ACCESS_TOKEN", "x;", "AccountKey=" + made_up(86) + "==", ";"),
    ("ACCESS_TOKEN", "cloudant_password = '", made_up(64, HEX), "'"),
    ("ACCESS_TOKEN", "bot ", "M" + made_up(23) + "." + made_up(6) + "." + made_up(27), "!"),
    ("ACCESS_TOKEN", "git clone ", "ghp_" + made_up(36), " "),
    ("ACCESS_TOKEN", "-", "glpat-" + made_up(20), " "),
    ("ACCESS_TOKEN", "ibm_api_key: ", made_up(44), "\n"),
    ("ACCESS_TOKEN", "cos_hmac_secret_access_key=", made_up(48, HEX), "\n"),
    ("ACCESS_TOKEN", "chimp ", made_up(32, HEX) + "-us12", "\n"),
    ("ACCESS_TOKEN", "//registry.npmjs.org/:_authToken=", "npm_" + made_up(36), "\n"),
    ("ACCESS_TOKEN", "key ", "sk-" + made_up(20) + "T3BlbkFJ" + made_up(20), "\n"),
    ("ACCESS_TOKEN", "up ", "pypi-AgEIcHlwaS5vcmc" + made_up(80), "\n"),
    ("ACCESS_TOKEN", "send ", "SG." + made_up(22) + "." + made_up(43), "\n"),
    ("ACCESS_TOKEN", "slack ", "xoxb-" + "123-456-" + made_up(5), " "),
    ("ACCESS_TOKEN", "slack ", "https://hooks.slack.com/services/T" + made_up(8) + "/B" + made_up(8) + "/abc", " "),
    ("ACCESS_TOKEN", "softlayer_api_key = '", made_up(64), "'"),
    ("ACCESS_TOKEN", "sq ", "sq0csp-" + made_up(43), " "),
    ("ACCESS_TOKEN", "pay ", "sk_live_" + made_up(24), " "),
    ("ACCESS_TOKEN", "tell ", "123456789:" + made_up(35), " "),
    ("ACCESS_TOKEN", "call ", "AC" + made_up(32), " "),
]  # fmt: skip
BODY = "\n".join(made_up(64, UPPER, seed) for seed in range(3))
DASHES = "-" * 5


def block(name, body=BODY):
    return f"{DASHES}BEGIN {name}{DASHES}\n{body}\n{DASHES}END {name}{DASHES}"


@pytest.fixture(scope="module")
def keys():
    return Keys(KEYS, "key")


@pytest.mark.parametrize(("kind", "before", "secret", "after"), SECRETS, ids=range(len(SECRETS)))
def test_a_secret_is_found_where_it_stands(keys, kind, before, secret, after):
    text = f"é line above\n{before}{secret}{after}\nline below"
    start = text.index(secret)
    (spans,) = keys.find([text])
    assert any(s.kind == kind and s.start <= start and s.end >= start + len(secret) for s in spans)
    assert all(s.start >= start - len(before) and s.end <= start + len(secret) + 1 for s in spans)


def test_lines_find_all_that_the_plugins_find_in_them(keys):
    """Lines put together at random from secrets, their parts and what surrounds them."""
    parts = [part for _, *three in SECRETS for part in three]
    parts += [secret[: len(secret) // 2] for _, _, secret, _ in SECRETS] + [
        " ",
        "=",
        "-" * 30,
        "_" * 50,
        "key",
        "://",
    ]
    chance = random.Random(1)
    lines = ["".join(chance.choices(parts, k=chance.randint(1, 6))).replace("\n", " ") for _ in range(1500)]
    plugins = [_plugin(each.module, each.name)() for each in _PLUGINS]
    jwt = _plugin("jwt", "JwtTokenDetector")()
    found = 0
    for line, spans in zip(lines, keys.find(lines), strict=True):
        covered = {place for span in spans for place in range(span.start, span.end)}
        for plugin in [*plugins, jwt]:
            for secret in plugin.analyze_string(line):
                secret = secret.lstrip(' \t=:"').rstrip(' \t"')
                places = [start for start in range(len(line)) if line.startswith(secret, start)]
                found += 1
                assert any(covered.issuperset(range(s, s + len(secret))) for s in places), (
                    plugin,
                    line,
                    secret,
                )
    assert found > 500


@pytest.mark.parametrize(
    "secret",
    [
        block("RSA PRIVATE KEY"),
        block("PRIVATE KEY"),
        block("OPENSSH PRIVATE KEY"),
        block("ENCRYPTED PRIVATE KEY"),
        block("PGP PRIVATE KEY BLOCK", f"Version: 1\n\n{BODY}"),
        block("EC PRIVATE KEY", BODY.replace("\n", "\\n")).replace(
            "\n", "\\n"
        ),  # as a program's string holds it
        f"{DASHES}BEGIN DSA PRIVATE KEY{DASHES}\nProc-Type: 4,ENCRYPTED\n{BODY}",  # its end was cut off
        f"PuTTY-User-Key-File-2: ssh-rsa\nPrivate-Lines: 3\n{BODY}\nPrivate-MAC: {made_up(40, HEX)}",
    ],
)
def test_a_private_key_is_found_whole(keys, secret):
    text = f"before\n{secret}\nafter it, in prose."
    (spans,) = keys.find([text])
    (own,) = [span for span in spans if span.kind == "PRIVATE_KEY"]
    assert text[own.start : own.end].rstrip() == secret


def test_two_blocks_are_two(keys):
    text = f"{block('RSA PRIVATE KEY')}\nand\n{block('EC PRIVATE KEY')}"
    assert len(keys.find([text])[0]) == 2


def test_prose_holds_no_key(keys):
    text = (
        "The key to AC is under the mat: BEGIN here. See http://example.org:80/a@b, or ask at 10:30.\n"
        + "-" * 79
    )
    assert keys.find([text]) == [[]]


def test_keys_are_recognisers(monkeypatch):
    _, before, secret, _ = SECRETS[0]
    spans = Recognisers(["AWS_KEY", "IP_ADDRESS"]).find([f"{before}{secret} from 10.0.0.1"])[0]
    assert {span.kind for span in spans} == {"AWS_KEY", "IP_ADDRESS"}
    monkeypatch.setitem(sys.modules, "detect_secrets.plugins.aws", None)
    with pytest.raises(
        InputError, match=r"my\.key: detect-secrets is not installed: pip install 'confide\[detectors\]'"
    ):
        Recognisers(["AWS_KEY"], "my.key")


def test_nothing_is_verified_over_the_network(keys, monkeypatch):
    def refuse(*_args, **_keywords):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert all(keys.find([before + secret + after for _, before, secret, after in SECRETS]))
