"""A step of GPT-2 124M in plain PyTorch, for tests/bench/gpt2: prints the seconds of each step.

usage: gpt2_torch.py THREADS STEPS TOKENS
"""

import array
import sys
import time

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, CONTEXT, HIDDEN, HEADS, LAYERS = 50257, 1024, 768, 12, 12
BATCH, SEQUENCE = 4, 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.projection = nn.Linear(HIDDEN, HIDDEN)
        self.norm2 = nn.LayerNorm(HIDDEN)
        self.inner = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.outer = nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        samples, sequence, hidden = x.shape
        q, k, v = (
            part.view(samples, sequence, HEADS, hidden // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(hidden, dim=2)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).reshape(samples, sequence, hidden))
        inner = functional.gelu(self.inner(self.norm2(x)), approximate="tanh")
        return x + self.outer(inner)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(CONTEXT, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


def batches(file, steps):
    """Tokens and their targets, as llm.c's data loader cuts them."""
    count = BATCH * SEQUENCE
    tokens = array.array("H")
    with open(file, "rb") as data:
        data.seek(1024)
        tokens.fromfile(data, steps * count + 1)
    for first in range(0, steps * count, count):
        batch = torch.tensor(tokens[first : first + count + 1], dtype=torch.long)
        yield batch[:-1].view(BATCH, SEQUENCE), batch[1:].view(BATCH, SEQUENCE)


def main():
    threads, steps, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1, fused=True)
    print("torch", torch.__version__, flush=True)
    for tokens, targets in batches(file, steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        loss.item()
        print(time.perf_counter() - start, flush=True)


main()
