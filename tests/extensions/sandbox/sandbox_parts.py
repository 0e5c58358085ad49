"""Shared helpers of the sandbox tests."""

from collections.abc import Callable

from fieldcraft.extensions.sandbox.limits import ProgramResult, ProgramStatus, SandboxLimits

# Limits for programs that end without help, even on a slow machine.
QUICK = SandboxLimits(wall_seconds=600.0, memory_mb=256, processes=8, disk_mb=8, file_mb=4)


def out_of_time(run: Callable[..., ProgramResult], code: str, **limits: int) -> ProgramResult:
    """Run a program that never ends, until its time limit.

    The limit grows until the program has started its work, even on a slow machine.
    """
    for seconds in (0.4, 2, 10, 50, 250):
        done = run(
            f"print('begun', flush=True)\n{code}",
            limits=SandboxLimits(wall_seconds=seconds, **limits),
        )
        assert done.status is ProgramStatus.TIMEOUT
        if done.stdout:
            break
    return done
