"""torchrun as a child of a launch: its agent of this node, which meets the others as the launches agreed."""

import logging
import os
import sys
from pathlib import Path

from bench.cluster import GRACE_SECONDS, STOPPING_VARIABLE
from bench.cluster.first_failure import FirstFailure
from bench.run import agent
from records.files import read_record, write_record


def main(argv: list[str]) -> int:
    """Run torchrun with argv[1:]; write the rank that failed first, or what else went wrong, to argv[0]."""
    from torch.distributed.elastic.rendezvous import RendezvousStateError

    from bench.cluster import rendezvous

    result, stopping = Path(argv[0]), Path(os.environ[STOPPING_VARIABLE])
    first = FirstFailure(GRACE_SECONDS, stopping)
    rendezvous.register(first.first)
    first.start()
    # What its loggers say of failed ranks the launches say in one line, with the host.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        code = agent.main(argv)
    except Exception as error:
        text = "" if stopping.exists() else f"{type(error).__name__}: {error}"
        cause = first.first() if isinstance(error, RendezvousStateError) else None
        write_record(result, {"failures": [] if cause is None else [cause], "error": text})
        if text and not isinstance(error, RendezvousStateError):
            sys.excepthook(*sys.exc_info())
        return 1
    if code:
        failures = read_record(result)["failures"]
        ranks = [failure["rank"] for failure in failures]
        missed, cause = first.missed(ranks), first.of(ranks)
        if missed:
            failures = [failure for failure in failures if failure["rank"] in missed]
        elif cause is not None:
            failures = [cause]
        write_record(result, {"failures": failures})
    return code


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # threads of the store must not hold the process
