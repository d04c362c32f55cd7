"""In which encoding a file is and what stands between its fields: told by the content, stated, never guessed at."""

import codecs
import csv
import gzip
import io
import json

import pytest

from confide.data.readers import Counts, read, records
from confide.data.readers.encodings import HEAD, encoding_of
from confide.utils.errors import InputError
from tests.command import World, confide, refused, tiny_model

ROWS = [
    {"body": "Grüße aus München, bis später", "user": "jörg"},
    {"body": "déjà vu: « un été », 5 € – l’œuvre", "user": "zoë"},
    {"body": "mañana, ¿a qué hora?\nA las seis", "user": "iñaki"},
]
WANTED = [(row["body"], (row["user"],)) for row in ROWS]
IN_LATIN_1 = [WANTED[0], WANTED[2]]


def as_csv(delimiter=",", rows=ROWS, quoting=csv.QUOTE_MINIMAL):
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=delimiter, quoting=quoting)
    writer.writerow(["body", "user"])
    writer.writerows([row["body"], row["user"]] for row in rows)
    return stream.getvalue()


def as_jsonl(rows=ROWS):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def found(path, counts=None, **how):
    counts = Counts() if counts is None else counts
    return [
        (f["body"], (f["user"],)) for f in (record.fields for record in records(path, counts=counts, **how))
    ]


@pytest.mark.parametrize(
    ("encoding", "mark", "told"),
    [
        ("utf-8", b"", None),
        ("utf-8", codecs.BOM_UTF8, None),
        ("cp1252", b"", "cp1252"),
        ("utf-16-le", codecs.BOM_UTF16_LE, "utf-16"),
        ("utf-16-be", codecs.BOM_UTF16_BE, "utf-16"),
        ("utf-16-le", b"", "utf-16-le"),
        ("utf-16-be", b"", "utf-16-be"),
        ("utf-32-le", codecs.BOM_UTF32_LE, "utf-32"),
        ("utf-32-be", codecs.BOM_UTF32_BE, "utf-32"),
    ],
)
@pytest.mark.parametrize("name", ["m.csv", "m.jsonl", "m.json", "m.csv.gz"])
def test_encodings_are_told_by_content_and_said(tmp_path, name, encoding, mark, told):
    text = {"csv": as_csv(), "jsonl": as_jsonl(), "json": json.dumps(ROWS, ensure_ascii=False)}[
        name.split(".")[1]
    ]
    content = mark + text.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    counts = Counts()
    assert found(tmp_path / name, counts) == WANTED
    said = [f"{tmp_path / name}: read as {told}, as its bytes say (data.encoding states it)"]
    assert counts.notes() == (said if told else [])


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_texts_in_a_folder_each_in_its_own(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes(ROWS[0]["body"].encode())
    (tmp_path / "b.txt").write_bytes((ROWS[1]["body"] + ". " + ROWS[2]["body"]).encode(encoding))
    counts = Counts()
    texts = [d.text for d in read(tmp_path, text="text", unit=None, counts=counts)]
    assert texts == [ROWS[0]["body"], ROWS[1]["body"] + ". " + ROWS[2]["body"]]
    assert counts.notes() == [
        f"{tmp_path / 'b.txt'}: read as {encoding}, as its bytes say (data.encoding states it)"
    ]


def test_latin_1_is_read_as_it_was_written(tmp_path):
    text = as_csv(rows=[ROWS[0], ROWS[2]])
    (tmp_path / "m.csv").write_bytes(text.encode("latin-1"))
    assert found(tmp_path / "m.csv") == IN_LATIN_1
    assert found(tmp_path / "m.csv", encoding="latin-1") == IN_LATIN_1


@pytest.mark.parametrize(
    "text",
    [
        "Não há informação sobre as eleições, amanhã à tarde",
        "Hej, jag heter Åsa och bor på Östermalm, vi hörs på måndag",
        "Rødgrød med fløde på en smuk ø, når æblerne falder",
        "Perché no? È già così, però è più bello di città",
        "Hyvää päivää, mitä kuuluu? Nähdään myöhemmin",
        "Tere, kuidas läheb? Võib-olla õhtul näeme, sõber",
        "id;note\n" + "".join(f"zoë{number};déjà vu numéro {number} à l’été\n" for number in range(40)),
        "All in English, but for a “quote”, a dash – and a café",
    ],
)
def test_the_languages_that_windows_1252_is_for(text):
    assert encoding_of(text.encode("cp1252")) == "cp1252"


@pytest.mark.parametrize(
    "content",
    [
        "Привет, как дела? Всё хорошо, спасибо. До встречи завтра.".encode("cp1251"),
        "Καλημέρα, τι κάνεις; Όλα καλά, ευχαριστώ.".encode("cp1253"),
        "Bugün hava çok güzel, ışık ve gölge; şimdi değil".encode("cp1254"),
        "Dzień dobry, żółw i gęś, źródło łąki".encode("cp1250"),
        "Cześć, jak się masz? Przepraszam za spóźnienie, będę jutro".encode("cp1250"),
        "Dobrý den, děkuji za zprávu, příští týden přijedu".encode("cp1250"),
        "Dobrý den, děkuji za zprávu, příští týden přijedu".encode("iso8859-2"),
        "Kedves János, köszönöm a levelet, jövő héten nőkkel".encode("cp1250"),
        "Dobar dan, hvala, vidimo se sljedeći tjedan, možda čak i češće".encode("cp1250"),
        "Labas, kaip sekasi? Ačiū už laišką, iki kitą savaitę".encode("cp1257"),
        "今日はいい天気ですね。明日も晴れるでしょう。".encode("shift_jis"),
        "今天天气很好,明天也会是晴天。".encode("gb18030"),
        "안녕하세요, 오늘 날씨가 좋네요".encode("euc-kr"),
        "one text with two faults \xff and \xfe".encode("latin-1"),
        "Grüße ".encode() * 20 + b"\xff",
        bytes(range(1, 256)),
    ],
)
def test_what_is_not_sure_is_refused_and_may_be_stated(tmp_path, content):
    """Wrong letters are worse than a question: whoever knows the encoding states it."""
    assert encoding_of(content) == "utf-8"
    path = tmp_path / "m.csv"
    path.write_bytes(
        b"body,user\nok,ann\n" + content.replace(b"\n", b"").replace(b"\r", b"").replace(b",", b" ") + b",u\n"
    )
    with pytest.raises(InputError, match=r"m\.csv line 3: not valid UTF-8.*state data\.encoding"):
        found(path)


def test_a_stated_encoding_is_kept_to(tmp_path):
    text = "body,user\nПривет как дела,ann\n"
    (tmp_path / "m.csv").write_bytes(text.encode("cp1251"))
    assert found(tmp_path / "m.csv", encoding="cp1251") == [("Привет как дела", ("ann",))]
    with pytest.raises(InputError, match=r"line 1 or later: not valid ascii; state another data\.encoding"):
        found(tmp_path / "m.csv", encoding="ascii")


@pytest.mark.parametrize("name", ["utf-9", "rot13", "base64", "", "a b", "utf\0"])
def test_an_encoding_that_is_none(tmp_path, name):
    (tmp_path / "m.csv").write_text(as_csv())
    with pytest.raises(InputError, match=r"data\.encoding: .* is not an encoding; try utf-8"):
        found(tmp_path / "m.csv", encoding=name)


def test_a_fault_beyond_the_first_bytes_is_met_where_it_is(tmp_path):
    lines = HEAD // 20
    content = b"body,user\n" + b"twenty bytes a line,u\n" * lines + b"caf\xe9 cr\xe8me d\xe9j\xe0,u\n"
    (tmp_path / "m.csv").write_bytes(content)
    with pytest.raises(InputError, match=rf"m\.csv line {lines + 2}: not valid UTF-8"):
        found(tmp_path / "m.csv")


def test_half_a_character_at_the_end_is_a_fault(tmp_path):
    (tmp_path / "m.jsonl").write_bytes(as_jsonl().encode("utf-16")[:-1])
    with pytest.raises(InputError, match="not valid utf-16"):
        found(tmp_path / "m.jsonl")


@pytest.mark.parametrize(
    ("delimiter", "told"), [(",", None), (";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")]
)
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_delimiters_are_told_by_content_and_said(tmp_path, delimiter, told, quoting):
    path = tmp_path / "m.csv"
    path.write_text(as_csv(delimiter, quoting=quoting), newline="")
    counts = Counts()
    assert found(path, counts) == WANTED
    said = f"{path}: read with {told} between its fields (data.delimiter states it)"
    assert counts.notes() == ([said] if told else [])


def test_a_delimiter_and_an_encoding_at_once(tmp_path):
    path = tmp_path / "m.csv"
    path.write_bytes(as_csv(";").encode("cp1252"))
    counts = Counts()
    assert found(path, counts) == WANTED
    assert len(counts.notes()) == 2


def test_a_delimiter_that_could_be_two_is_asked_for(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("body;user|more\na;b|c\nd;e|f\n")
    with pytest.raises(
        InputError,
        match=r"between the fields are semicolons or vertical bars; state which with data\.delimiter",
    ):
        found(path)
    assert next(records(path, delimiter=";")).fields == {"body": "a", "user|more": "b|c"}


def test_one_column_needs_no_delimiter(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("body\none; two\nthree\n")
    assert [r.fields["body"] for r in records(path)] == ["one; two", "three"]


def test_a_stated_delimiter_is_kept_to(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("body^user\na,b^ann\n")
    assert found(path, delimiter="^") == [("a,b", ("ann",))]
    path = tmp_path / "m.tsv"
    path.write_text("body;user\na\tb;ann\n")
    assert found(path, delimiter=";") == [("a\tb", ("ann",))]
    path.write_text("body\tuser\na,b\tann\n")
    assert found(path, delimiter="\\t") == [("a,b", ("ann",))]  # as it is typed on a command line
    for wrong in ("", ";;", "\n", '"'):
        with pytest.raises(InputError, match=r"data\.delimiter: .* is not one character"):
            found(path, delimiter=wrong)


def test_several_files_are_told_of_once(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text(as_csv(";"))
    counts = Counts()
    assert found(tmp_path, counts) == WANTED * 3
    assert counts.notes() == [
        f"{tmp_path / 'a.csv'} and 2 more: read with semicolons between its fields (data.delimiter states it)"
    ]


def test_the_verb_says_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path, tiny_model(tmp_path))
    lines = ["user;text"] + [f"zoë{i % 12};déjà vu numéro {i} à l’été" for i in range(40)]
    world.write("\n".join(lines).encode("cp1252"), "t.csv")
    done = confide("prepare", world.path)
    assert done.code == 0, done.err
    assert "t.csv: read as cp1252, as its bytes say (data.encoding states it)" in done.err
    assert "t.csv: read with semicolons between its fields (data.delimiter states it)" in done.err
    notes = json.loads(confide("prepare", world.path, "--json").out)["notes"]
    assert len(notes) == 2
    stated = confide("prepare", world.path, "data.encoding=cp1252", "data.delimiter=;", "--json")
    assert stated.code == 0, stated.err
    assert json.loads(stated.out)["notes"] == []
    refused(confide("prepare", world.path, "data.delimiter=','"), r"data\.(text|unit) names")
