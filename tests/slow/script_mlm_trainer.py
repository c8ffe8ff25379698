"""A masked-LM training with Hugging Face's Trainer, as people write them; `bertbench measure` runs it unchanged.

python script_mlm_trainer.py --output_dir DIR --max_steps 20 [options of TrainingArguments]
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM, HfArgumentParser, Trainer, TrainerCallback, TrainingArguments


@dataclass
class Options:
    clock_file: str = ""
    threads: int = 0


class Clock(TrainerCallback):
    """The script's own clock: the time after each step."""

    def __init__(self):
        self.ends = []

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())


def padded(rows):
    """Rows of 3 to 7 tokens as a batch."""
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


if __name__ == "__main__":
    options, training_args = HfArgumentParser((Options, TrainingArguments)).parse_args_into_dataclasses()
    if options.threads:
        torch.set_num_threads(options.threads)
    clock = Clock()
    trainer = Trainer(
        model=BertForMaskedLM(
            BertConfig(vocab_size=20, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256)
        ),
        args=training_args,
        train_dataset=[torch.randint(1, 20, (3 + number % 5,)) for number in range(160)],
        data_collator=padded,
        callbacks=[clock],
    )
    trainer.train()
    if options.clock_file and trainer.is_world_process_zero():
        Path(options.clock_file).write_text(json.dumps(clock.ends))
