#!/usr/bin/env python3
"""How far two files of `fathom logits` are apart.

usage: compare_logits.py REFERENCE.safetensors OTHER.safetensors
Prints the relative error of the logits (2-norm, mean over rows), the mean Kullback-Leibler divergence of the
distributions in nats, and the share of rows with the same most likely token. Needs Debian's python3-numpy.
"""
import json
import struct
import sys

import numpy as np


def logits(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        entry = json.loads(file.read(size))["logits"]
        begin, end = entry["data_offsets"]
        file.seek(8 + size + begin)
        return np.frombuffer(file.read(end - begin), np.float32).reshape(entry["shape"]).astype(np.float64)


def log_softmax(x):
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    a, b = logits(sys.argv[1]), logits(sys.argv[2])
    error = np.linalg.norm(a - b, axis=1) / np.linalg.norm(a, axis=1)
    p, q = log_softmax(a), log_softmax(b)
    divergence = (np.exp(p) * (p - q)).sum(axis=1)
    same = (a.argmax(axis=1) == b.argmax(axis=1)).mean()
    print(f"rows {len(a)}  relative error {error.mean():.4f}  divergence {divergence.mean():.2e}  same choice {same:.4f}")


main()
