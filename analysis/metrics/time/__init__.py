"""Where the time goes: busy, idle, phases, ranges, the launch queue."""
