"""What the numbers mean: findings, cautions, the answer that a report begins with. Draws nothing."""
