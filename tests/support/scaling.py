"""fp16 with another loss scale than the first one of a run."""

from bert.optim.precision import Precision


def scaled(name: str, scale: float, growth_interval: int = 2000, device_type: str = "cpu") -> Precision:
    """Return a precision whose loss is scaled by `scale`, which doubles after so many updates; only fp16 scales."""
    made = Precision(name, device_type)
    made.load_state_dict({**made.state_dict(), "scale": scale, "growth_interval": growth_interval})
    return made
