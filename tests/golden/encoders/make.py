"""Relatives of BERT as transformers writes them, and what it computes of them in float64.

    pip install torch transformers safetensors numpy
    python make.py            # writes the folders and values.safetensors (PEFT is needed too)
    python make.py check FOLDER    # FOLDER/CASE exported by build/bert is taken whole, strict=True

    CASE/           ...ForMaskedLM, and as CASE-labels/ ...ForSequenceClassification
    batch.safetensors     input_ids, attention_mask (padding on the right), labels, text_labels
    values.safetensors    of each folder FOLDER.logits (of labelled positions, or of texts), FOLDER.loss
                          and FOLDER.norm, of all gradients; the losses of 20 steps of AdamW
                          (FOLDER.losses), and of those with labels FOLDER.after.NAME of one parameter

    adapter/        of PEFT, with 3 labels, over roberta/, without names of labels: adapter.logits

    roberta         types 1, relu     roberta-labels     3 labels with names, types 2
    distilbert      gelu              distilbert-labels  2 labels
    modernbert      3 layers, a window of 2 tokens on each side; modernbert-labels: biases, the mean, a number
    camembert       roberta's         bert-labels        3 labels, types 2; bert-number: regression
"""
import json
import pathlib
import sys

import numpy as np
import peft
import torch
from safetensors.numpy import save_file
import transformers as tf
from transformers.models.modernbert import modeling_modernbert

HERE = pathlib.Path(__file__).parent
V, B, T, PAD = 48, 4, 12, 1
SIZES = dict(vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, pad_token_id=PAD)
BERT = dict(SIZES, intermediate_size=24, max_position_embeddings=20, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0)
DISTIL = dict(vocab_size=V, dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=16,
              dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, pad_token_id=PAD)
MODERN = dict(SIZES, num_hidden_layers=4, intermediate_size=12, max_position_embeddings=16,
              local_attention=4, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2)
NAMES = {0: "bad, or worse", 1: "so \"so\"", 2: "gut é"}


def labels(names):
    return dict(id2label=names, label2id={v: k for k, v in names.items()})


NUMBER = dict(labels({0: "LABEL_0"}), problem_type="regression")
MORE = dict(attention_bias=True, mlp_bias=True, norm_bias=True, classifier_bias=True,
            decoder_bias=False, classifier_activation="silu", classifier_pooling="mean",
            hidden_activation="gelu_new", global_attn_every_n_layers=2)
CASES = {
    "roberta": tf.RobertaForMaskedLM(tf.RobertaConfig(**BERT, type_vocab_size=1, hidden_act="relu",
                                                      layer_norm_eps=1e-5)),
    "roberta-labels": tf.RobertaForSequenceClassification(
        tf.RobertaConfig(**BERT, **labels(NAMES), classifier_dropout=0.0)),
    "camembert": tf.CamembertForMaskedLM(tf.CamembertConfig(**BERT, tie_word_embeddings=False)),
    "distilbert": tf.DistilBertForMaskedLM(tf.DistilBertConfig(**DISTIL)),
    "distilbert-labels": tf.DistilBertForSequenceClassification(
        tf.DistilBertConfig(**DISTIL, **labels({0: "no", 1: "yes"}))),
    "modernbert": tf.ModernBertForMaskedLM(tf.ModernBertConfig(**MODERN)),
    "modernbert-labels": tf.ModernBertForSequenceClassification(
        tf.ModernBertConfig(**MODERN, **MORE, **NUMBER)),
    "bert-labels": tf.BertForSequenceClassification(tf.BertConfig(**BERT, **labels(NAMES))),
    "bert-number": tf.BertForSequenceClassification(tf.BertConfig(**BERT, **NUMBER)),
}


def attend(module, q, k, v, attention_mask, scaling, dropout=0.0, **kwargs):
    """ModernBERT's eager attention, whose softmax in float32 makes NaN of float64's least number where a
    token of padding has padding alone in its window."""
    scores = torch.matmul(q, k.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask.clamp(min=-1e30)
    return torch.matmul(scores.softmax(-1), v).transpose(1, 2).contiguous(), None


modeling_modernbert.eager_attention_forward = attend


def fill(model, seed):
    """Every parameter random, each of its own, and wide enough to matter; as f32 has them."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = rng.standard_normal(tuple(p.shape)).astype(np.float32)
            norm = "norm" in name.lower() and name.endswith("weight")
            p.copy_(torch.from_numpy(1 + 0.2 * x if norm else 0.3 * x))
        if hasattr(model, "lm_head"):  # one bias under two names, of which the decoder's counts
            model.lm_head.bias.copy_(model.lm_head.decoder.bias)
    return model


def batch():
    rng = np.random.default_rng(7)
    ids, mask = rng.integers(5, V, (B, T)), np.ones((B, T), np.int64)
    for b, n in enumerate((T, 9, 6, 2)):
        ids[b, n:], mask[b, n:] = PAD, 0
    at = np.full((B, T), -100)
    for b, t in ((0, 2), (0, 7), (1, 1), (1, 4), (2, 3), (3, 1)):
        at[b, t] = rng.integers(5, V)
    return dict(input_ids=ids, attention_mask=mask, labels=at)


def evaluate(name, model, data, out):
    model = model.double().eval()
    model.config._attn_implementation = "eager"
    inputs = {k: torch.from_numpy(data[k]) for k in ("input_ids", "attention_mask")}
    of_texts = torch.tensor([1, 0, 1, 1]) if model.config.num_labels < 3 else torch.tensor([2, 0, 1, 2])
    if getattr(model.config, "problem_type", None) == "regression":
        of_texts = torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.float64)
    texts = name.endswith(("labels", "number"))
    inputs["labels"] = of_texts if texts else torch.from_numpy(data["labels"])
    result = model(**inputs)
    model.zero_grad()
    result.loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    logits = result.logits if texts else result.logits[torch.from_numpy(data["labels"]) >= 0]
    out[name + ".logits"] = logits.detach().numpy().astype(np.float32)
    out[name + ".loss"] = np.array(result.loss.item())
    out[name + ".norm"] = np.array(torch.sqrt(sum((g * g).sum() for g in grads)).item())
    matrices = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=0.01),
                                   dict(params=rest, weight_decay=0)], lr=1e-3, eps=1e-3)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    out[name + ".losses"] = np.array(losses)
    if texts:
        last, p = list(model.named_parameters())[-2]
        out[name + ".text_labels"], out[name + ".after." + last] = of_texts.numpy(), p.detach().numpy()


def make_adapter(data, out):
    torch.manual_seed(3)
    model = tf.RobertaForSequenceClassification.from_pretrained(HERE / "roberta", num_labels=3,
                                                                attn_implementation="eager")
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=3,
                                                       target_modules=["query", "dense"]))
    rng = np.random.default_rng(5)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.copy_(torch.from_numpy(0.3 * rng.standard_normal(tuple(p.shape))))
    model.peft_config["default"].base_model_name_or_path = "roberta"
    model.save_pretrained(HERE / "adapter")
    (HERE / "adapter" / "README.md").unlink()
    inputs = {k: torch.from_numpy(data[k]) for k in ("input_ids", "attention_mask")}
    out["adapter.logits"] = model.double().eval()(**inputs).logits.detach().numpy().astype(np.float32)


def make():
    out, data = {}, batch()
    save_file({k: v.astype(np.int32) if k != "attention_mask" else v.astype(bool) for k, v in data.items()},
              HERE / "batch.safetensors")
    for seed, (name, model) in enumerate(CASES.items()):
        fill(model, seed)
        model.save_pretrained(HERE / name)
        for rest in (HERE / name).glob("generation_config.json"):
            rest.unlink()
        evaluate(name, model, data, out)
        print(name, out[name + ".loss"])
    make_adapter(data, out)
    save_file(out, HERE / "values.safetensors")


def check(folder):
    data = batch()
    inputs = {k: torch.from_numpy(data[k]) for k in ("input_ids", "attention_mask")}
    for name, model in CASES.items():
        kind = type(model)
        other, info = kind.from_pretrained(folder / name, output_loading_info=True)
        assert not any(info.values()), (name, info)
        kind(other.config).load_state_dict(other.state_dict(), strict=True)
        golden = kind.from_pretrained(HERE / name)
        a, b = (m.double().eval()(**inputs).logits for m in (golden, other))
        assert torch.equal(a, b), name
        assert golden.config.id2label == other.config.id2label or not name.endswith("labels"), name
        own, read = golden.config.to_dict(), other.config.to_dict()
        print(name, {k: (own[k], read.get(k)) for k in own if own[k] != read.get(k)})


if __name__ == "__main__":
    check(pathlib.Path(sys.argv[2])) if sys.argv[1:2] == ["check"] else make()
