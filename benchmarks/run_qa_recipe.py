"""Training features of questions and answers as transformers' run_qa.py makes them: what ours are timed against."""

from typing import Any

MAX_SEQ_LENGTH, DOC_STRIDE = 384, 128


class QaFeatures:
    """What the recipe maps over batches of questions."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, batch: Any) -> Any:
        encoded = self.tokenizer(
            batch["question"],
            batch["context"],
            truncation="only_second",
            max_length=MAX_SEQ_LENGTH,
            stride=DOC_STRIDE,  # an overlap here, which makes fewer windows than a step of 128
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding=False,
        )
        samples, offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
        starts, ends = [], []
        for number, spans in enumerate(offsets):
            answer = batch["answers"][samples[number]]
            cls = encoded["input_ids"][number].index(self.tokenizer.cls_token_id)
            segments = encoded.sequence_ids(number)
            first = segments.index(1)
            last = len(segments) - 1 - segments[::-1].index(1)
            start = answer["start"][0]
            end = start + len(answer["text"][0])
            if not (spans[first][0] <= start and spans[last][1] >= end):
                starts.append(cls)
                ends.append(cls)
                continue
            while first < len(spans) and spans[first][0] <= start:
                first += 1
            while spans[last][1] >= end:
                last -= 1
            starts.append(first - 1)
            ends.append(last + 1)
        encoded["start_positions"], encoded["end_positions"] = starts, ends
        return encoded
