"""A model whose head is its token table is trained with that one table, not with two."""

import subprocess
import sys

from offtune.model_shape import shape_of
from offtune.models import PRESETS

_BUILD = """
import torch
from offtune.models import PRESETS
from offtune.trial import Workload
from offtune.worker.workload import build_model
config = {**PRESETS["gpt2-124m"].config, "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 100,
          "bos_token_id": 1, "eos_token_id": 2}
work = Workload(model_name="tiny", model_config=config, seq_len=8, global_batch=1, world_size=1,
                precision="fp32", optimizer="adamw", activation_checkpointing=False, seed=0)
model = build_model(work, {"zero_optimization": {"stage": 2}}, torch.device("cpu"))
print(sum(parameter.numel() for parameter in model.parameters()))
"""


def test_the_trial_trains_as_many_parameters_as_were_counted():
    done = subprocess.run([sys.executable, "-c", _BUILD], capture_output=True, text=True, check=True)
    config = {**PRESETS["gpt2-124m"].config, "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 100}
    assert int(done.stdout.splitlines()[-1]) == shape_of(config).n_params
