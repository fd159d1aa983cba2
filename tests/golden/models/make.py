"""The programs of examples/models in PyTorch: MODEL.safetensors of each.

    pip install torch safetensors
    python make.py

Each model is written down here with PyTorch's modules. A file has the first parameters under their
names in the program, the inputs of one batch as input.NAME, the losses of four steps of AdamW at rate
0.01 on it (f32 parameters, computed in float64) as losses, and the parameters after them as after.NAME.
eps is 0.001: biases of keys have no gradient, and Adam would divide its rounding by itself.
"""

import math
import pathlib

import torch
from safetensors.torch import save_file
from torch import nn

F = torch.nn.functional
HERE = pathlib.Path(__file__).parent
BATCH, STEPS = 8, 4


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gru = nn.Embedding(17, 8), nn.GRU(8, 10, batch_first=True)
        self.head = nn.Linear(10, 17)

    def forward(self, ids, labels):
        x = self.head(self.gru(self.embed(ids))[0])
        return F.cross_entropy(x.flatten(0, 1), labels.flatten())


class Block(nn.Module):
    def __init__(self, wide=12):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(wide, 1e-6), nn.LayerNorm(wide, 1e-6)
        self.qkv, self.proj = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.fc1, self.fc2 = nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)

    def forward(self, x):
        b, t, h = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, t, 3, 3, h // 3).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, h)
        x = x + self.proj(y)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 12, 4, 4)  # the embedding is this convolution
        self.cls_token = nn.Parameter(torch.randn(1, 1, 12) * 0.2)
        self.pos_embed = nn.Parameter(torch.randn(1, 5, 12) * 0.2)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(12, 1e-6), nn.Linear(12, 5)

    def forward(self, image, labels):
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), 1, 12), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)[:, 0]), labels)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x):
        code = F.relu(self.encoder(x))
        return F.mse_loss(self.decoder(code), x) + 0.01 * code.abs().mean()


class Attend(nn.Module):
    def __init__(self, wide=12):
        super().__init__()
        self.norm = nn.LayerNorm(wide)
        self.q, self.k, self.v, self.out = (nn.Linear(wide, wide) for _ in range(4))

    def forward(self, x, memory=None, causal=False):
        y = self.norm(x)
        memory = y if memory is None else memory
        q, k, v = (
            f(s).unflatten(-1, (2, 6)).transpose(1, 2)
            for f, s in ((self.q, y), (self.k, memory), (self.v, memory))
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)
        return x + self.out(y)


class Feed(nn.Module):
    def __init__(self, wide=12):
        super().__init__()
        self.norm = nn.LayerNorm(wide)
        self.up, self.down = nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))))


class Layer(nn.Module):
    def __init__(self, cross):
        super().__init__()
        self.self = Attend()
        if cross:
            self.cross = Attend()
        self.mlp = Feed()

    def forward(self, x, memory):
        x = self.self(x, causal=memory is not None)
        if memory is not None:
            x = self.cross(x, memory)
        return self.mlp(x)


class Stack(nn.Module):
    def __init__(self, tokens, cross):
        super().__init__()
        self.words, self.places = nn.Embedding(19, 12), nn.Embedding(tokens, 12)
        self.layers = nn.ModuleList(Layer(cross) for _ in range(2))
        self.norm = nn.LayerNorm(12)

    def forward(self, ids, memory=None):
        x = self.words(ids) + self.places.weight
        for layer in self.layers:
            x = layer(x, memory)
        return self.norm(x)


class EncoderDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Stack(7, False), Stack(6, True)
        self.head = nn.Linear(12, 19)

    def forward(self, source, target, labels):
        x = self.head(self.decoder(target, self.encoder(source)))
        return F.cross_entropy(x.flatten(0, 1), labels.flatten())


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.item = nn.Embedding(23, 8), nn.Linear(8, 8)
        self.user = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
        self.register_buffer("often", -3 + torch.randn(23) * 0.3)

    def forward(self, history, right, sampled):
        def unit(x):
            return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)

        user = unit(self.user[1](F.relu(self.user[0](self.items(history).mean(1)))))
        ids = torch.cat([right, sampled], 1)
        scores = 5 * torch.einsum("bnd,bd->bn", unit(self.item(self.items(ids))), user)
        scores = scores - self.often[ids]
        same = F.pad((sampled == right).to(scores.dtype), (1, 0))
        return F.cross_entropy(scores - 1e4 * same, torch.zeros(len(ids), dtype=torch.long))


class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(20, 32), nn.Linear(32, 32))
        self.noise_of = nn.Linear(32, 8)

    def forward(self, x, noise, time):
        t = (time.to(x.dtype) / 50)[:, None]
        waves = t * 2.0 ** torch.arange(6, dtype=x.dtype)
        mixed = torch.cos(t * math.pi / 2) * x + torch.sin(t * math.pi / 2) * noise
        h = torch.cat([mixed, torch.sin(waves), torch.cos(waves)], 1)
        for layer in self.hidden:
            h = F.silu(layer(h))
        return F.mse_loss(self.noise_of(h), noise)


class Separable(nn.Module):
    def __init__(self, channels, out, dilation):
        super().__init__()
        self.deep = nn.Conv2d(
            channels, channels, 3, padding=dilation, dilation=dilation, groups=channels
        )
        self.mix = nn.Conv2d(channels, out, 1)

    def forward(self, x):
        return F.relu(self.mix(F.relu(self.deep(x))))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Linear(16, 5)
        self.block0, self.block1 = Separable(8, 16, 1), Separable(16, 16, 2)

    def forward(self, image, labels):
        x = self.block1(self.block0(F.relu(self.stem(image))))
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.pixels, self.picture = nn.Conv2d(3, 12, 4, 4), nn.Linear(12, 8)
        self.words, self.caption = nn.Embedding(19, 12), nn.Linear(12, 8)
        self.places = nn.Parameter(torch.randn(6, 12) * 0.3)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, picture, caption):
        def unit(x):
            return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)

        seen = unit(self.picture(F.gelu(self.pixels(picture)).mean((2, 3))))
        read = unit(self.caption(F.gelu(self.words(caption) + self.places).mean(1)))
        scores, right = self.logit_scale.exp() * seen @ read.T, torch.arange(len(seen))
        return (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right)) / 2


def words(below, *shape):
    return torch.randint(0, below, (BATCH, *shape))


def numbers(*shape):
    return torch.randn(BATCH, *shape)


MODELS = {
    "gru": (Gru, lambda: {"ids": words(17, 12), "labels": words(17, 12)}),
    "vit": (Vit, lambda: {"image": numbers(3, 8, 8), "labels": words(5)}),
    "autoencoder": (Autoencoder, lambda: {"x": numbers(16)}),
    "encoder_decoder": (
        EncoderDecoder,
        lambda: {"source": words(19, 7), "target": words(19, 6), "labels": words(19, 6)},
    ),
    "two_towers": (
        TwoTowers,
        lambda: {"history": words(23, 5), "right": words(23, 1), "sampled": words(23, 6)},
    ),
    "diffusion": (Diffusion, lambda: {"x": numbers(8), "noise": numbers(8), "time": words(50)}),
    "cnn": (Cnn, lambda: {"image": numbers(3, 9, 9), "labels": words(5)}),
    "clip": (Clip, lambda: {"picture": numbers(3, 8, 8), "caption": words(19, 6)}),
}


def named(name, x):
    """A parameter as the program has it."""
    if name == "patches.weight":
        return "embed.weight", x.flatten(1)
    return name.replace("patches.", "embed."), x


def kept(model):
    pairs = list(model.named_parameters()) + list(model.named_buffers())
    return dict(named(n, x.detach().float().clone().contiguous()) for n, x in pairs)


for number, (name, (build, data)) in enumerate(MODELS.items()):
    torch.manual_seed(100 + number)
    model, batch = build(), data()
    out = kept(model)
    model.double()
    inputs = {k: x.double() if x.is_floating_point() else x for k, x in batch.items()}
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.01, eps=1e-3, weight_decay=0, foreach=False
    )
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(**inputs)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for key, x in batch.items():
        out["input." + key] = x.float() if x.is_floating_point() else x.int()
    out["losses"] = torch.tensor(losses, dtype=torch.float64)
    out.update({"after." + k: x for k, x in kept(model).items()})
    save_file({k: x.contiguous() for k, x in out.items()}, HERE / (name + ".safetensors"))
    print(name, losses)
