"""The truth corpus: recordings whose numbers are known because of how they are made, and the score of answers."""
