"""A sandbox for Python programs that a model wrote. It needs neither root nor Docker.

What it does not cover:

- A defect of the Linux kernel. A program makes system calls to the host's own kernel; where that is
  too much trust, run the sandbox server in a virtual machine.
- Side channels: timing, shared caches of the processor, the load of the machine.
- CPU time of a whole run: each process has the limit of its own. All of them end at the limit of
  wall time.
- Memory of a whole run: each process has the limit of its own, so a run can use as much as its
  number of processes times that, and its files beside it.
- What a program says about itself. It shares its interpreter with what prints, so the value of the
  last expression and an exit status of 0 are its own words. A grader that must not be fooled
  compares standard output with what it expects, or uses `Sandbox.test`.
- Secrets in the Python installation: installed packages and the system's shared libraries can be
  read.
- Other machines than Linux on x86-64 or ARM64.

docs/sandbox.md says what is contained by which layer.
"""
