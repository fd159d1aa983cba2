"""Writes cases.json with the logits processors of transformers: python3 tests/golden/sampling/make.py

logits, tokens that were there, settings, and the probabilities that they give."""
import json
import os
import random

import torch
from transformers import (RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper,
                          TopPLogitsWarper)

random.seed(2)
cases = []
for temperature, k, p, penalty in [(1, 0, 1, 1), (0.7, 0, 1, 1), (1, 5, 1, 1), (1, 0, 0.8, 1), (1, 0, 1, 1.4),
                                   (0.6, 7, 0.9, 1.2), (1.5, 9, 0.5, 0.8), (1, 1, 1, 1), (1, 0, 0.01, 1),
                                   (2, 20, 0.95, 1.1)]:
    logits = [round(random.gauss(0, 2), 3) for _ in range(24)]
    logits[3] = logits[11]
    seen = [random.randrange(24) for _ in range(6)] * 2
    x, ids = torch.tensor([logits], dtype=torch.float64), torch.tensor([seen])
    for use, step in [(penalty != 1, lambda: RepetitionPenaltyLogitsProcessor(penalty)),
                      (temperature != 1, lambda: TemperatureLogitsWarper(float(temperature))),
                      (k, lambda: TopKLogitsWarper(k)), (p < 1, lambda: TopPLogitsWarper(float(p)))]:
        x = step()(ids, x) if use else x
    cases.append({"temperature": temperature, "top_k": k, "top_p": p, "repetition": penalty, "seen": seen,
                  "logits": logits, "p": [float("%.9g" % v) for v in torch.softmax(x, -1)[0].tolist()]})
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "cases.json"), "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
