"""The golden of BERT's dropout: losses and gradients of make.py's model on entry 0 of its batch, where
transformers drops what zeroflow drops.

    pip install torch transformers safetensors numpy
    python dropout.py         # writes dropout.safetensors

Every call of torch's dropout is replaced by a product with a mask. Those of the forward pass
(embeddings; then of each layer attention probabilities, attention output, output) draw the streams
of SCOPES: n is FNV-1a of a scope, a zero byte and the 8 bytes of its number there, low byte first,
as a 64-bit number whose halves are combined by exclusive or. Element e of it is half e % 2 (0: the
low 16 bits) of word e % 8 / 2 of the Philox4x32-10 block with counter {low(e / 8), high(e / 8), n,
1} (1: the first step) under the key SEED, and is kept, as x 2^16 / threshold, where the half is
below threshold = round((1 - p) 2^16). Philox is written down here from its paper: Salmon, Moraes,
Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.

    dropout.safetensors     F64 [] loss, mlm_loss, nsp_loss, and F32 the f64 gradients of all
                            parameters of rank 1 and of the position and type embeddings
"""
import pathlib

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

import make

HERE = pathlib.Path(__file__).parent
SEED, HIDDEN_P, ATTENTION_P = 5, 0.2, 0.3
LAYER = "bert.encoder.layer."
SCOPES = [("bert.embeddings", 0)] + [
    dropout for i in range(make.CONFIG["num_hidden_layers"])
    for dropout in [(f"{LAYER}{i}.attention.self", 0), (f"{LAYER}{i}", 0), (f"{LAYER}{i}", 1)]]


def stream_of(scope, number):
    x = 0xcbf29ce484222325
    for byte in scope.encode() + b"\0" + number.to_bytes(8, "little"):
        x = (x ^ byte) * 0x100000001b3 % 2**64
    return (x ^ x >> 32) % 2**32


def philox(counter, key):
    """Words [n, 4] of the blocks of counters [n, 4] under a key of two words."""
    c = [counter[:, i].astype(np.uint64) for i in range(4)]
    k = [np.uint64(x) for x in key]
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> half) ^ c[1] ^ k[0], b & low, (a >> half) ^ c[3] ^ k[1], a & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return np.stack(c, axis=1)


def mask(shape, p, stream):
    count = int(np.prod(shape))
    blocks = np.arange((count + 7) // 8, dtype=np.uint64)
    counter = np.zeros((len(blocks), 4), np.uint64)
    counter[:, 0], counter[:, 2], counter[:, 3] = blocks, stream, 1
    words = philox(counter, (SEED & 0xFFFFFFFF, SEED >> 32)).reshape(-1, 1)
    halves = np.concatenate([words & np.uint64(0xFFFF), words >> np.uint64(16)], axis=1)
    threshold = round((1 - p) * 2**16)
    kept = halves.reshape(-1)[:count] < np.uint64(threshold)
    return torch.from_numpy(kept.reshape(shape)).double() * (2**16 / threshold)


class Masks:
    """In place of torch.nn.functional.dropout."""

    def __init__(self):
        self.calls = []

    def __call__(self, x, p=0.5, training=True, inplace=False):
        assert training and not inplace
        self.calls.append((tuple(x.shape), p))
        return x * mask(tuple(x.shape), p, stream_of(*SCOPES[len(self.calls) - 1]))


def main():
    # The test vector of the paper's implementation: all bits of counter and key set.
    ones = np.full((1, 4), 0xFFFFFFFF, np.uint64)
    words = [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]
    assert philox(ones, (0xFFFFFFFF, 0xFFFFFFFF))[0].tolist() == words

    torch.set_num_threads(1)
    make.CONFIG.update(hidden_dropout_prob=HIDDEN_P, attention_probs_dropout_prob=ATTENTION_P)
    run = make.Run(load_file(HERE / "init.safetensors"), load_file(HERE / "batch.safetensors"),
                   torch.float64)
    plain, masks = torch.nn.functional.dropout, Masks()
    torch.nn.functional.dropout = masks
    losses, grads = run.grads(0)
    torch.nn.functional.dropout = plain
    b, t, h = make.B, make.T, make.CONFIG["hidden_size"]
    hidden, scores = ((b, t, h), HIDDEN_P), ((b, make.CONFIG["num_attention_heads"], t, t),
                                             ATTENTION_P)
    assert masks.calls == [hidden] + [scores, hidden, hidden] * make.CONFIG["num_hidden_layers"]

    out = {n: g.float().numpy() for n, g in grads.items()
           if g.dim() == 1 or "position" in n or "token_type" in n}
    for name, value in zip(("loss", "mlm_loss", "nsp_loss"), losses):
        out[name] = np.array(value)
    save_file(out, HERE / "dropout.safetensors")
    print(f"loss {losses[0]:.9f}, {len(out)} tensors")


if __name__ == "__main__":
    main()
