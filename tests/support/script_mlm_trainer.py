"""A masked-LM training script with Hugging Face's Trainer, as people write them; `bertbench measure` runs it unchanged.

python script_mlm_trainer.py --train_file TEXT --output_dir DIR --max_steps 20 [options of TrainingArguments]
"""

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass
class ModelArguments:
    hidden_size: int = 64
    num_hidden_layers: int = 2
    max_seq_length: int = 32
    mlm_probability: float = 0.15


@dataclass
class DataArguments:
    train_file: str = field(metadata={"help": "plain text"})
    clock_file: str = field(default="", metadata={"help": "where the times of this script's own clock go"})
    threads: int = 0


class Clock(TrainerCallback):
    """The script's own clock: the time after each step."""

    def __init__(self):
        self.ends = []

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())


class Lines(torch.utils.data.Dataset):
    def __init__(self, lines, tokenizer, length):
        self.rows = tokenizer(lines, truncation=True, max_length=length)["input_ids"]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "attention_mask": [1] * len(self.rows[index])}


def tokenizer_of(lines):
    words = sorted({word for line in lines for word in line.split()})
    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{f"{name[1:-1].lower()}_token": name for name in SPECIAL},
    )


def main():
    model_args, data_args, training_args = HfArgumentParser(
        (ModelArguments, DataArguments, TrainingArguments)
    ).parse_args_into_dataclasses()
    if data_args.threads:
        torch.set_num_threads(data_args.threads)
    set_seed(training_args.seed)
    lines = Path(data_args.train_file).read_text(encoding="utf-8").splitlines()
    tokenizer = tokenizer_of(lines)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=model_args.hidden_size,
        num_hidden_layers=model_args.num_hidden_layers,
        num_attention_heads=2,
        intermediate_size=4 * model_args.hidden_size,
    )
    clock = Clock()
    trainer = Trainer(
        model=BertForMaskedLM(config),
        args=training_args,
        train_dataset=Lines(lines, tokenizer, model_args.max_seq_length),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=model_args.mlm_probability),
        callbacks=[clock],
    )
    trainer.train()
    if data_args.clock_file and trainer.is_world_process_zero():
        Path(data_args.clock_file).write_text(json.dumps(clock.ends))


if __name__ == "__main__":
    sys.exit(main())
