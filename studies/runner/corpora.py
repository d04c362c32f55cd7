"""Public text, cut into documents for the studies, and small models to fine-tune on it."""

import json
import lzma
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from confide.utils.errors import InputError
from confide.utils.files import whole_file
from studies.runner.made import made

Items = Iterable[dict[str, Any]]


def _opened(path: Path) -> IO[str]:
    if not path.exists():
        raise InputError(f"{path}: no such file; give the folder that holds the public data sets")
    return lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else open(path, encoding="utf-8")


POSTS = {
    "20newsgroups": "20newsgroups/20_newsgroups.jsonl.xz",
    "enron-sent": "enron-sent/enron_sent.jsonl.xz",
}


def posts(data: Path, name: str, held_out: float) -> dict[str, Any]:
    """`data` of a config: what many senders wrote, whose names are the units, in rows of 64 tokens.

    Args:
        held_out: the share of senders.

    Raises:
        InputError: the file is not there.
    """
    source = data / POSTS[name]
    if not source.exists():
        raise InputError(f"{source}: no such file; give the folder that holds {name}")
    return {
        "train": str(source),
        "text": "{subject}\n{body}",
        "unit": "from",
        "strip_quotes": True,
        "eval": held_out,
        "max_length": 64,
        "duplicates": False,
    }


def wikitext(data: Path, split: str) -> Iterator[dict[str, str]]:
    """Paragraphs of WikiText-2, without headings."""
    with _opened(data / f"wikitext-2/wiki.{split}.tokens.xz") as lines:
        for line in lines:
            text = line.strip()
            if text and not text.startswith("="):
                yield {"text": text}


def dialogues(data: Path, split: str) -> Iterator[dict[str, Any]]:
    """Dialogues of the Schema-Guided Dialogue data set, with their annotated slots."""
    with _opened(data / f"sgd-dialogues/{split}.jsonl.xz") as lines:
        yield from map(json.loads, lines)


def written(items: Items, path: Path, most: int | None = None) -> Path:
    """The first `most` of some documents, as JSON lines; left alone if it is there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as building, open(building, "w", encoding="utf-8") as lines:
            for item in islice(items, most):
                lines.write(json.dumps(item) + "\n")
    return path


def stories(data: Path, folder: Path) -> Path:
    """stories260K (a Llama of 260,032 weights that has read children's stories) with a tokenizer of its 512 pieces.

    `data`'s neighbour `models` holds its weights, and the pieces as a list.
    """
    source = data.parent / "models/stories260K/hf"
    if not source.is_dir():
        raise InputError(f"{source}: no such folder; the models lie beside the folder of data sets")
    return made(folder, lambda building: _with_tokenizer(source, building))


def _with_tokenizer(source: Path, folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, normalizers
    from tokenizers.models import BPE

    shutil.copytree(source, folder, dirs_exist_ok=True)
    folder.chmod(0o755)
    pieces = json.loads((source / "tok512_pieces.json").read_text("utf-8"))
    plain = {"\n<s>\n": "<s>", "\n</s>\n": "</s>"}
    vocabulary = {plain.get(p["piece"], p["piece"]).replace(" ", "▁"): p["id"] for p in pieces}
    first = 259  # after <unk>, <s>, </s> and 256 bytes
    merges = [
        (piece[:i], piece[i:])
        for piece in sorted(vocabulary, key=vocabulary.__getitem__)
        if vocabulary[piece] >= first
        for i in range(1, len(piece))
        if piece[:i] in vocabulary and piece[i:] in vocabulary
    ]
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


def roberta(folder: Path, layers: int = 4) -> Path:
    """The config.json of a small model shaped as RoBERTa, 128 wide, with the bundled tokenizer beside it.

    Each text then begins with a token of its own, from whose state such a classifier reads the class.
    """
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    from confide.models.names import BUNDLED, location

    def write(building: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(location(BUNDLED))
        tokenizer.save_pretrained(building)
        inner = Tokenizer.from_file(str(building / "tokenizer.json"))
        first, number = tokenizer.eos_token, tokenizer.eos_token_id
        inner.post_processor = TemplateProcessing(single=f"{first} $A", special_tokens=[(first, number)])
        inner.save(str(building / "tokenizer.json"))
        settings = {
            "model_type": "roberta",
            "architectures": ["RobertaForMaskedLM"],
            "vocab_size": len(tokenizer),
            "hidden_size": 128,
            "num_hidden_layers": layers,
            "num_attention_heads": layers,
            "intermediate_size": 512,
            "max_position_embeddings": 128 + tokenizer.pad_token_id + 1,
            "type_vocab_size": 1,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": number,
            "eos_token_id": number,
        }
        (building / "config.json").write_text(json.dumps(settings), "utf-8")

    return made(folder, write) / "config.json"
