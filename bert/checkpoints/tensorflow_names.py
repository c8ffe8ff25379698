"""Names of google-research/bert's TensorFlow variables and of Hugging Face's parameters for the same weights."""

import re

# Of optimizers (Adam, LAMB), of loss scaling and of the schedule: no weights.
_NO_WEIGHT = re.compile(
    r"(adam|lamb)_[mv]|global_step|(^|/)(adam\w*|lamb\w*|beta[12]_power|loss_scale|good_steps|learning_rate)(/|$)",
    re.IGNORECASE,
)
# Heads that Hugging Face has under another name (run_squad.py's).
_HEADS = {"cls/squad/": "qa_outputs/"}
# Those of run_classifier.py, which are in no scope.
_CLASSIFIER = {"output_weights": "classifier.weight", "output_bias": "classifier.bias"}
_WHOLE_PARTS = {
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "output_weights": "weight",
    "output_bias": "bias",
}


def is_weight(name: str) -> bool:
    """Say whether a variable is a weight; optimizers and schedules keep theirs under names of their own."""
    return _NO_WEIGHT.search(name) is None


def hugging_face_name(name: str) -> tuple[str, bool]:
    """Return the parameter's name of a variable that is a weight, and whether the matrix has to be transposed.

    bert/encoder/layer_0/attention/self/query/kernel -> bert.encoder.layer.0.attention.self.query.weight, transposed.
    """
    name = name.removeprefix("module/")
    if name in _CLASSIFIER:
        return _CLASSIFIER[name], False
    for theirs, published in _HEADS.items():
        if name.startswith(theirs):
            name = published + name.removeprefix(theirs)
    parts = name.split("/")
    last = parts[-1]
    transposed = last == "kernel"
    if last.endswith("_embeddings"):
        parts.append("weight")
    else:
        parts[-1] = _WHOLE_PARTS.get(last, last)
    return ".".join(re.sub(r"^layer_(\d+)$", r"layer.\1", part) for part in parts), transposed
