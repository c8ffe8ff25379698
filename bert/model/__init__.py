"""The model: shapes, encoder, heads, batch layouts, FLOPs and memory."""
