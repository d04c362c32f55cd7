"""Pretrain the bundled base model on WikiText-2.

    python scripts/pretrain_base.py wiki.train.tokens[.xz] wiki.valid.tokens[.xz] OUT_FOLDER

The result is what `model: bundled` loads: a GPT-2 of 4 layers and 256 dimensions with an 8,192-entry
byte-level BPE, float16 safetensors. WikiText-2 comes word-tokenised, so the text is first put back
into ordinary English. Its `<unk>` words become the `<mask>` token, and no loss is taken on them: the
model learns to read around a masked word and never to write one.
"""

import argparse
import json
import lzma
import math
import re
import time
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

END, PAD, MASK = "<|endoftext|>", "<|pad|>", "<mask>"
VOCABULARY, CONTEXT = 8192, 256


def read(path: Path) -> list[str]:
    """Articles of a WikiText file, in ordinary English."""
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as stream:
        lines = [line.strip() for line in stream]
    articles: list[list[str]] = []
    for line in lines:
        if re.fullmatch(r"= [^=].*[^=] =", line):
            articles.append([])
        if line and articles:
            articles[-1].append(detokenise(line))
    return ["\n".join(article) for article in articles]


def detokenise(line: str) -> str:
    heading = re.fullmatch(r"((?:= )+)(.*?)((?: =)+)", line)
    if heading:
        line = heading.group(2)
    line = line.replace("<unk>", MASK)
    line = re.sub(r" @([-,.])@ ", r"\1", line)
    line = re.sub(r" ([,.;:!?%)\]])", r"\1", line)
    line = re.sub(r"([(\[$£]) ", r"\1", line)
    line = re.sub(r" ('s|'t|'re|'ve|'d|'ll|'m)\b", r"\1", line)
    line = re.sub(r" n't\b", "n't", line)
    line = re.sub(r"\" ([^\"]*?) \"", r'"\1"', line)
    return re.sub(r"(\w) '( |$)", r"\1'\2", line)


def train_tokenizer(articles: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    # Digits one by one: every number is a path of equal length, so no number is cheaper than another.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, PAD, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((a.replace(MASK, "") for a in articles), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=PAD,
        mask_token=MASK,
        model_max_length=CONTEXT,
    )


def encode(articles: list[str], tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    ids: list[int] = []
    for start in range(0, len(articles), 64):
        for row in tokenizer(articles[start : start + 64])["input_ids"]:
            ids.append(tokenizer.eos_token_id)
            ids.extend(row)
    return torch.tensor(ids)


def batch_loss(model, rows: torch.Tensor, mask_id: int) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=rows[:, :-1]).logits
    labels = rows[:, 1:].masked_fill(rows[:, 1:] == mask_id, -100)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


@torch.no_grad()
def validate(model, stream: torch.Tensor, mask_id: int) -> float:
    model.eval()
    rows = stream[: len(stream) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    losses = [batch_loss(model, part, mask_id).item() * len(part) for part in rows.split(16)]
    model.train()
    return sum(losses) / len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", type=Path)
    parser.add_argument("valid", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    articles = read(args.train)
    tokenizer = train_tokenizer(articles)
    train, valid = encode(articles, tokenizer), encode(read(args.valid), tokenizer)
    mask_id = tokenizer.mask_token_id
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=CONTEXT,
        n_embd=256,
        n_layer=4,
        n_head=4,
        activation_function="gelu_pytorch_tanh",  # GPT-2's own function, fused
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = GPT2LMHeadModel(config)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{len(articles)} articles, {len(train):,} tokens, {parameters:,} parameters", flush=True)

    decay = [p for p in model.parameters() if p.dim() > 1]
    flat = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}],
        lr=args.learning_rate,
        betas=(0.9, 0.95),
    )
    per_epoch = len(train) // ((CONTEXT + 1) * args.batch)
    steps, warmup, step, began = per_epoch * args.epochs, 100, 0, time.time()
    for epoch in range(args.epochs):
        # Another cut of the stream each epoch, so that the model does not see the same windows again.
        offset = int(torch.randint(CONTEXT, ()))
        rows = train[offset:]
        rows = rows[: len(rows) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
        order = torch.randperm(len(rows))[: per_epoch * args.batch]
        for part in order.split(args.batch):
            share = step / steps
            scale = min((step + 1) / warmup, 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * share)))
            for group in optimizer.param_groups:
                group["lr"] = args.learning_rate * scale
            loss = batch_loss(model, rows[part], mask_id)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step % 100 == 0:
                rate = (time.time() - began) / step
                print(f"{step}/{steps} loss {loss.item():.3f} {rate:.2f} s/step", flush=True)
        held_out = validate(model, valid, mask_id)
        print(f"epoch {epoch + 1}: validation perplexity {math.exp(held_out):.1f}", flush=True)
        save(model, tokenizer, args, epoch + 1, held_out)


def save(model, tokenizer, args, epochs: int, held_out: float) -> None:
    half = GPT2LMHeadModel(model.config).half()
    half.load_state_dict(model.state_dict())
    half.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    facts = {
        "validation_perplexity": round(math.exp(held_out), 2),
        "epochs": epochs,
        "batch": args.batch,
        "learning_rate": args.learning_rate,
        "seed": args.seed,
    }
    (args.out / "pretraining.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
