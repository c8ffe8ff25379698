"""SQuAD after the model: from logits to answers, from answers to the official scores. Imports no torch."""
