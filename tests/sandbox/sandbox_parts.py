"""What the tests of the sandbox share."""

from collections.abc import Callable

from fieldcraft.sandbox.limits import ProgramResult, ProgramStatus, SandboxLimits

# Of programs that end by themselves, however slow the machine.
QUICK = SandboxLimits(wall_seconds=600.0, memory_mb=256, processes=8, disk_mb=8, file_mb=4)


def out_of_time(run: Callable[..., ProgramResult], code: str, **limits: int) -> ProgramResult:
    """The run of a program that never ends by itself. It gets more time until it has begun to do
    what it does, on however slow a machine."""
    for seconds in (0.4, 2, 10, 50, 250):
        done = run(
            f"print('begun', flush=True)\n{code}",
            limits=SandboxLimits(wall_seconds=seconds, **limits),
        )
        assert done.status is ProgramStatus.TIMEOUT
        if done.stdout:
            break
    return done
