"""Writes what the programs of tests/bench/gpt2 read, with random contents, in llm.c's formats.

usage: gpt2_files.py tokens FILE | checkpoint FILE
"""

import array
import random
import sys

VOCABULARY, PADDED, CONTEXT, HIDDEN, HEADS, LAYERS = 50257, 50304, 1024, 768, 12, 12
TOKENS = 1 << 16


def header(*numbers):
    return array.array("i", list(numbers) + [0] * (256 - len(numbers)))


def write_tokens(file, numbers):
    header(20240520, 1, TOKENS).tofile(file)
    array.array("H", [numbers.randrange(VOCABULARY) for _ in range(TOKENS)]).tofile(file)


def write_checkpoint(file, numbers):
    layer = 12 * HIDDEN * HIDDEN + 13 * HIDDEN
    parameters = (PADDED + CONTEXT) * HIDDEN + LAYERS * layer + 2 * HIDDEN
    block = array.array("f", [numbers.gauss(0, 0.02) for _ in range(1 << 18)])
    header(20240326, 3, CONTEXT, VOCABULARY, LAYERS, HEADS, HIDDEN, PADDED).tofile(file)
    for first in range(0, parameters, len(block)):
        block[: parameters - first].tofile(file)


def main():
    write = {"tokens": write_tokens, "checkpoint": write_checkpoint}[sys.argv[1]]
    with open(sys.argv[2], "wb") as file:
        write(file, random.Random(1))


main()
