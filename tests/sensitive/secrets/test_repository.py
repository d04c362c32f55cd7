"""Secrets of a code base: paths, owners, authors, packages, and whoever imports them."""

import pytest

from confide.config.schema import Repository
from confide.data.readers import read
from confide.data.spans import Mention
from confide.sensitive.secrets.repository import (
    UNCOMMITTED,
    RepositorySecrets,
    authors_of,
    codeowners,
    glob,
)
from confide.utils.errors import InputError
from tests.data.readers.test_code import committed, git, write

TREE = {
    "src/acme/__init__.py": "",
    "src/acme/billing/__init__.py": "from .charge import total\n",
    "src/acme/billing/charge.py": "total = 1\n",
    "src/acme/billing/rates.sql": "select 1\n",
    "src/acme/reports.py": "from acme.billing import total\n",
    "src/acme/text.py": "import os\n",
    "tests/test_reports.py": "from acme import reports\n",
    "tests/test_text.py": "from acme import text\n",
    "keys/live.pem": "-----\n",
    "CODEOWNERS": "* @ann\n/src/acme/billing/ @acme/Pay bob@x.com # money\n/src/acme/text.py\n",
}
BILLING = {path for path in TREE if path.startswith("src/acme/billing/")}


def secrets(folder, **section):
    return RepositorySecrets(Repository(**section), folder)


def test_a_secret_is_a_package_and_all_that_imports_it(tmp_path):
    found = secrets(committed(tmp_path, TREE), packages=["acme.billing"])
    assert found.own == {"packages:acme.billing": BILLING}
    importing = {"src/acme/reports.py", "tests/test_reports.py"}
    assert found.carried == {"packages:acme.billing": BILLING | importing}
    assert secrets(tmp_path, packages=["acme.billing"], imports=False).carried == found.own


def test_whole_documents_are_the_mentions(tmp_path):
    committed(tmp_path, TREE)
    documents = list(read(tmp_path, text="{path}\n{text}", unit=None))
    found = secrets(tmp_path, packages=["acme.billing"], paths=["charge.py"]).find(documents)
    mentions = {document.fields["path"]: listed for document, listed in zip(documents, found, strict=True)}
    path = "src/acme/billing/charge.py"
    end = len(f"{path}\ntotal = 1\n")
    assert mentions[path] == [Mention("paths:charge.py", 0, end), Mention("packages:acme.billing", 0, end)]
    assert mentions["src/acme/text.py"] == []


@pytest.mark.parametrize(
    ("name", "files", "own"),
    [
        ("acme.billing.charge", TREE, {"src/acme/billing/charge.py"}),
        ("billing", TREE, BILLING),
        ("acme", {"acme.py": ""}, {"acme.py"}),
        (
            "a.b",
            {"x/a/b/c.py": "", "y/a/b.py": "", "y/a/b.pyi": "", "a/bc.py": ""},
            {"x/a/b/c.py", "y/a/b.py", "y/a/b.pyi"},
        ),
        ("a.b", {"a/b/c/d.py": "", "a/b/c/e.json": "{}"}, {"a/b/c/d.py", "a/b/c/e.json"}),
        ("docs", {"docs/a.md": "x", "src/docs/b.py": ""}, {"src/docs/b.py"}),
    ],
)
def test_packages_are_found_below_any_folder(tmp_path, name, files, own):
    assert secrets(write(tmp_path, files), packages=[name], imports=False).own == {f"packages:{name}": own}


GLOBS = [  # pattern, paths that it matches, paths that it does not; as in .gitignore
    ("billing/", ["billing/a", "x/billing/y/a"], ["billing", "xbilling/a"]),
    ("billing", ["billing", "billing/a", "x/billing/y/a"], ["billing.py", "xbilling"]),
    ("*.pem", ["a.pem", "x/y/a.pem", "x.pem/a"], ["a.pem2", "apem"]),
    ("/src/secret/**", ["src/secret/a", "src/secret/x/a"], ["src/secret", "x/src/secret/a"]),
    ("src/secret", ["src/secret", "src/secret/a/b"], ["x/src/secret"]),
    ("/*.py", ["a.py"], ["x/a.py"]),
    ("**/logs", ["logs/a", "x/y/logs", "x/logs/a"], ["xlogs"]),
    ("a/**/b", ["a/b", "a/x/b", "a/x/y/b/c"], ["ab", "xa/b"]),
    ("a/*/b", ["a/x/b"], ["a/b", "a/x/y/b"]),
    ("a?.py", ["ab.py", "x/ab.py"], ["a.py", "a/.py"]),
    ("docs/*", ["docs/a", "docs/x/a"], ["docs", "x/docs/a"]),
    ("[id].tsx", ["app/[id].tsx"], ["i.tsx"]),
    ("a b.py", ["a b.py"], ["a"]),
    ("a\\*.py", ["a*.py"], ["ab.py"]),
    ("*", ["a", "x/y/a"], []),
    ("a+(b).py", ["a+(b).py"], ["aab.py"]),
]


@pytest.mark.parametrize(("pattern", "inside", "outside"), GLOBS)
def test_globs(pattern, inside, outside):
    matches = glob(pattern).fullmatch
    assert [path for path in [*inside, *outside] if matches(path)] == inside


OWNERS = [  # CODEOWNERS, path, owners
    ("* @a\n*.py @b @org/c\n", "x/a.py", ("@b", "@org/c")),
    ("*.py @b\n* @a\n", "a.py", ("@a",)),
    ("* @a\n/x/\n", "x/a.py", ()),
    ("* @a\n\n  # *.py @b\n", "a.py", ("@a",)),
    ("*.py @a # and @b\n", "a.py", ("@a",)),
    ("docs/* @a\n", "docs/a.md", ("@a",)),
    ("docs/* @a\n", "docs/x/a.md", None),
    ("/* @a\n", "x/a.md", None),
    ("docs/ @a\n", "x/docs/y/a.md", ("@a",)),
    ("/docs/ @a\n", "x/docs/a.md", None),
    ("apps/web @a\n", "apps/web/x/a.js", ("@a",)),
    ("**/logs @a\n", "x/logs/a", ("@a",)),
    ("my\\ file.py ann@x.com\n", "my file.py", ("ann@x.com",)),
    ("!a.py @a\n\\#a.py @b\n", "a.py", None),
    ("A.py @a\n", "a.py", None),
    ("\t*.py\t@a\r\n", "a.py", ("@a",)),
]


@pytest.mark.parametrize(("text", "path", "owners"), OWNERS)
def test_codeowners(text, path, owners):
    held = [line.owners for line in codeowners(text) if line.matches(path)]
    assert (held[-1] if held else None) == owners


def test_owners(tmp_path):
    found = secrets(write(tmp_path, TREE), owners=["@acme/pay", "BOB@x.com"], imports=False)
    assert found.own == {"owners:@acme/pay": BILLING, "owners:BOB@x.com": BILLING}
    every = secrets(tmp_path, owners="all", imports=False).own
    assert every["owners:@ann"] == set(TREE) - BILLING - {"src/acme/text.py"}
    assert every.keys() == {"owners:@ann", "owners:@acme/Pay", "owners:bob@x.com"}
    write(tmp_path, {".github/CODEOWNERS": "*.pem @eve\n"})  # which GitHub takes first
    assert secrets(tmp_path, owners="all", imports=False).own == {"owners:@eve": {"keys/live.pem"}}


@pytest.fixture
def history(tmp_path):
    """ann writes a and b, bob changes a, cy moves a and b into new, dan changes old b on a branch, eve merges."""
    lines = "".join(f"line {number}\n" for number in range(40))
    committed(tmp_path, {"a.py": lines, "b.py": lines.replace("line", "word")}, name="ann")
    git(tmp_path, "branch", "-M", "main")
    git(tmp_path, "branch", "side")
    committed(tmp_path, {"a.py": lines + "x = 1\n"}, name="bob")
    write(tmp_path, {"new/keep": ""})
    git(tmp_path, "mv", "a.py", "new/a.py")
    git(tmp_path, "mv", "b.py", "new/b.py")
    committed(tmp_path, {"c.py": "c = 1\n"}, "move\n\nCo-authored-by: Fay <Fay@x.com>\n", name="cy")
    git(tmp_path, "checkout", "-q", "side")
    committed(tmp_path, {"b.py": lines.replace("line", "word") + "x = 1\n", "s.py": "0\n"}, name="dan")
    git(tmp_path, "checkout", "-q", "main")
    committed(tmp_path, {"s.py": "1\n"}, name="gus")
    try:
        git(tmp_path, "merge", "-q", "side", name="eve")
    except Exception:  # the conflict in s.py, which eve decides
        committed(tmp_path, {"s.py": "2\n"}, "merge", name="eve")
    return tmp_path


def test_authors_through_renames_merges_and_trailers(history):
    found = authors_of(history)
    assert found["new/a.py"] == {f"{name}@x.com" for name in ("ann", "bob", "cy", "fay")}
    assert found["new/b.py"] == {f"{name}@x.com" for name in ("ann", "cy", "fay", "dan", "eve")}
    assert found["s.py"] == {f"{name}@x.com" for name in ("dan", "gus", "eve")}
    assert found["c.py"] == {"cy@x.com", "fay@x.com"}


def test_authors(history):
    found = secrets(history, authors=["BOB@X.com", "dan@x.com"], imports=False)
    assert found.own == {"authors:BOB@X.com": {"new/a.py"}, "authors:dan@x.com": {"new/b.py", "s.py"}}
    assert found.counts[UNCOMMITTED] == 0
    write(history, {"c.py": "c = 2\n"})
    below = secrets(history / "new", authors="all", imports=False)
    assert below.own["authors:bob@x.com"] == {"a.py"}
    assert below.own["authors:cy@x.com"] == {"a.py", "b.py", "keep"}
    assert "authors:gus@x.com" not in below.own
    assert secrets(history, authors=["cy@x.com"]).counts[UNCOMMITTED] == 1


def test_authors_after_mailmap(history):
    committed(history, {".mailmap": "Bob <bob@new.com> <bob@x.com>\n"}, name="ann")
    found = secrets(history, authors=["bob@new.com", "bob@x.com"], imports=False).own
    assert found["authors:bob@new.com"] == found["authors:bob@x.com"] == {"new/a.py"}


def test_a_shallow_clone_is_refused(history, tmp_path):
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{history}", str(tmp_path / "clone"))
    with pytest.raises(InputError, match="shallow clone"):
        secrets(tmp_path / "clone", authors="all")
    assert secrets(tmp_path / "clone", paths=["c.py"]).own == {"paths:c.py": {"c.py"}}


def test_what_is_not_read_still_passes_a_secret_on(tmp_path):
    more = {
        "vendor/glue.py": "import acme.billing\n",
        ".hidden/glue.py": "from vendor import glue\n",
        "use.py": "from vendor import glue\n",
    }
    found = secrets(committed(tmp_path, TREE | more), packages=["acme.billing"])
    assert {"vendor/glue.py", ".hidden/glue.py", "use.py"} <= found.carried["packages:acme.billing"]


def test_the_root_may_be_above_the_data_or_elsewhere(tmp_path):
    committed(tmp_path / "repo", TREE)
    section = Repository(packages=["acme.billing"], root=str(tmp_path / "repo"))
    part = list(read(tmp_path / "repo" / "tests", text="text", unit=None, format="code"))
    found = RepositorySecrets(section, tmp_path / "repo" / "tests").find(part)
    assert [len(mentions) for mentions in found] == [1, 0]
    exported = (
        write(tmp_path, {"dump.jsonl": '{"path": "src/acme/reports.py", "text": "x"}\n'}) / "dump.jsonl"
    )
    rows = list(read(exported, text="text", unit=None))
    assert [len(mentions) for mentions in RepositorySecrets(section, exported).find(rows)] == [1]


def test_documents_that_are_no_files_of_the_code_base(tmp_path):
    committed(tmp_path / "repo", TREE)
    found = secrets(tmp_path / "repo", paths=["*.pem"])
    for row, said in [
        ('{"text": "x"}', "has no field 'path'; secrets.repository needs data.format code"),
        ('{"text": "x", "path": "src/gone.py"}', "src/gone.py is no file of the code base"),
    ]:
        rows = read(write(tmp_path, {"a.jsonl": row}) / "a.jsonl", text="text", unit=None)
        with pytest.raises(InputError, match=said):
            found.find(list(rows))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (
            {"packages": ["acme.biling"]},
            "packages: 'acme.biling' matches no module, did you mean acme.billing?",
        ),
        ({"packages": ["keys"]}, "packages: 'keys' matches no module."),
        ({"paths": ["*.pme"]}, "paths: '*.pme' matches no file, did you mean *.pem?"),
        (
            {"paths": ["/src/acme/biling/"]},
            "paths: '/src/acme/biling/' matches no file, did you mean src/acme/billing/?",
        ),
        ({"paths": ["!a.py"]}, "paths: '!a.py' cannot be used"),
        ({"paths": ["a:b"]}, "paths: 'a:b' cannot be used"),
        ({"paths": ["/"]}, "paths: '/' cannot be used"),
        ({"owners": ["@acme/pya"]}, "owners: '@acme/pya' is nowhere in CODEOWNERS, did you mean @acme/Pay?"),
        ({"authors": ["ana@x.com"]}, "authors: 'ana@x.com' is nowhere in git log, did you mean ann@x.com?"),
        ({"authors": ["zed@x.com"]}, "authors: 'zed@x.com' has no file that is still there."),
        ({"paths": ["a"], "root": "/no/such"}, "root: /no/such is not a folder"),
    ],
)
def test_entries_that_match_nothing(tmp_path, section, said):
    committed(tmp_path, TREE)
    committed(tmp_path, {"zed.py": "x = 1"}, name="zed")
    (tmp_path / "zed.py").unlink()
    committed(tmp_path, {})
    with pytest.raises(InputError) as error:
        secrets(tmp_path, **section)
    assert f"secrets.repository.{said}" in str(error.value)


def test_owners_without_codeowners_and_authors_without_git(tmp_path):
    write(tmp_path, {"a.py": "x"})
    with pytest.raises(InputError, match=r"holds no \.github/CODEOWNERS"):
        secrets(tmp_path, owners="all")
    with pytest.raises(InputError, match="not a git repository"):
        secrets(tmp_path, authors="all")


def test_whether_a_section_names_secrets():
    assert not Repository().names_secrets
    assert Repository(authors="all").names_secrets
