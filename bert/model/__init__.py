"""The model: shapes, encoder, heads, how sequences lie in it, its FLOPs and memory."""
