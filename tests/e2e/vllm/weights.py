"""Gives a model folder weights: those with which the worker's answers in the test were recorded. They are random, the same
in each run of this version of transformers, and larger than a new model's, so that answers depend on the image."""

import sys

import torch
from transformers import AutoConfig, Qwen2VLForConditionalGeneration

folder = sys.argv[1]
torch.manual_seed(0)
model = Qwen2VLForConditionalGeneration(AutoConfig.from_pretrained(folder))
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.2 if "embed_tokens" in name else 0.12)
model.to(torch.bfloat16).save_pretrained(folder)
