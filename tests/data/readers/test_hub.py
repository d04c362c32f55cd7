"""A data set in the hub's format is read row by row in the order of its shards: nothing is prepared on disk first."""

import datasets
import pytest

from confide.data.readers import records
from confide.utils.errors import InputError
from tests.data.readers.test_readers import as_jsonl, as_parquet

CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: shards/train-*.{ending}
  - split: test
    path: shards/test-*.{ending}
---
"""


@pytest.fixture(params=["parquet", "jsonl"])
def dataset(request, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    (folder / "shards").mkdir(parents=True)
    (folder / "README.md").write_text(CARD.format(ending=request.param))
    write = {"parquet": as_parquet, "jsonl": as_jsonl}[request.param]
    for split, shard, rows in (("train", 1, "cd"), ("train", 0, "ab"), ("test", 0, "e")):
        content = write([{"body": each, "user": "ann"} for each in rows])
        (folder / "shards" / f"{split}-0000{shard}.{request.param}").write_bytes(content)
    return folder


def test_rows_of_a_split_come_in_order_and_are_not_copied(dataset):
    found = list(records(dataset, "hub"))
    assert [record.fields["body"] for record in found] == ["a", "b", "c", "d"]
    assert [record.where for record in found][-1] == f"{dataset} row 4"
    assert [record.fields["body"] for record in records(dataset, "hub", "test")] == ["e"]
    assert not list((dataset.parent / "cache").rglob("*.arrow"))


def test_the_first_row_is_there_before_the_last_shard_is_read(dataset):
    (last,) = (dataset / "shards").glob("train-00001.*")
    last.write_bytes(b"PAR1 not a shard")
    found = records(dataset, "hub")
    assert [next(found).fields["body"] for _ in range(2)] == ["a", "b"]
    with pytest.raises(InputError, match=r"set: split 'train' breaks off after row 2"):
        next(found)


def test_a_shard_of_other_types_is_refused_and_no_value_of_it_is_shown(tmp_path, capfd):
    """Columns get the types of the first shard, and pyarrow's message would hold the value that does not fit."""
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train-00000.parquet").write_bytes(as_parquet([{"body": "a", "user": 1}]))
    (folder / "train-00001.parquet").write_bytes(as_parquet([{"body": "b", "user": "Jane Roe"}]))
    with pytest.raises(InputError, match="breaks off after row 1") as caught:
        list(records(folder, "hub"))
    assert "same columns and types" in str(caught.value)
    told = capfd.readouterr()
    assert "Jane Roe" not in str(caught.value) + told.out + told.err
