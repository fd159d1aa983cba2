"""Model folders as transformers writes them, with the losses and gradient norms that it computes of
them in float64 (float32 where it does not in float64).

    pip install torch transformers safetensors numpy
    python make.py            # writes the folders, the batches and losses.json
    python make.py check [FOLDER]    # loads exported/, or what else was exported so, see below

    bert/           BertForPreTraining whose decoder is not tied, hidden_act gelu_new
    bert-mlm/       BertForMaskedLM in three shards: relu, one token type, no attention mask, [PAD]
                    within the text, whose row of the word embedding has no gradient
    gpt/            GPT2LMHeadModel whose head is not tied
    bert-batch.safetensors ...    what the losses are of: [B,T], as batch files have them
    losses.json     of each, of bert/ with other activations and gpt/ with other attention: loss, and the norm of all gradients
    exported/       bert/ and gpt/ as `build/bert export --load bert exported/bert` (and gpt) writes
                    them; the tests compare what is exported with these files, byte for byte.
                    `make.py check` proves that from_pretrained takes them whole, that their logits
                    are those of the folders (with --dtype bf16, in a folder bert-bf16: nearly), and
                    that AutoTokenizer puts [CLS] and [SEP] around texts as BERT and GPT need them

The vocabulary in bert/ and gpt/ is written by hand.
"""
import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import (AutoTokenizer, BertConfig, BertForMaskedLM, BertForPreTraining,
                          GPT2Config, GPT2LMHeadModel)

HERE = pathlib.Path(__file__).parent
V, B, T, PAD = 48, 3, 12, 0
ACTIVATIONS = ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"]


def fill(model, seed):
    """Every parameter random, each of its own, and wide enough to matter."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = rng.standard_normal(tuple(p.shape))
            norm = "LayerNorm.weight" in name or ".ln_" in name and name.endswith("weight")
            p.copy_(torch.from_numpy(1 + 0.2 * x if norm else 0.3 * x))
        if hasattr(model, "cls") and not model.config.tie_word_embeddings:
            # One bias under two names, as zeroflow writes it: transformers uses the decoder's.
            model.cls.predictions.bias.copy_(model.cls.predictions.decoder.bias)
    return model


def bert_batch(pads_inside):
    rng = np.random.default_rng(7)
    ids = rng.integers(5, V, (B, T))
    mask = np.ones((B, T), np.int64)
    if pads_inside:
        ids[0, 3] = ids[2, 5] = ids[2, 6] = PAD
    else:
        for b, n in enumerate((T, 9, 6)):
            ids[b, n:], mask[b, n:] = PAD, 0
    labels = np.full((B, T), -100)
    for b, t in ((0, 2), (0, 7), (1, 1), (1, 4), (2, 3)):
        labels[b, t] = rng.integers(5, V)
    return dict(input_ids=ids, attention_mask=mask, labels=labels)


def evaluate(model, batch, dtype=torch.float64):
    model = model.to(dtype).eval()
    model.config._attn_implementation = "eager"
    out = model(**{k: torch.from_numpy(v) for k, v in batch.items()})
    model.zero_grad()
    out.loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return dict(loss=out.loss.item(),
                grad_norm=torch.sqrt(sum((g * g).sum() for g in grads)).item())


def small(**more):
    return dict(vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                intermediate_size=24, max_position_embeddings=16, hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0, **more)


def make():
    losses = {}

    config = BertConfig(**small(tie_word_embeddings=False, hidden_act="gelu_new"))
    model = fill(BertForPreTraining(config), 1)
    model.save_pretrained(HERE / "bert")
    batch = bert_batch(False)
    batch["token_type_ids"] = np.where(np.arange(T) > 4, batch["attention_mask"], 0)
    batch["next_sentence_label"] = np.array([0, 1, 1])
    save_file(batch, HERE / "bert-batch.safetensors")
    losses["bert"] = evaluate(model, batch)
    for act in ACTIVATIONS:
        config = BertConfig.from_pretrained(HERE / "bert", hidden_act=act)
        other = BertForPreTraining.from_pretrained(HERE / "bert", config=config)
        losses[f"bert {act}"] = evaluate(other, batch)
    assert losses["bert"]["loss"] == losses["bert gelu_new"]["loss"]

    config = BertConfig(**small(type_vocab_size=1, hidden_act="relu", pad_token_id=PAD))
    model = fill(BertForMaskedLM(config), 2)
    model.tie_weights()
    model.save_pretrained(HERE / "bert-mlm", max_shard_size="8KB")
    batch = bert_batch(True)
    save_file({k: batch[k].astype(np.int32) for k in ("input_ids", "labels")},
              HERE / "bert-mlm-batch.safetensors")
    losses["bert-mlm"] = evaluate(model, batch)

    config = GPT2Config(vocab_size=V, n_positions=16, n_embd=16, n_layer=2, n_head=2, n_inner=24,
                        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, bos_token_id=3,
                        eos_token_id=3, tie_word_embeddings=False)
    model = fill(GPT2LMHeadModel(config), 3)
    model.save_pretrained(HERE / "gpt")
    batch = bert_batch(False)
    batch["attention_mask"][0, :3] = 0    # on the left as well: nothing there has a label
    batch["labels"] = np.where(batch["attention_mask"] == 1, batch["input_ids"], -100)
    batch["labels"][0, 3] = -100    # its prediction would come from a token that is masked
    save_file(dict(batch, attention_mask=batch["attention_mask"].astype(bool)),
              HERE / "gpt-batch.safetensors")
    losses["gpt"] = evaluate(model, batch)
    for key in ("reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx"):
        other = GPT2LMHeadModel.from_pretrained(HERE / "gpt", attn_implementation="eager",
                                                **{key: True})
        upcast = key == "reorder_and_upcast_attn"    # transformers refuses float64 there
        losses["gpt " + key] = evaluate(other, batch, torch.float32 if upcast else torch.float64)

    (HERE / "losses.json").write_text(json.dumps(losses, indent=1) + "\n")
    for folder in ("bert", "bert-mlm", "gpt"):
        for rest in (HERE / folder).glob("generation_config.json"):
            rest.unlink()
    print(json.dumps(losses, indent=1))


def check(exported):
    torch.manual_seed(0)
    ids = torch.randint(5, V, (2, 9))
    text, words = "The cat saw a DOG.", [10, 11, 12, 13, 15, 5]
    for kind, model_class in (("bert", BertForPreTraining), ("gpt", GPT2LMHeadModel)):
        golden = model_class.from_pretrained(HERE / kind).eval()
        for folder in (exported / kind, exported / f"{kind}-bf16"):
            if not folder.exists():
                continue
            own, info = model_class.from_pretrained(folder, output_loading_info=True)
            assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
            with torch.no_grad():
                a, b = own.eval()(ids)[0], golden(ids)[0]
            if a.dtype == torch.float32:
                assert torch.equal(a, b)
            else:
                assert (a.float() - b).abs().max() < 0.02 * b.abs().max()
            print(folder.name, a.dtype, "is loaded whole; logits", "equal" if folder.name == kind
                  else "near")
        tokenizer = AutoTokenizer.from_pretrained(exported / kind)
        if kind == "bert":
            assert tokenizer(text)["input_ids"] == [2, *words, 3]
            pair = tokenizer(text, "a dog")
            assert pair["input_ids"] == [2, *words, 3, 13, 14, 3]
            assert pair["token_type_ids"] == [0] * 8 + [1] * 3
            assert tokenizer.mask_token_id == 4 and tokenizer.pad_token_id == PAD
        else:
            assert tokenizer(text)["input_ids"] == [3, *words]
            assert tokenizer.bos_token_id == tokenizer.eos_token_id == own.config.eos_token_id == 3


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        check(pathlib.Path(sys.argv[2]) if sys.argv[2:] else HERE / "exported")
    else:
        make()
