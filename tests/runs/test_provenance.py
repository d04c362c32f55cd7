"""The version of the code, and the commit that it names."""

import subprocess
from pathlib import PurePosixPath

from scripts import commit_of

from confide.runs.provenance import code_version, digest_of


def git(root, *arguments):
    name = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", str(root), *name, *arguments], check=True, capture_output=True)


def test_a_version_names_the_commit_whose_code_it_is(tmp_path, capsys):
    package = tmp_path / "src/confide/deeper"
    package.mkdir(parents=True)
    git(tmp_path, "init", "-q")
    digests = []
    for text in ("one = 1\n", "one = 2\n"):
        (package / "a.py").write_text(text)
        (package / "notes.txt").write_text(text)  # no source file
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-qm", f"with {text.strip()}")
        digests.append(digest_of({PurePosixPath("deeper/a.py"): text.encode()}))
    assert [commit_of.digest(each, tmp_path) for each in commit_of.commits(tmp_path)] == digests[::-1]
    assert commit_of.main(f"0.1.0+{digests[0]}", tmp_path) == 0
    assert "with one = 1" in capsys.readouterr().out
    assert commit_of.main("0.1.0+00000000", tmp_path) == 1
    assert "no commit has the code" in capsys.readouterr().out


def test_any_source_file_changes_the_version():
    assert code_version().rpartition("+")[2] != digest_of({PurePosixPath("a.py"): b""})
    assert digest_of({PurePosixPath("a.py"): b"1"}) != digest_of({PurePosixPath("b.py"): b"1"})
