"""What the tests of the sandbox share."""

from collections.abc import Callable

from fieldcraft.sandbox.limits import Limits, Run, RunStatus

# Of programs that end by themselves, however slow the machine.
QUICK = Limits(wall_seconds=600.0, memory_mb=256, processes=8, disk_mb=8, file_mb=4)


def out_of_time(run: Callable[..., Run], code: str, **limits: int) -> Run:
    """The run of a program that never ends by itself. It gets more time until it has begun to do
    what it does, on however slow a machine."""
    for seconds in (0.4, 2, 10, 50, 250):
        done = run(
            f"print('begun', flush=True)\n{code}", limits=Limits(wall_seconds=seconds, **limits)
        )
        assert done.status is RunStatus.TIMEOUT
        if done.stdout:
            break
    return done
