"""The golden of the held-out evaluation: what transformers' model makes of the batches that
`session_score` draws, without dropout.

    build/tests --bless bert_evaluation_is_pytorchs    # writes held_out.safetensors: the batches
    python held_out.py                                 # writes held_out.json

    held_out.json   of make.py's model after twenty steps of AdamW, in f64: mlm_loss, the mean over all
                    labels of all batches; mlm_accuracy, the share of them that the largest logit
                    has; nsp_loss, the mean over all pairs; labelled, the number of labels
"""
import json
import pathlib

import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertForPreTraining

HERE = pathlib.Path(__file__).parent


def main():
    config = BertConfig.from_pretrained(HERE / "config.json", hidden_dropout_prob=0.2,
                                        attention_probs_dropout_prob=0.3)
    config._attn_implementation = "eager"
    model = BertForPreTraining(config)
    model.load_state_dict(load_file(HERE / "adamw20_params.safetensors"), strict=False)
    model.tie_weights()
    model = model.double().eval()
    x = {name: value.flatten(0, 1).long() for name, value in
         load_file(HERE / "held_out.safetensors").items() if name != "next_sentence_label"}
    pairs = load_file(HERE / "held_out.safetensors")["next_sentence_label"].flatten().long()
    labels = x.pop("labels")
    with torch.no_grad():
        out = model(**x)
    ce = torch.nn.functional.cross_entropy
    there = labels != -100
    right = out.prediction_logits.argmax(-1) == labels
    score = dict(mlm_loss=ce(out.prediction_logits.flatten(0, 1), labels.flatten()).item(),
                 mlm_accuracy=(right & there).sum().item() / there.sum().item(),
                 nsp_loss=ce(out.seq_relationship_logits, pairs).item(),
                 labelled=there.sum().item())
    (HERE / "held_out.json").write_text(json.dumps(score, indent=1) + "\n")


if __name__ == "__main__":
    main()
