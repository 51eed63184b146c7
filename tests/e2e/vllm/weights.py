"""Gives a model folder weights: random ones, the same in each run, and larger than a new model's, so that answers depend
on the image."""

import sys

import torch
from transformers import AutoConfig, Qwen2VLForConditionalGeneration

folder = sys.argv[1]
torch.manual_seed(1)
model = Qwen2VLForConditionalGeneration(AutoConfig.from_pretrained(folder)).to(torch.bfloat16)
with torch.no_grad():
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.2)
model.save_pretrained(folder)
