"""SQuAD: from the published JSON to windows of word pieces."""
