"""Source code as records: what is read, what is passed over and counted, and what git says is there."""

import subprocess

import pytest

from confide.data.readers import Counts, read, records
from confide.data.readers.code import code_records, language_of, source_files
from confide.utils.errors import InputError


def write(folder, files):
    for path, content in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def git(folder, *arguments, name="ann"):
    identity = ("-c", f"user.name={name}", "-c", f"user.email={name}@x.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def committed(folder, files, message="change", name="ann"):
    write(folder, files)
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-q", "-m", message, name=name)
    return folder


TREE = {
    "acme/core.py": "x = 1\n",
    "acme/view.tsx": "let x\n",
    "bin/tool": "#!/usr/bin/env python3\nx = 2\n",
    "notes.md": "# notes\n",
    "key.pem": "-----\n",
    "Makefile": "all:\n",
    ".github/x.yml": "a: 1\n",
    ".env": "KEY=1\n",
    "web/node_modules/a/index.js": "x\n",
    "vendor/b.go": "x\n",
    "__pycache__/c.py": "x\n",
    "poetry.lock": "x\n",
    "package-lock.json": "{}\n",
    "logo.png": b"\x89PNG\x00\x01",
    "big.sql": b"x" * ((1 << 20) + 1),
    "words.json": "1" * ((1 << 16) + 1),
}
READ = {
    "Makefile": "make",
    "acme/core.py": "python",
    "acme/view.tsx": "typescript",
    "bin/tool": "python",
    "key.pem": "other",
    "notes.md": "markdown",
}


def test_a_record_a_file_and_the_rest_counted(tmp_path):
    committed(tmp_path, TREE)
    (tmp_path / "link.py").symlink_to("acme/core.py")
    git(tmp_path, "add", "link.py")
    counts = Counts()
    found = list(records(tmp_path, "code", counts=counts))
    assert {record.fields["path"]: record.fields["language"] for record in found} == READ
    assert [record.fields["path"] for record in found] == sorted(READ)
    assert found[1].fields["text"] == "x = 1\n"
    assert found[1].where == str(tmp_path / "acme/core.py")
    assert list(counts.values()) == [5, 2, 1, 1, 1, 1]


def test_outside_a_work_tree_all_files_but_hidden_and_vendored_ones(tmp_path):
    write(tmp_path, TREE)
    assert [record.fields["path"] for record in records(tmp_path, "code")] == sorted(READ)


def test_only_what_git_tracks_is_read(tmp_path):
    committed(tmp_path, {"a.py": "1", "sub/b.py": "2", ".gitignore": "local.py\n", "gone.py": "3"})
    write(tmp_path, {"local.py": "KEY = 1", "sub/new.py": "4"})
    (tmp_path / "gone.py").unlink()
    assert [record.fields["path"] for record in records(tmp_path, "code")] == ["a.py", "sub/b.py"]
    assert [record.fields["path"] for record in records(tmp_path / "sub", "code")] == ["b.py"]


def test_a_folder_that_its_work_tree_does_not_track_is_read_by_itself(tmp_path):
    committed(tmp_path, {"a.py": "1", ".gitignore": "data/\n"})
    write(tmp_path, {"data/dump/b.py": "2"})
    assert source_files(tmp_path / "data" / "dump") == ["b.py"]


def test_another_repository_in_the_environment_changes_nothing(tmp_path, monkeypatch):
    committed(tmp_path / "a", {"a.py": "1"})
    committed(tmp_path / "b", {"b.py": "1"})
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "a" / ".git"))
    assert source_files(tmp_path / "b") == ["b.py"]


def test_names_of_all_kinds(tmp_path):
    names = ["ä b.py", 'quo"te.py', "new\nline.py", "日本.py"]
    committed(tmp_path, dict.fromkeys(names, "x = 1\n"))
    assert sorted(record.fields["path"] for record in records(tmp_path, "code")) == sorted(names)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("é = 1".encode(), "é = 1"),
        (b"\xef\xbb\xbfx", "x"),
        (b"# caf\xe9", "# café"),
        ("x = 1".encode("utf-16"), "x = 1"),
    ],
)
def test_encodings(tmp_path, content, text):
    write(tmp_path, {"a.py": content})
    assert [record.fields["text"] for record in code_records(tmp_path)] == [text]


def test_auto_is_code_for_a_work_tree_with_programs_only(tmp_path):
    committed(tmp_path / "code", {"a.py": "x = 1", "README.md": "about"})
    committed(tmp_path / "data", {"a.jsonl": '{"text": "tea"}\n', "README.md": "about"})
    code = [(d.text, d.fields["language"]) for d in read(tmp_path / "code", text="text", unit=None)]
    assert code == [("about", "markdown"), ("x = 1", "python")]
    assert [d.text for d in read(tmp_path / "data", text="text", unit=None)] == ["tea"]


def test_the_path_may_stand_in_the_text(tmp_path):
    write(tmp_path, {"a/b.py": "x = 1"})
    found = read(tmp_path, text="# {path}\n{text}", unit="path", format="code")
    assert [(d.text, d.units) for d in found] == [("# a/b.py\nx = 1", ("a/b.py",))]


@pytest.mark.parametrize(
    ("path", "content", "language"),
    [
        ("a.PY", b"", "python"),
        ("a/b.d.ts", b"", "typescript"),
        ("run", b"#!/bin/bash\n", "shell"),
        ("run", b"#!/usr/bin/env node\n", "javascript"),
        ("run", b"python", "other"),
        ("SConstruct", b"", "python"),
        ("a.unheard", b"", "other"),
    ],
)
def test_languages(path, content, language):
    assert language_of(path, content) == language


def test_bad_folders(tmp_path):
    write(tmp_path / "none", {"a.png": b"\x00"})
    write(tmp_path / "file", {"a.py": "x"})
    git(write(tmp_path / "new", {"a.py": "x"}), "init", "-q")
    (tmp_path / "broken" / ".git").mkdir(parents=True)
    for source, said in [
        ("none", "holds no source files"),
        ("file/a.py", "give the folder"),
        ("file/b.py", "no such file"),
        ("new", "git tracks no files here"),
        ("broken", "git ls-files failed"),
    ]:
        with pytest.raises(InputError, match=said):
            list(records(tmp_path / source, "code"))


def test_a_work_tree_without_git(tmp_path, monkeypatch):
    committed(tmp_path, {"a.py": "x"})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="git is not installed"):
        records(tmp_path, "code")


def test_a_repository_runs_no_program_of_its_own(tmp_path):
    committed(tmp_path, {"a.py": "x"})
    trap = write(tmp_path, {"trap.sh": f"#!/bin/sh\ntouch {tmp_path}/sprung\n"}) / "trap.sh"
    trap.chmod(0o755)
    git(tmp_path, "config", "core.fsmonitor", str(trap))
    assert source_files(tmp_path) == ["a.py"]
    assert not (tmp_path / "sprung").exists()
