"""A stand-in for DeepSpeed: an engine that trains a single number, for tests of the hook around it."""

import json
import time
from pathlib import Path

import torch

__version__ = "0.0-fake"


class Engine(torch.nn.Module):
    def __init__(self, model, config):
        super().__init__()
        self.module, self.config = model, config
        self.optimizer = object()
        self.global_steps = self.skipped_steps = self.micro_steps = 0

    def train_batch_size(self):
        return self.config["train_batch_size"]

    def train_micro_batch_size_per_gpu(self):
        return self.config["train_micro_batch_size_per_gpu"]

    def gradient_accumulation_steps(self):
        return self.config["gradient_accumulation_steps"]

    def zero_offload_optimizer(self):
        return None

    def forward(self, input_ids):
        time.sleep(0.02)
        return self.module(input_ids.float()).mean()

    def backward(self, loss, scale_wrt_gas=True):
        loss.backward()

    def step(self):
        self.micro_steps += 1
        self.global_steps += self.micro_steps % self.gradient_accumulation_steps() == 0

    def save_checkpoint(self, folder):
        time.sleep(1.0)


def initialize(args=None, model=None, optimizer=None, config=None):
    found = config if isinstance(config, dict) else json.loads(Path(config).read_text())
    return Engine(model, found), optimizer, None, None
