"""An iteration of PPO in float64: the numbers of a batch of answers, the losses and gradients of actor
and critic, and twenty steps of both; and of the losses of GRPO, by the code of TRL's GRPOTrainer.

    pip install torch transformers trl safetensors numpy
    python make.py

    ppo.safetensors    I32 "ids", "labels" [5,9]; F64 of f32 numbers: "score" [5], "old", "reference",
                       "old_values" [5,9]; F64 results: "reward", "advantage", "returns" [5,9], the last
                       of KL_REWARD, CLIP, GAMMA and LAMBDA; "beta", that of the next iteration;
                       "explained", the share of the returns' variance;
                       "actor.loss", "critic.loss" and, F32 of f64, the gradients "actor/NAME" and
                       "critic/NAME"; "actor.text_loss" and "text/NAME", the same with the loss of
                       "text_ids", "text_labels" [2,9] added PTX times;
                       "actor.losses", "critic.losses" [20], before each step of AdamW; "CASE.loss",
                       "CASE.losses" and the gradients "CASE/NAME" of the actor with a loss of GRPO, CASE
                       being one of those below; of models of other families "FAMILY.losses" of the
                       case grpo_kl, with "FAMILY.old" and "FAMILY.reference" [5,9]

The actor is ../llm/llama2, the critic ../reward/llama with the score of every position as its value.
The code follows TRL's PPOTrainer and DeepSpeed-Chat, line by line, with two differences that both have
as defects: the score belongs to the last token of an answer, which may be its end, and whitening takes
all tokens of the batch. What is behind an answer has other numbers here, which must not matter.

AdamW: lr 1e-3, betas 0.9 and 0.999, eps 1e-8, no weight decay; the norm is clipped at 1.
"""
import collections
import pathlib
import types

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from trl import GRPOTrainer

HERE = pathlib.Path(__file__).parent
KL_REWARD, CLIP, GAMMA, LAMBDA, EPS, VALUE_CLIP, PTX, STEPS = 0.1, 1.5, 0.97, 0.9, 0.2, 0.2, 0.7, 20
CAP, LONGEST = 1.2, 8  # of cispo; tokens that an answer may have, of dr_grpo
KL_TARGET, HORIZON = 0.05, 40
PROMPT, ANSWER, T = [3, 1, 4, 2, 6], [4, 8, 1, 2, 3], 9  # tokens of prompts and of answers
torch.set_default_dtype(torch.float64)
rng = np.random.default_rng(7)


def f32(x):
    return torch.from_numpy(np.asarray(x, dtype=np.float32).astype(np.float64))


ids = torch.from_numpy(rng.integers(3, 37, (5, T)))
labels = torch.full((5, T), -100)
for i, (p, n) in enumerate(zip(PROMPT, ANSWER)):
    labels[i, p - 1 : p - 1 + n] = ids[i, p : p + n] if p + n <= T else torch.cat(
        [ids[i, p:], torch.from_numpy(rng.integers(3, 37, p + n - T))])
mask = labels != -100
text = torch.from_numpy(rng.integers(3, 37, (2, T + 1)))
score = f32(rng.normal(0, 1.5, 5))

actor = AutoModelForCausalLM.from_pretrained(HERE.parent / "llm" / "llama2", dtype=torch.float64)
critic = AutoModelForSequenceClassification.from_pretrained(HERE.parent / "reward" / "llama",
                                                            dtype=torch.float64)


def logp_of():
    logits = actor(input_ids=ids).logits
    return logits.log_softmax(-1).gather(2, labels.clamp(0)[:, :, None])[:, :, 0]


def values_of():
    return critic.score(critic.model(input_ids=ids).last_hidden_state)[:, :, 0]


with torch.no_grad():
    now, values = logp_of(), values_of()
old = f32(now + rng.normal(0, 0.25, (5, T)))
reference = f32(now + rng.normal(0, 0.4, (5, T)))
old_values = f32(values + rng.normal(0, 0.2, (5, T)))

# What an iteration learns from its answers.
reward = -KL_REWARD * (old - reference)
for i in range(5):
    end = int(mask[i].nonzero().max())
    reward[i, end] += score[i].clamp(-CLIP, CLIP)
reward[~mask] = 0
advantage, returns = torch.zeros(5, T), torch.zeros(5, T)
for i in range(5):
    later, after = 0.0, 0.0
    for t in reversed(mask[i].nonzero()[:, 0].tolist()):
        delta = reward[i, t] + GAMMA * after - old_values[i, t]
        later = delta + GAMMA * LAMBDA * later
        after = old_values[i, t]
        advantage[i, t], returns[i, t] = later, later + after
a, r, v = advantage[mask], returns[mask], old_values[mask]
advantage[mask] = (a - a.mean()) / (a.var() + 1e-8).sqrt()
kl = (old - reference)[mask].mean()
error = torch.clamp(kl / KL_TARGET - 1, -0.2, 0.2)
out = {"ids": ids, "labels": labels, "text_ids": text[:, :-1], "text_labels": text[:, 1:]}
out = {k: x.numpy().astype(np.int32) for k, x in out.items()}
numbers = {"score": score, "old": old, "reference": reference, "old_values": old_values,
           "reward": reward, "advantage": advantage, "returns": returns,
           "beta": KL_REWARD * (1 + error * 5 / HORIZON), "explained": 1 - (r - v).var() / r.var()}

# In the program these are f32.
A, R = f32(advantage.numpy()), f32(returns.numpy())


def masked_mean(x):
    return (x * mask).sum() / mask.sum()


def actor_loss():
    ratio = (logp_of() - old).exp()
    return masked_mean(torch.max(-A * ratio, -A * torch.clamp(ratio, 1 - EPS, 1 + EPS)))


def text_loss():
    logits = actor(input_ids=text[:, :-1]).logits
    return F.cross_entropy(logits.reshape(-1, 37), text[:, 1:].reshape(-1))


def critic_loss():
    value = values_of()
    clipped = torch.clamp(value, old_values - VALUE_CLIP, old_values + VALUE_CLIP)
    return 0.5 * masked_mean(torch.max((value - R) ** 2, (clipped - R) ** 2))


def keep_gradients(model, loss, name, number):
    model.zero_grad()
    loss.backward()
    numbers[number] = loss.detach()
    for k, p in model.named_parameters():
        if p.grad is not None:
            out[f"{name}/{k}"] = p.grad.numpy().astype(np.float32)


def train(model, loss_of, name):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    numbers[name + ".losses"] = torch.tensor(losses)


# name: TRL's loss, level of the ratio, beta of the KL divergence
CASES = {
    "grpo": ("grpo", "token", 0),
    "grpo_kl": ("grpo", "token", 0.04),
    "bnpo_kl": ("bnpo", "token", 0.04),
    "dapo": ("dapo", "token", 0),
    "dr_grpo_kl": ("dr_grpo", "token", 0.04),
    "gspo": ("grpo", "sequence", 0),
    "cispo_kl": ("cispo", "token", 0.04),
}

FAMILIES = {"llama3": "llm/llama3", "qwen2": "llm/qwen2", "gpt2": "hf/gpt", "opt": "opt/before",
            "opt_after": "opt/after"}


def grpo_loss(name):
    """TRL's loss of all answers, in one micro-batch of one process. Prompts have no columns, and every
    position is one of a completion, of which the mask takes the answers."""
    loss, level, beta = CASES[name]
    trainer = types.SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp_of(), torch.zeros(5, T), None),
        accelerator=types.SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x),
        args=types.SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        aux_loss_enabled=False, beta=beta, current_gradient_accumulation_steps=1, epsilon_low=EPS,
        epsilon_high=CAP if loss == "cispo" else EPS, importance_sampling_level=level, loss_type=loss,
        max_completion_length=LONGEST, model=types.SimpleNamespace(training=True),
        off_policy_mask_threshold=None, top_entropy_quantile=1.0, use_vllm=False,
        _entropy_bonus_enabled=False, _metrics=collections.defaultdict(lambda: collections.defaultdict(list)))
    inputs = {"prompt_ids": ids[:, :0], "prompt_mask": mask[:, :0].long(), "completion_ids": ids,
              "completion_mask": mask.long(), "advantages": A, "old_per_token_logps": old,
              "ref_per_token_logps": reference, "num_items_in_batch": mask.sum()}
    return GRPOTrainer._compute_loss(trainer, actor, inputs)


keep_gradients(actor, actor_loss(), "actor", "actor.loss")
keep_gradients(actor, actor_loss() + PTX * text_loss(), "text", "actor.text_loss")
keep_gradients(critic, critic_loss(), "critic", "critic.loss")
first = {k: x.clone() for k, x in actor.state_dict().items()}
train(actor, actor_loss, "actor")
train(critic, critic_loss, "critic")
for each in CASES:
    actor.load_state_dict(first)
    keep_gradients(actor, grpo_loss(each), each, each + ".loss")
    train(actor, lambda: grpo_loss(each), each)
for each, folder in FAMILIES.items():
    actor = AutoModelForCausalLM.from_pretrained(HERE.parent / folder, dtype=torch.float64)
    with torch.no_grad():
        now = logp_of()
    old, reference = f32(now + rng.normal(0, 0.25, (5, T))), f32(now + rng.normal(0, 0.4, (5, T)))
    numbers[f"{each}.old"], numbers[f"{each}.reference"] = old, reference
    train(actor, lambda: grpo_loss("grpo_kl"), each)
out.update({k: np.atleast_1d(x.detach().numpy().astype(np.float64)) for k, x in numbers.items()})
save_file(out, HERE / "ppo.safetensors")
